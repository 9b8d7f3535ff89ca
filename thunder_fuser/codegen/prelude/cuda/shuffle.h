// provides: shfl_xor
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Whole warps take part. The hardware moves 32 bits: narrower values are widened, 64 bits go in two.
template <typename T> DEVICE T shfl_xor(T value, int mask, int width) {
  constexpr int WORDS = sizeof(T) < 4 ? 1 : sizeof(T) / 4;
  union Words {
    unsigned word[WORDS];
    T value;
    DEVICE Words() {}
  } out, in;
  out.word[0] = 0;
  out.value = value;
#pragma unroll
  for (int i = 0; i < WORDS; ++i)
    in.word[i] = __shfl_xor_sync(0xffffffffu, out.word[i], mask, width);
  return in.value;
}
#endif
