// provides: uniform_
// needs: device convert rounding philox
// As many bits as the significand holds: the number is exact, and never rounds up to 1.
template <typename T> struct Unit {
  static DEVICE float make(Words x, int lane) {
    return static_cast<float>(static_cast<i32>(word(x, lane) >> 8)) * 0x1p-24f;
  }
};
template <> struct Unit<f16> {
  static DEVICE float make(Words x, int lane) {
    return static_cast<float>(static_cast<i32>(word(x, lane) >> 21)) * 0x1p-11f;
  }
};
template <> struct Unit<bf16> {
  static DEVICE float make(Words x, int lane) {
    return static_cast<float>(static_cast<i32>(word(x, lane) >> 24)) * 0x1p-8f;
  }
};
template <> struct Unit<double> {
  static DEVICE double make(Words x, int lane) {
    return static_cast<double>(static_cast<i64>(long_word(x, lane) >> 11)) * 0x1p-53;
  }
};
// lo + (hi - lo) * unit, and lo where that was rounded to hi.
template <typename T, typename C> DEVICE T uniform_(Words x, int lane, C lo, C hi) {
  const T value = convert<T>(mul_add(Unit<T>::make(x, lane), hi - lo, lo));
  return widen(value) < hi ? value : convert<T>(lo);
}
