// provides: digamma_
// needs: device constants
// The derivative of log(gamma): reflected to x > 0, shifted to x >= 10, then an asymptotic series.
// -inf at 0 (inf at -0), NaN at the other poles.
DEVICE double digamma_(double x) {
  if (x == 0.0) return -1.0 / x;
  double sum = 0.0;
  if (x < 0.0) {
    const double rest = x - trunc(x);
    if (!(rest != 0.0)) return not_a_number<double>();
    sum = -3.14159265358979323846 / tan(3.14159265358979323846 * rest);
    x = 1.0 - x;
  }
  for (; x < 10.0; x += 1.0) sum -= 1.0 / x;
  const double y = 1.0 / (x * x);
  const double even = 1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132
      - y * (691.0 / 32760 - y / 12)))));
  return sum + (log(x) - 0.5 / x - y * even);
}
DEVICE float digamma_(float x) { return static_cast<float>(digamma_(static_cast<double>(x))); }
