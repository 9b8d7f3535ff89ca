// provides: by_count over_count
// needs: device vec fma
// a / n, rounded as a division is, for many a and one count n: a multiplication and two fused steps.
// by_count(n) is (n, 1 / n), and n is above 2. So the mean of equal values is that value, wherever
// their sum is exact, and they vary by 0; a * (1 / n) alone is up to two units beside it. The last
// step cannot be contracted with a subtraction that reads the mean. What is left over is 0 for an
// exact quotient, which keeps its sign, and NaN for an infinite one.
DEVICE Vec<float, 2> by_count(float n) { return Vec<float, 2>{{n, 1.0f / n}}; }
DEVICE float over_count(float a, Vec<float, 2> by) {
  const float near = a * by.v[1];
  const float left = fused(-near, by.v[0], a);
  return left < 0.0f || left > 0.0f ? fused(left, by.v[1], near) : near;
}
