// provides: c_asinh c_asin c_acosh c_acos c_atanh c_atan
// needs: device complex complex_math constants classify
// Computed in double for both types. asinh and acos follow Hull, Fairgrieve and Tang (ACM TOMS 23,
// 1997): with the distances r and s of x + iy from i and -i, the ellipse through it has the half
// axis a = (r + s) / 2, and neither a - 1 nor a - y is computed as a difference of near numbers.
struct Ellipse { double grown, side, height; };  // log(a + sqrt(a*a - 1)), sqrt(a*a - y*y), y
// x and y are >= 0, and small enough to be squared.
DEVICE Ellipse c_ellipse(double x, double y) {
  const double r = hypot(x, y + 1), s = hypot(x, y - 1), half = (r + s) / 2, a = half < 1 ? 1 : half;
  const double beyond = r + (y + 1), within = y <= 1 ? s + (1 - y) : s + (y - 1);
  // x * x / beyond and x * x / within, as two factors, because a square may underflow.
  const double far = x * (x / beyond), near = within == 0 ? 0 : x * (x / within);
  const double above = y <= 1 ? (far + near) / 2 : (far + within) / 2;  // a - 1
  const double edge = y <= 1 ? (x * x / (r + y + 1) + (s + (1 - y))) / 2 : 0;  // a - y
  const double grown = a <= 1.5 ? log1p(above + sqrt(above * (a + 1))) : log(a + sqrt(a * a - 1));
  const double outside = x * sqrt((a + y) * (1 / beyond + (within == 0 ? 0 : 1 / within)) / 2);
  return {grown, y <= 1 ? sqrt((a + y) * edge) : outside, y};
}
DEVICE bool c_is_large(double x, double y) { return !(x < 1e8 && y < 1e8); }
DEVICE c128 c_asinh(c128 z) {
  const double x = fabs(z.re), y = fabs(z.im);
  if (isnan_(z.re) && z.im == 0.0) return z;
  if (isnan_(x + y) && !isinf_(x) && !isinf_(y)) return {x + y, x + y};
  if (x < 1e-9 && y < 1e-9) return z;
  if (c_is_large(x, y))
    return {copysign(c_log_of_size(c128{x, y}) + 0.6931471805599453, z.re),
            copysign(atan2(y, x), z.im)};
  const Ellipse found = c_ellipse(x, y);
  return {copysign(found.grown, z.re), copysign(atan2(found.height, found.side), z.im)};
}
DEVICE c128 c_asin(c128 z) {
  const c128 turned = c_asinh(c128{-z.im, z.re});
  return {turned.im, -turned.re};
}
DEVICE c128 c_acos(c128 z) {
  const double x = fabs(z.re), y = fabs(z.im);
  if (z.re == 0.0 && isnan_(z.im)) return {1.5707963267948966, z.im};
  if (isnan_(x + y) && !isinf_(x) && !isinf_(y)) return {x + y, x + y};
  if (x < 1e-17 && y < 1e-17) return {1.5707963267948966, -z.im};
  if (c_is_large(x, y))
    return {atan2(y, z.re),
            -copysign(c_log_of_size(c128{x, y}) + 0.6931471805599453, z.im)};
  const Ellipse found = c_ellipse(y, x);
  return {atan2(found.side, z.re), -copysign(found.grown, z.im)};
}
DEVICE c128 c_acosh(c128 z) {
  const c128 turned = c_acos(z);
  return {fabs(turned.im), copysign(turned.re, z.im)};
}
DEVICE c128 c_atanh(c128 z) {
  const double x = fabs(z.re), y = fabs(z.im), quarter = copysign(1.5707963267948966, z.im);
  if (isinf_(z.im)) return {copysign(0.0, z.re), quarter};
  if (isinf_(z.re)) return {copysign(0.0, z.re), isnan_(z.im) ? z.im : quarter};
  if (isnan_(z.im) && z.re == 0.0) return z;
  if (isnan_(x + y)) return {x + y, x + y};
  if (z.im == 0.0 && x <= 1.0) return {atanh(z.re), z.im};
  if (x < 1e-9 && y < 1e-9) return z;
  if (c_is_large(x, y)) {
    const double size = hypot(x / 2, y / 2);
    return {copysign(x / size / size / 4, z.re), quarter - copysign(y / size / size / 4, z.im)};
  }
  const double rest = 1 - x, small = y < 1e-150 ? 0.0 : y * y;
  const bool at_pole = rest == 0.0 && y < 1e-9;
  const double re = at_pole ? (0.6931471805599453 - log(y)) / 2
                            : log1p(4 * x / (rest * rest + small)) / 4;
  const double im = atan2(2 * y, rest * (1 + x) - small) / 2;
  return {copysign(re, z.re), copysign(im, z.im)};
}
DEVICE c128 c_atan(c128 z) {
  const c128 turned = c_atanh(c128{-z.im, z.re});
  return {turned.im, -turned.re};
}
DEVICE c64 c_asinh(c64 z) { return convert<c64>(c_asinh(convert<c128>(z))); }
DEVICE c64 c_asin(c64 z) { return convert<c64>(c_asin(convert<c128>(z))); }
DEVICE c64 c_acosh(c64 z) { return convert<c64>(c_acosh(convert<c128>(z))); }
DEVICE c64 c_acos(c64 z) { return convert<c64>(c_acos(convert<c128>(z))); }
DEVICE c64 c_atanh(c64 z) { return convert<c64>(c_atanh(convert<c128>(z))); }
DEVICE c64 c_atan(c64 z) { return convert<c64>(c_atan(convert<c128>(z))); }
