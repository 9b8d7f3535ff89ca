// provides: e4m3 e5m2
// needs: device bits half_bits convert
// 8-bit floats, storage only: sign, exponent of 4 or 5 bits, mantissa of 3 or 2. The hardware converts
// them from sm_89 on; integers do it everywhere.
struct e4m3 { unsigned char bits; };  // no infinities: what is too large is NaN (127)
struct e5m2 { unsigned char bits; };  // the upper half of an f16

// A finite float's magnitude, rounded to nearest even.
template <unsigned MANTISSA, unsigned BIAS> DEVICE unsigned round_to_float8(unsigned magnitude) {
  constexpr unsigned SHIFT = 23 - MANTISSA;
  // A float whose last place is the smallest 8-bit float: adding it rounds what is below normal.
  constexpr unsigned ANCHOR = (151 - BIAS - MANTISSA) << 23;
  const unsigned tiny = float_bits(float_of_bits(magnitude) + float_of_bits(ANCHOR)) - ANCHOR;
  const unsigned half = (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1u);
  const unsigned normal = (magnitude - ((127 - BIAS) << 23) + half) >> SHIFT;
  return magnitude < (128 - BIAS) << 23 ? tiny : normal;
}
DEVICE unsigned char float_to_e4m3(float value) {
  const unsigned bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  const unsigned finite = round_to_float8<3, 7>(magnitude);
  const unsigned code = magnitude < 0x43f00000u ? finite : 0x7fu;  // 480, what NaN would stand for
  return static_cast<unsigned char>(code | (bits >> 24 & 0x80u));
}
DEVICE unsigned char float_to_e5m2(float value) {
  const unsigned bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  const unsigned finite = round_to_float8<2, 15>(magnitude);
  const unsigned large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  const unsigned code = magnitude < 0x47800000u ? finite : large;  // 65536, above every e5m2
  return static_cast<unsigned char>(code | (bits >> 24 & 0x80u));
}
DEVICE float widen(e4m3 value) {
  const unsigned magnitude = value.bits & 0x7fu;  // as a float, its exponent is 120 too small
  const unsigned scaled = float_bits(float_of_bits(magnitude << 20) * 1.329227995784916e36f);
  const unsigned bits = magnitude == 0x7fu ? 0x7fc00000u : scaled;
  return float_of_bits(bits | (value.bits & 0x80u) << 24);
}
DEVICE float widen(e5m2 value) {
  return f16_to_float(static_cast<unsigned short>(value.bits << 8));
}
template <> struct Narrow<e4m3> {
  template <typename From> static DEVICE e4m3 from(From value) {
    return e4m3{float_to_e4m3(static_cast<float>(value))};
  }
};
template <> struct Narrow<e5m2> {
  template <typename From> static DEVICE e5m2 from(From value) {
    return e5m2{float_to_e5m2(static_cast<float>(value))};
  }
};
