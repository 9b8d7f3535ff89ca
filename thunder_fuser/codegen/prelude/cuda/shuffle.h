// provides: shfl_xor shfl_idx
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Whole warps take part. The hardware moves 32 bits: narrower values are widened, 64 bits go in two.
template <typename T> union ShuffleWords {
  static constexpr int COUNT = sizeof(T) < 4 ? 1 : sizeof(T) / 4;
  unsigned word[COUNT];
  T value;
  DEVICE ShuffleWords(T given) {
    word[0] = 0;
    value = given;
  }
};
template <typename T> DEVICE T shfl_xor(T value, int mask, int width) {
  ShuffleWords<T> out(value), in(value);
#pragma unroll
  for (int i = 0; i < ShuffleWords<T>::COUNT; ++i)
    in.word[i] = __shfl_xor_sync(0xffffffffu, out.word[i], mask, width);
  return in.value;
}
// The value of one lane of each group of `width`.
template <typename T> DEVICE T shfl_idx(T value, int source, int width) {
  ShuffleWords<T> out(value), in(value);
#pragma unroll
  for (int i = 0; i < ShuffleWords<T>::COUNT; ++i)
    in.word[i] = __shfl_sync(0xffffffffu, out.word[i], source, width);
  return in.value;
}
#endif
