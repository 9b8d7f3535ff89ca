// provides: ldr
// needs: device memory vec
// N elements of the ring pointer[first .. first + size), from its element `at` on. Most threads do
// not pass its end: theirs are N loads at fixed distances from one address. The empty asm keeps the
// compiler from making one path of both, with an address computed for each element.
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
