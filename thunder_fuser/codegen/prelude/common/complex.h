// provides: c64 c128
// needs: device convert
template <typename T> struct alignas(2 * sizeof(T)) Complex { T re, im; };
typedef Complex<float> c64;
typedef Complex<double> c128;
template <typename T> DEVICE Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <typename T> DEVICE Complex<T> operator-(Complex<T> a, Complex<T> b) {
  return {a.re - b.re, a.im - b.im};
}
template <typename T> DEVICE Complex<T> operator-(Complex<T> a) { return {-a.re, -a.im}; }
template <typename T> DEVICE Complex<T> operator*(Complex<T> a, Complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Smith's division: no square of a large part, which would overflow. By 0, of any signs: by 0.0.
template <typename T> DEVICE Complex<T> operator/(Complex<T> a, Complex<T> b) {
  const T re = b.re < T(0) ? -b.re : b.re, im = b.im < T(0) ? -b.im : b.im;
  if (re == T(0) && im == T(0)) return {a.re / T(0), a.im / T(0)};
  if (re >= im) {
    const T ratio = b.im / b.re, scale = b.re + b.im * ratio;
    return {(a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale};
  }
  const T ratio = b.re / b.im, scale = b.re * ratio + b.im;
  return {(a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale};
}
template <typename T> DEVICE bool operator==(Complex<T> a, Complex<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <typename T> DEVICE bool operator!=(Complex<T> a, Complex<T> b) { return !(a == b); }

template <typename T, typename From> struct Convert<Complex<T>, From> {
  static DEVICE Complex<T> apply(From value) { return {convert<T>(value), T(0)}; }
};
template <typename T> struct Convert<Complex<T>, bool> {
  static DEVICE Complex<T> apply(bool value) { return {convert<T>(value), T(0)}; }
};
template <typename T, typename From> struct Convert<Complex<T>, Complex<From>> {
  static DEVICE Complex<T> apply(Complex<From> value) {
    return {static_cast<T>(value.re), static_cast<T>(value.im)};
  }
};
template <typename T> struct Convert<Complex<T>, Complex<T>> {
  static DEVICE Complex<T> apply(Complex<T> value) { return value; }
};
// To a real type the imaginary part is dropped; to bool it counts.
template <typename To, typename From> struct Convert<To, Complex<From>> {
  static DEVICE To apply(Complex<From> value) { return convert<To>(value.re); }
};
template <typename From> struct Convert<bool, Complex<From>> {
  static DEVICE bool apply(Complex<From> value) {
    return value.re != From(0) || value.im != From(0);
  }
};
