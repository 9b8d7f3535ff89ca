// provides: infinity not_a_number
// needs: device
union FloatBits { unsigned bits; float value; };
union DoubleBits { unsigned long long bits; double value; };
template <typename T> struct Special;
template <> struct Special<float> {
  static DEVICE float make(bool nan) { FloatBits x; x.bits = nan ? 0x7fc00000u : 0x7f800000u; return x.value; }
};
template <> struct Special<double> {
  static DEVICE double make(bool nan) {
    DoubleBits x; x.bits = nan ? 0x7ff8000000000000ull : 0x7ff0000000000000ull; return x.value;
  }
};
template <typename T> DEVICE T infinity() { return Special<T>::make(false); }
template <typename T> DEVICE T not_a_number() { return Special<T>::make(true); }
