// provides: float_bits double_bits float_of_bits
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE unsigned float_bits(float value) { return __float_as_uint(value); }
DEVICE unsigned long long double_bits(double value) {
  return static_cast<unsigned long long>(__double_as_longlong(value));
}
DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
#endif
