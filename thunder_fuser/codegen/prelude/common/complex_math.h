// provides: c_abs c_exp c_log c_sqrt c_sin c_cos c_tan c_tanh
// needs: device complex
// Computed in double for both types, so that no intermediate of a c64 overflows.
DEVICE double c_abs(c128 z) { return hypot(z.re, z.im); }
DEVICE c128 c_exp(c128 z) {
  const double size = exp(z.re);
  if (z.im == 0.0) return {size, z.im};
  return {size * cos(z.im), size * sin(z.im)};
}
DEVICE c128 c_log(c128 z) { return {log(hypot(z.re, z.im)), atan2(z.im, z.re)}; }
DEVICE c128 c_sqrt(c128 z) {
  if (z.re == 0.0 && z.im == 0.0) return {0.0, z.im};
  const double half = sqrt((fabs(z.re) + hypot(z.re, z.im)) / 2);
  if (z.re >= 0.0) return {half, z.im / (2 * half)};
  return {fabs(z.im) / (2 * half), copysign(half, z.im)};
}
DEVICE c128 c_sin(c128 z) { return {sin(z.re) * cosh(z.im), cos(z.re) * sinh(z.im)}; }
DEVICE c128 c_cos(c128 z) { return {cos(z.re) * cosh(z.im), -(sin(z.re) * sinh(z.im))}; }
// Beyond 20 the real part is 1 to the last bit, and cosh would overflow further on.
DEVICE c128 c_tanh(c128 z) {
  if (fabs(z.re) > 20.0)
    return {copysign(1.0, z.re), 4 * sin(z.im) * cos(z.im) * exp(-2 * fabs(z.re))};
  const double below = cosh(2 * z.re) + cos(2 * z.im);
  return {sinh(2 * z.re) / below, sin(2 * z.im) / below};
}
DEVICE c128 c_tan(c128 z) {
  const c128 turned = c_tanh(c128{-z.im, z.re});
  return {turned.im, -turned.re};
}
DEVICE float c_abs(c64 z) { return static_cast<float>(c_abs(convert<c128>(z))); }
DEVICE c64 c_exp(c64 z) { return convert<c64>(c_exp(convert<c128>(z))); }
DEVICE c64 c_log(c64 z) { return convert<c64>(c_log(convert<c128>(z))); }
DEVICE c64 c_sqrt(c64 z) { return convert<c64>(c_sqrt(convert<c128>(z))); }
DEVICE c64 c_sin(c64 z) { return convert<c64>(c_sin(convert<c128>(z))); }
DEVICE c64 c_cos(c64 z) { return convert<c64>(c_cos(convert<c128>(z))); }
DEVICE c64 c_tanh(c64 z) { return convert<c64>(c_tanh(convert<c128>(z))); }
DEVICE c64 c_tan(c64 z) { return convert<c64>(c_tan(convert<c128>(z))); }
