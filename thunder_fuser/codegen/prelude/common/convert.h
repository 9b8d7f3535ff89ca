// provides: convert
// needs: device types half half_bits whole
template <typename T> DEVICE T widen(T value) { return value; }
DEVICE float widen(f16 value) { return f16_to_float(value.bits); }
DEVICE float widen(bf16 value) { return bf16_to_float(value.bits); }

template <typename To> struct Narrow {
  template <typename From> static DEVICE To from(From value) { return static_cast<To>(value); }
};
template <> struct Narrow<bool> {
  template <typename From> static DEVICE bool from(From value) { return value != From(0); }
};
template <> struct Narrow<f16> {
  template <typename From> static DEVICE f16 from(From value) {
    return f16{float_to_f16(static_cast<float>(value))};
  }
};
template <> struct Narrow<bf16> {
  template <typename From> static DEVICE bf16 from(From value) {
    return bf16{float_to_bf16(static_cast<float>(value))};
  }
};
template <> struct Narrow<i32> {
  template <typename From> static DEVICE i32 from(From value) {
    return static_cast<i32>(whole(value));
  }
};
template <> struct Narrow<i64> {
  template <typename From> static DEVICE i64 from(From value) {
    return static_cast<i64>(whole(value));
  }
};
// A negative or large value wraps, as torch's does: a float goes through an integer that holds it.
template <> struct Narrow<u8> {
  template <typename From> static DEVICE u8 from(From value) {
    return static_cast<u8>(static_cast<i64>(whole(value)));
  }
};
template <> struct Narrow<i8> {
  template <typename From> static DEVICE i8 from(From value) {
    return static_cast<i8>(static_cast<i32>(whole(value)));
  }
};
template <> struct Narrow<i16> {
  template <typename From> static DEVICE i16 from(From value) {
    return static_cast<i16>(static_cast<i32>(whole(value)));
  }
};

template <typename To, typename From> struct Convert {
  static DEVICE To apply(From value) { return Narrow<To>::from(widen(value)); }
};
// The same type stays bit for bit: a 16-bit NaN keeps its payload.
template <typename T> struct Convert<T, T> {
  static DEVICE T apply(T value) { return value; }
};
// A choice between constants is vectorized and needs no conversion: 1.4 instead of 15.6 ms for the
// gradient of a cross entropy on a CPU.
template <typename To> struct Convert<To, bool> {
  static DEVICE To apply(bool value) { return value ? Narrow<To>::from(1) : Narrow<To>::from(0); }
};
template <> struct Convert<bool, bool> {
  static DEVICE bool apply(bool value) { return value; }
};
template <typename To, typename From> DEVICE To convert(From value) {
  return Convert<To, From>::apply(value);
}
