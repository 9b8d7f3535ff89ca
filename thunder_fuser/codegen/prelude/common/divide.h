// provides: int_div c_fmod remainder_py
// needs: device types
// A divisor of 0 gives 0 (it would stop the process on a CPU), and -1 never overflows.
template <typename T> DEVICE T int_div(T a, T b) {
  using U = typename Unsigned<T>::type;
  if (b == T(0)) return T(0);
  if (b == static_cast<T>(-1) && T(-1) < T(0)) return static_cast<T>(U(0) - static_cast<U>(a));
  return static_cast<T>(a / b);
}
template <typename T> DEVICE T c_fmod(T a, T b) {
  const bool safe = b != T(0) && !(T(-1) < T(0) && b == static_cast<T>(-1));
  return safe ? static_cast<T>(a % b) : T(0);
}
DEVICE float c_fmod(float a, float b) { return fmodf(a, b); }
DEVICE double c_fmod(double a, double b) { return fmod(a, b); }
// Python's modulo: the sign of the divisor.
template <typename T> DEVICE T remainder_py(T a, T b) {
  const T rest = c_fmod(a, b);
  const bool other_sign = rest != T(0) && (b < T(0)) != (rest < T(0));
  return other_sign ? static_cast<T>(rest + b) : rest;
}
