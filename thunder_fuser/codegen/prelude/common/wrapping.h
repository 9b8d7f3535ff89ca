// provides: wrap_add wrap_sub wrap_mul wrap_neg wrap_abs
// needs: device types
// Integers wrap, as torch's do. Signed overflow is undefined in C++: for `b + c` with a bool b a
// compiler may choose between c + 1 and c, and wrap neither.
template <typename T> struct Ring { using type = T; };
template <> struct Ring<i64> { using type = u64; };
template <> struct Ring<i32> { using type = u32; };
template <> struct Ring<i16> { using type = u32; };
template <> struct Ring<i8> { using type = u32; };
template <> struct Ring<u8> { using type = u32; };
// ptxas 13.0 takes -x > 0 of 16 bits for x < 0, which differs at -32768. The empty asm hides that
// the value comes from 16 bits, so -x is computed in 32.
template <typename T, typename U> DEVICE T narrow(U value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2 && sizeof(U) == 4) asm("" : "+r"(value));
#endif
  return static_cast<T>(value);
}
template <typename T> DEVICE T wrap_add(T a, T b) {
  using U = typename Ring<T>::type;
  return narrow<T>(static_cast<U>(a) + static_cast<U>(b));
}
template <typename T> DEVICE T wrap_sub(T a, T b) {
  using U = typename Ring<T>::type;
  return narrow<T>(static_cast<U>(a) - static_cast<U>(b));
}
template <typename T> DEVICE T wrap_mul(T a, T b) {
  using U = typename Ring<T>::type;
  return narrow<T>(static_cast<U>(a) * static_cast<U>(b));
}
template <typename T> DEVICE T wrap_neg(T a) { return wrap_sub(T(0), a); }
template <typename T> DEVICE T wrap_abs(T a) { return a < T(0) ? wrap_neg(a) : a; }
