// provides: ipow gcd_ shift_left shift_right_arith shift_right_logical
// needs: device types
template <typename T> DEVICE bool is_negative(T value) {
  if constexpr (is_signed_type<T>) return value < T(0);
  return false;
}
template <typename T> DEVICE typename Unsigned<T>::type magnitude(T value) {
  using U = typename Unsigned<T>::type;
  const U bits = static_cast<U>(value);
  return is_negative(value) ? static_cast<U>(U(0) - bits) : bits;
}
// A negative exponent truncates the true value: 0 unless the base is 1 or -1.
template <typename T> DEVICE T ipow(T base, T exponent) {
  using U = typename Unsigned<T>::type;
  if (is_negative(exponent)) {
    if (base == T(1)) return T(1);
    return base == static_cast<T>(-1) ? static_cast<T>(exponent % 2 ? -1 : 1) : T(0);
  }
  U power = 1, square = static_cast<U>(base);
  for (U rest = static_cast<U>(exponent); rest != 0; rest = static_cast<U>(rest >> 1)) {
    if (rest & 1) power = static_cast<U>(static_cast<u64>(power) * square);
    square = static_cast<U>(static_cast<u64>(square) * square);
  }
  return static_cast<T>(power);
}
template <typename T> DEVICE T gcd_(T a, T b) {
  auto x = magnitude(a), y = magnitude(b);
  while (y != 0) {
    const auto rest = static_cast<decltype(x)>(x % y);
    x = y;
    y = rest;
  }
  return static_cast<T>(x);
}
template <typename T> DEVICE bool shift_in_range(T count) {
  return static_cast<typename Unsigned<T>::type>(count) < sizeof(T) * 8;
}
template <typename T> DEVICE T shift_left(T a, T count) {
  return shift_in_range(count) ? static_cast<T>(static_cast<u64>(a) << count) : T(0);
}
// Too far a shift leaves the sign: -1 or 0.
template <typename T> DEVICE T shift_right_arith(T a, T count) {
  if (shift_in_range(count)) return static_cast<T>(a >> count);
  return static_cast<T>(is_negative(a) ? -1 : 0);
}
template <typename T> DEVICE T shift_right_logical(T a, T count) {
  using U = typename Unsigned<T>::type;
  return shift_in_range(count) ? static_cast<T>(static_cast<U>(a) >> count) : T(0);
}
