// provides: philox_fill
// needs: device philox
// The words of `groups` groups in a row; a u64 holds two of them, the first one lowest.
DEVICE void put_group(u32* out, Lanes<u64> x) {
  out[0] = static_cast<u32>(x.a);
  out[1] = static_cast<u32>(x.b);
  out[2] = static_cast<u32>(x.c);
  out[3] = static_cast<u32>(x.d);
}
DEVICE void put_group(u64* out, Lanes<u64> x) {
  out[0] = x.b << 32 | x.a;
  out[1] = x.d << 32 | x.c;
}
template <typename B>
inline void philox_fill(B* __restrict__ out, i64 seed, i64 offset, i64 first, i32 groups) {
  #pragma omp simd
  for (i32 g = 0; g < groups; ++g) {
    put_group(out + g * static_cast<i32>(16 / sizeof(B)), philox<u64>(seed, offset, first + g));
  }
}
