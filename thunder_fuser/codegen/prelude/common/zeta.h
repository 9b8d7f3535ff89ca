// provides: zeta_
// needs: device constants
// Hurwitz' sum of (q + n)^-x: the first terms one by one, the rest by Euler and Maclaurin. Infinite
// at x = 1 and at integers q <= 0; NaN below x = 1, and for a negative base with a fractional x.
DEVICE double zeta_(double x, double q) {
  if (x == 1.0) return infinity<double>();
  if (x < 1.0) return not_a_number<double>();
  if (q <= 0.0) {
    if (q == floor(q)) return infinity<double>();
    if (x != floor(x)) return not_a_number<double>();
  }
  const double smallest = 1.1102230246251565e-16;
  double sum = pow(q, -x), term = 0.0;
  for (int n = 0; n < 9 || q <= 9.0; ++n) {
    q += 1.0;
    term = pow(q, -x);
    sum += term;
    if (fabs(term) < smallest * fabs(sum)) return sum;
  }
  sum += term * q / (x - 1.0) - 0.5 * term;
  // The Bernoulli number of 2k over (2k)!.
  const double numbers[12] = {
      0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07,
      2.08767569878681e-08, -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13,
      8.586062056277845e-15, -2.174868698558062e-16, 5.5090028283602295e-18, -1.3954464685812522e-19};
  double factor = x * term / q;
  for (int k = 0; k < 12; ++k) {
    const double part = factor * numbers[k];
    sum += part;
    if (fabs(part) < smallest * fabs(sum)) return sum;
    factor *= (x + (2 * k + 1)) * (x + (2 * k + 2)) / (q * q);
  }
  return sum;
}
DEVICE float zeta_(float x, float q) {
  return static_cast<float>(zeta_(static_cast<double>(x), static_cast<double>(q)));
}
