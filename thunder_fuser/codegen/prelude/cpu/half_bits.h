// provides: f16_to_float float_to_f16 bf16_to_float float_to_bf16
// needs: device bits
// Integer arithmetic without branches, so that a loop over these becomes SIMD.
DEVICE float f16_to_float(unsigned short half) {
  const unsigned magnitude = (half & 0x7fffu) << 13;  // a float whose exponent is 112 too small
  const unsigned scaled = float_bits(float_of_bits(magnitude) * 0x1p112f);
  const unsigned bits = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : scaled;
  return float_of_bits(bits | (half & 0x8000u) << 16);
}
DEVICE unsigned short float_to_f16(float value) {
  const unsigned bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  const unsigned rounded = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const unsigned normal = rounded > 0x7c00u ? 0x7c00u : rounded;
  // The distance between floats just above 0.5 is the smallest f16: the addition rounds to it.
  const unsigned tiny = float_bits(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  const unsigned finite = magnitude < 0x38800000u ? tiny : normal;
  const unsigned half = magnitude > 0x7f800000u ? 0x7e00u : finite;
  return static_cast<unsigned short>(half | (bits >> 16 & 0x8000u));
}
DEVICE float bf16_to_float(unsigned short bits) {
  return float_of_bits(static_cast<unsigned>(bits) << 16);
}
DEVICE unsigned short float_to_bf16(float value) {
  const unsigned bits = float_bits(value);
  const unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const unsigned nan = bits >> 16 | 0x40u;
  return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
