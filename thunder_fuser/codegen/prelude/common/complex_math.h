// provides: c_abs c_exp c_log c_log2 c_sqrt c_sin c_cos c_sinh c_cosh c_tan c_tanh c_sigmoid
// needs: device complex constants classify
// Computed in double for both types, so that no intermediate of a c64 overflows. The results at
// zeros, infinities and NaN are those of the C standard's annex G, whose functions torch calls.
// x * y, but 0 times infinity or NaN is 0, with the sign of the product.
DEVICE double c_times(double x, double y) {
  if (x == 0.0 || y == 0.0) return copysign(0.0, copysign(1.0, x) * copysign(1.0, y));
  return x * y;
}
// cos(angle), as a factor beside a function of x: 1 if x is infinite and the angle is not finite.
DEVICE double c_cos_beside(double x, double angle) {
  return isinf_(x) && !isfinite_(angle) ? 1.0 : cos(angle);
}
DEVICE double c_abs(c128 z) {
  if (isinf_(z.re) || isinf_(z.im)) return infinity<double>();
  return hypot(z.re, z.im);
}
// exp(x) is multiplied as two factors, because it may overflow where exp(x) * sin(y) does not.
DEVICE c128 c_exp(c128 z) {
  const bool large = z.re > 700.0;
  const double first = exp(large ? z.re - 700.0 : z.re), then = large ? exp(700.0) : 1.0;
  if (isneginf_(z.re) && !isfinite_(z.im)) return {0.0, copysign(0.0, z.im)};
  if (z.im == 0.0) return {first * then, z.im};
  return {first * c_cos_beside(z.re, z.im) * then, first * sin(z.im) * then};
}
// Near size 1 it uses the size minus 1, which the logarithm of the rounded size would lose.
DEVICE double c_log_of_size(c128 z) {
  const double x = fabs(z.re), y = fabs(z.im), most = x > y ? x : y, least = x > y ? y : x;
  if (!(most < infinity<double>())) return log(c_abs(z));
  if (most > 0.5 && most < 2.0) return log1p((most - 1.0) * (most + 1.0) + least * least) / 2;
  if (most > 1e300) return log(hypot(x / 4, y / 4)) + 1.3862943611198906;
  return log(hypot(x, y));
}
DEVICE c128 c_log(c128 z) { return {c_log_of_size(z), atan2(z.im, z.re)}; }
DEVICE c128 c_log2(c128 z) {
  const c128 found = c_log(z);
  return {found.re * 1.4426950408889634, found.im * 1.4426950408889634};
}
DEVICE c128 c_sigmoid(c128 z) {
  const c128 power = c_exp(c128{-z.re, -z.im});
  return c128{1.0, 0.0} / c128{1.0 + power.re, power.im};
}
// It scales z by an even power of two where a square would overflow, or lose its last digits.
DEVICE c128 c_sqrt(c128 z) {
  if (isinf_(z.im)) return {infinity<double>(), z.im};
  if (z.re == 0.0 && z.im == 0.0) return {0.0, z.im};
  const double most = fabs(z.re) > fabs(z.im) ? fabs(z.re) : fabs(z.im);
  const double scale = most > 0x1p1000 ? 0x1p-4 : (most < 0x1p-900 ? 0x1p200 : 1.0);
  const double back = most > 0x1p1000 ? 0x1p2 : (most < 0x1p-900 ? 0x1p-100 : 1.0);
  const double re = z.re * scale, im = z.im * scale;
  const double half = sqrt((fabs(re) + hypot(re, im)) / 2), other = fabs(im) / (2 * half);
  const double rest = isinf_(re) && isfinite_(im) ? 0.0 : other;
  if (!(z.re < 0.0)) return {half * back, copysign(rest * back, z.im)};
  return {rest * back, copysign(half * back, z.im)};
}
DEVICE c128 c_sinh(c128 z) {
  return {c_times(sinh(z.re), c_cos_beside(z.re, z.im)), c_times(cosh(z.re), sin(z.im))};
}
DEVICE c128 c_cosh(c128 z) {
  return {cosh(z.re) * c_cos_beside(z.re, z.im), c_times(sinh(z.re), sin(z.im))};
}
DEVICE c128 c_sin(c128 z) {
  const c128 turned = c_sinh(c128{-z.im, z.re});
  return {turned.im, -turned.re};
}
DEVICE c128 c_cos(c128 z) { return c_cosh(c128{-z.im, z.re}); }
// Beyond 20 the real part is 1 to the last bit, and cosh would overflow further on.
DEVICE c128 c_tanh(c128 z) {
  if (!isfinite_(z.im) && !isinf_(z.re)) return {z.re == 0.0 ? z.re : z.im - z.im, z.im - z.im};
  const double sine = isfinite_(z.im) ? sin(z.im) : copysign(1.0, z.im);
  const double cosine = isfinite_(z.im) ? cos(z.im) : 1.0;
  if (fabs(z.re) > 20.0)
    return {copysign(1.0, z.re), 4 * sine * cosine * exp(-2 * fabs(z.re))};
  const double grown = sinh(z.re), below = grown * grown + cosine * cosine;
  return {grown * cosh(z.re) / below, c_times(sine, cosine / below)};
}
DEVICE c128 c_tan(c128 z) {
  const c128 turned = c_tanh(c128{-z.im, z.re});
  return {turned.im, -turned.re};
}
DEVICE float c_abs(c64 z) { return static_cast<float>(c_abs(convert<c128>(z))); }
DEVICE c64 c_exp(c64 z) { return convert<c64>(c_exp(convert<c128>(z))); }
DEVICE c64 c_log(c64 z) { return convert<c64>(c_log(convert<c128>(z))); }
DEVICE c64 c_log2(c64 z) { return convert<c64>(c_log2(convert<c128>(z))); }
DEVICE c64 c_sigmoid(c64 z) { return convert<c64>(c_sigmoid(convert<c128>(z))); }
DEVICE c64 c_sinh(c64 z) { return convert<c64>(c_sinh(convert<c128>(z))); }
DEVICE c64 c_cosh(c64 z) { return convert<c64>(c_cosh(convert<c128>(z))); }
DEVICE c64 c_sqrt(c64 z) { return convert<c64>(c_sqrt(convert<c128>(z))); }
DEVICE c64 c_sin(c64 z) { return convert<c64>(c_sin(convert<c128>(z))); }
DEVICE c64 c_cos(c64 z) { return convert<c64>(c_cos(convert<c128>(z))); }
DEVICE c64 c_tanh(c64 z) { return convert<c64>(c_tanh(convert<c128>(z))); }
DEVICE c64 c_tan(c64 z) { return convert<c64>(c_tan(convert<c128>(z))); }
