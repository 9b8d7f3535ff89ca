// provides: signbit_
// needs: device bits types
template <typename T> DEVICE bool signbit_(T x) {
  if constexpr (is_signed_type<T>) return x < T(0);
  return false;
}
DEVICE bool signbit_(float x) { return float_bits(x) >> 31; }
DEVICE bool signbit_(double x) { return double_bits(x) >> 63; }
