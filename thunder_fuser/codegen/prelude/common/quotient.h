// provides: divisor quotient
// needs: device vec
// a / b, to one unit in the last place, for many a and one b: two multiplications instead of a
// division each. divisor(b) is (scale, 1 / (b * scale)). With the scale the reciprocal neither
// overflows nor underflows, and a * scale does so only where a / b does.
DEVICE Vec<float, 2> divisor(float b) {
  const float size = b < 0.0f ? -b : b;
  const float scale = size < 0x1p-64f ? 0x1p64f : (size > 0x1p64f ? 0x1p-64f : 1.0f);
  return Vec<float, 2>{{scale, 1.0f / (b * scale)}};
}
DEVICE float quotient(float a, Vec<float, 2> by) { return a * by.v[0] * by.v[1]; }
