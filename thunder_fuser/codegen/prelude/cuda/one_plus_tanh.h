// provides: one_plus_tanh short_tanh
// needs: device approximate
// 2 / (1 + 2**(-2 * log2(e) * x)) in 5 instructions, where 1 + tanhf(x) takes 16. For x < 0 the
// rounding of the product shows: 2|x| units in the last place of a number near 0, where 1 + tanhf(x)
// has the rounding of numbers near 1.
DEVICE float half_of_one_plus_tanh(float x) {
  return approximate_reciprocal(1.0f + approximate_exp2(x * -2.885390081777927f));
}
DEVICE float one_plus_tanh(float x) { return half_of_one_plus_tanh(x) * 2.0f; }
DEVICE double one_plus_tanh(double x) { return 2.0 / (1.0 + exp(-2.0 * x)); }
// Its error is one of numbers near 1, wherever tanh(x) lies: trace/rewrites/approximate.py.
DEVICE float short_tanh(float x) { return half_of_one_plus_tanh(x) * 2.0f - 1.0f; }
