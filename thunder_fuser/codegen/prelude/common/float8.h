// provides: e4m3 e5m2 e8m0
// needs: device bits half_bits convert
// 8-bit floats, storage only: sign, exponent of 4 or 5 bits, mantissa of 3 or 2. The hardware rounds
// to them from sm_89 on, in a third of the instructions; integers do it everywhere.
struct e4m3 { unsigned char bits; };  // no infinities: what is too large is NaN (127)
struct e5m2 { unsigned char bits; };  // the upper half of an f16
struct e8m0 { unsigned char bits; };  // the exponent of a float, a power of two; 255 is NaN

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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define ROUND_TO_FLOAT8(TYPE, MANTISSA, BIAS) \
  unsigned short both; \
  asm("cvt.rn.satfinite." #TYPE "x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(value)); \
  const unsigned finite = both & 0x7fu
#else
#define ROUND_TO_FLOAT8(TYPE, MANTISSA, BIAS) \
  const unsigned finite = round_to_float8<MANTISSA, BIAS>(magnitude)
#endif
DEVICE unsigned char float_to_e4m3(float value) {
  const unsigned bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  ROUND_TO_FLOAT8(e4m3, 3, 7);
  const unsigned code = magnitude <= 0x43e80000u ? finite : 0x7fu;  // above 464: to 480, that is NaN
  return static_cast<unsigned char>(code | (bits >> 24 & 0x80u));
}
DEVICE unsigned char float_to_e5m2(float value) {
  const unsigned bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  ROUND_TO_FLOAT8(e5m2, 2, 15);
  const unsigned large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  const unsigned code = magnitude < 0x47700000u ? finite : large;  // from 61440 on: to infinity
  return static_cast<unsigned char>(code | (bits >> 24 & 0x80u));
}
// A half rounds to the larger power of two; below the normal floats it rounds down, as in torch.
DEVICE unsigned char float_to_e8m0(float value) {
  const unsigned exponent = float_bits(value) >> 23 & 0xffu, rest = float_bits(value) & 0x7fffffu;
  const unsigned rounded = exponent + (rest >= 0x400000u + (exponent == 0));
  return static_cast<unsigned char>(exponent == 255 ? 255 : rounded);
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
DEVICE float widen(e8m0 value) {
  const unsigned bits = value.bits == 0 ? 0x400000u : static_cast<unsigned>(value.bits) << 23;
  return float_of_bits(value.bits == 255 ? 0x7fc00000u : bits);
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
template <> struct Narrow<e8m0> {
  template <typename From> static DEVICE e8m0 from(From value) {
    return e8m0{float_to_e8m0(static_cast<float>(value))};
  }
};
