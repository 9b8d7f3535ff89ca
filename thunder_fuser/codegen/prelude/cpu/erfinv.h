// provides: erfinv_ erfcinv_
// needs: device
// y with erfc(y) = p (and erf(y) = 1 - p, |1 - p| exact where p is small): a closed guess good to
// three digits, then Halley steps on the smaller of the two tails, which lose no digits.
inline double erfc_inverse_tail(double p) {
  if (!(p > 0.0)) return p == 0.0 ? __builtin_huge_val() : __builtin_nan("");
  const double a = 0.147, log_term = __builtin_log(p * (2.0 - p));
  const double half = 2.0 / (3.14159265358979323846 * a) + log_term / 2.0;
  const double root = __builtin_sqrt(half * half - log_term / a) - half;
  double y = __builtin_sqrt(root > 0.0 ? root : 0.0);
  for (int step = 0; step < 4; ++step) {
    const double slope = 1.12837916709551257390 * __builtin_exp(-y * y);
    const double error = (__builtin_erfc(y) - p) / slope;
    y += error / (1.0 - y * error);
  }
  return y;
}
inline double erf_inverse_middle(double x) {
  const double a = 0.147, log_term = __builtin_log1p(-x * x);
  const double half = 2.0 / (3.14159265358979323846 * a) + log_term / 2.0;
  double y = __builtin_copysign(__builtin_sqrt(__builtin_sqrt(half * half - log_term / a) - half), x);
  for (int step = 0; step < 3; ++step) {
    const double slope = 1.12837916709551257390 * __builtin_exp(-y * y);
    const double error = (__builtin_erf(y) - x) / slope;
    y -= error / (1.0 + y * error);
  }
  return y;
}
inline double erfinv_(double x) {
  if (x > -0.5 && x < 0.5) return x == 0.0 ? x : erf_inverse_middle(x);
  return x < 0.0 ? -erfc_inverse_tail(1.0 + x) : erfc_inverse_tail(1.0 - x);
}
inline double erfcinv_(double x) {
  if (x > 0.5 && x < 1.5) return erfinv_(1.0 - x);
  return x > 1.0 ? -erfc_inverse_tail(2.0 - x) : erfc_inverse_tail(x);
}
inline float erfinv_(float x) { return static_cast<float>(erfinv_(static_cast<double>(x))); }
inline float erfcinv_(float x) { return static_cast<float>(erfcinv_(static_cast<double>(x))); }
