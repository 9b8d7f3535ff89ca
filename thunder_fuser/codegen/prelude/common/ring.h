// provides: ldr
// needs: device memory vec
// N elements of the ring pointer[first .. first + size), from its element `at` on. Most threads do
// not pass its end: they do N loads at fixed distances from one address. The empty asm keeps the
// compiler from merging both branches into one that computes an address for each element.
template <int N, typename T, typename I>
DEVICE Vec<T, N> ldr(const T* pointer, I first, I at, I size) {
  Vec<T, N> out;
  if (at <= size - N) {
#pragma unroll
    for (int k = 0; k < N; ++k) out.v[k] = ld(pointer, first + at + k);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k)
      out.v[k] = ld(pointer, first + at + k - (at + k < size ? 0 : size));
    asm volatile("" ::: "memory");
  }
  return out;
}
