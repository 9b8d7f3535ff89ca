// provides: short_erf
// needs: device approximate
// erf(|x|) = 1 - t P(t) exp(-x * x) with t = 1 / (1 + 0.4 |x|), in 18 instructions, where erff takes
// 30. P is fitted to an error of 3e-8. Its error is one of numbers near 1: trace/rewrites/approximate.py.
DEVICE float short_erf(float x) {
  const float t = approximate_reciprocal(0.4f * fabsf(x) + 1.0f);
  float p = t * -0.20025736f + 0.70913977f;
  p = t * p - 0.37089592f;
  p = t * p + 0.46826467f;
  p = t * p + 0.16182729f;
  p = t * p + 0.23192151f;
  const float rest = t * p * approximate_exp2(x * x * -1.44269504f);
  return copysignf(1.0f - rest, x);
}
