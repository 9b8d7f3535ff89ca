// provides: float_bits double_bits float_of_bits
// needs: device
DEVICE unsigned float_bits(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
DEVICE unsigned long long double_bits(double value) {
  unsigned long long bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
DEVICE float float_of_bits(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
