// provides: int_div c_fmod remainder_py
// needs: device types
// A divisor of 0 gives 0 (it would stop the process on a CPU), and -1 never overflows.
template <typename T> DEVICE T int_div(T a, T b) {
  using U = typename Unsigned<T>::type;
  if (b == T(0)) return T(0);
  if constexpr (is_signed_type<T>)
    if (b == T(-1)) return static_cast<T>(U(0) - static_cast<U>(a));
  return static_cast<T>(a / b);
}
template <typename T> DEVICE T c_fmod(T a, T b) {
  if (b == T(0)) return T(0);
  if constexpr (is_signed_type<T>)
    if (b == T(-1)) return T(0);
  return static_cast<T>(a % b);
}
DEVICE float c_fmod(float a, float b) { return fmodf(a, b); }
DEVICE double c_fmod(double a, double b) { return fmod(a, b); }
// Python's modulo: the sign of the divisor.
template <typename T> DEVICE T remainder_py(T a, T b) {
  const T rest = c_fmod(a, b);
  if constexpr (is_signed_type<T>)
    if (rest != T(0) && (b < T(0)) != (rest < T(0))) return static_cast<T>(rest + b);
  return rest;
}
