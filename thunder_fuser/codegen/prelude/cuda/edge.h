// provides: lde
// needs: device vec memory memory_vec
#ifndef THUNDER_FUSER_EMULATOR
// Loads N elements; those from `limit` on are zero. `inside`: all lie before the limit, which the
// compiler then knows. Only the last vector of a tensor is loaded by elements. Both branches end in
// the same words, so only that vector's thread waits for its elements.
template <int N, typename T, typename I>
DEVICE Vec<T, N> lde(const T* pointer, I i, I limit, bool inside = false) {
  using Words = VecWords<T, N>;
  Words out;
  if (inside || i <= limit - N) {
    const auto* from = reinterpret_cast<const typename Words::word*>(pointer + i);
#pragma unroll
    for (int k = 0; k < Words::COUNT; ++k) out.words[k] = from[k];
  } else {
    Words ends;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      ends.vec.v[k] = T{};
      if (i + k < limit) ends.vec.v[k] = ld(pointer, i + k);
    }
#pragma unroll
    for (int k = 0; k < Words::COUNT; ++k) out.words[k] = ends.words[k];
    asm volatile("" ::: "memory");
  }
  return out.vec;
}
#endif
