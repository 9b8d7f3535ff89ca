// provides: ldv ldv_if stv
// needs: device vec
#ifndef THUNDER_FUSER_EMULATOR
// The widest word that divides the vector: the access is one instruction whatever T is.
template <int BYTES> struct Word { using type = uint4; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<1> { using type = unsigned char; };

template <typename T, int N> union VecWords {
  using word = typename Word<(sizeof(T) * N < 16 ? sizeof(T) * N : 16)>::type;
  static constexpr int COUNT = sizeof(T) * N / sizeof(word);
  Vec<T, N> vec;
  word words[COUNT];
  DEVICE VecWords() {}
};
template <int N, typename T, typename I> DEVICE Vec<T, N> ldv(const T* pointer, I i) {
  using Words = VecWords<T, N>;
  Words out;
  const auto* from = reinterpret_cast<const typename Words::word*>(pointer + i);
#pragma unroll
  for (int k = 0; k < Words::COUNT; ++k) out.words[k] = from[k];
  return out.vec;
}
// The vector, or zeros. The choice is between whole words: one between vectors would be made, and
// its result taken out of its word, for each element.
template <int N, typename T, typename I>
DEVICE Vec<T, N> ldv_if(bool holds, const T* pointer, I i) {
  using Words = VecWords<T, N>;
  Words out;
  const auto* from = reinterpret_cast<const typename Words::word*>(pointer + i);
#pragma unroll
  for (int k = 0; k < Words::COUNT; ++k) out.words[k] = holds ? from[k] : typename Words::word{};
  return out.vec;
}
template <int N, typename T, typename I> DEVICE void stv(T* pointer, I i, Vec<T, N> values) {
  using Words = VecWords<T, N>;
  Words in;
  in.vec = values;
  auto* to = reinterpret_cast<typename Words::word*>(pointer + i);
#pragma unroll
  for (int k = 0; k < Words::COUNT; ++k) to[k] = in.words[k];
}
#endif
