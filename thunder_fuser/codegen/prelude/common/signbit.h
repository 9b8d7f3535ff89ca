// provides: signbit_
// needs: device bits
template <typename T> DEVICE bool signbit_(T x) { return x < T(0); }
DEVICE bool signbit_(float x) { return float_bits(x) >> 31; }
DEVICE bool signbit_(double x) { return double_bits(x) >> 63; }
