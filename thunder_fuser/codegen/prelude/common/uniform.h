// provides: uniform_ word Bits
// needs: device convert rounding philox
template <typename T> struct Bits { using type = u32; };
template <> struct Bits<double> { using type = u64; };
DEVICE void take(Words x, int lane, u32& bits) {
  bits = lane < 2 ? (lane ? x.b : x.a) : (lane == 2 ? x.c : x.d);
}
DEVICE void take(Words x, int lane, u64& bits) {
  bits = static_cast<u64>(lane ? x.d : x.b) << 32 | (lane ? x.c : x.a);
}
template <typename T> DEVICE typename Bits<T>::type word(Words x, int lane) {
  typename Bits<T>::type bits;
  take(x, lane, bits);
  return bits;
}
// It takes as many bits as the significand has, so the number is exact and never rounds up to 1.
template <typename T> struct Unit {
  static DEVICE float of(u32 bits) { return static_cast<float>(static_cast<i32>(bits >> 8)) * 0x1p-24f; }
};
template <> struct Unit<f16> {
  static DEVICE float of(u32 bits) { return static_cast<float>(static_cast<i32>(bits >> 21)) * 0x1p-11f; }
};
template <> struct Unit<bf16> {
  static DEVICE float of(u32 bits) { return static_cast<float>(static_cast<i32>(bits >> 24)) * 0x1p-8f; }
};
template <> struct Unit<double> {
  static DEVICE double of(u64 bits) { return static_cast<double>(static_cast<i64>(bits >> 11)) * 0x1p-53; }
};
// lo + (hi - lo) * unit, or lo if that was rounded to hi. 0 and 1, which are mostly literals, need
// no scaling.
template <typename T, typename C> DEVICE T uniform_(typename Bits<T>::type bits, C lo, C hi) {
  const C unit = Unit<T>::of(bits);
  if (lo == C(0) && hi == C(1)) return convert<T>(unit);
  const T value = convert<T>(mul_add(unit, hi - lo, lo));
  return widen(value) < hi ? value : convert<T>(lo);
}
