// provides: one_plus_tanh short_tanh
// needs: device
DEVICE float one_plus_tanh(float x) { return 2.0f / (1.0f + expf(-2.0f * x)); }
DEVICE double one_plus_tanh(double x) { return 2.0 / (1.0 + exp(-2.0 * x)); }
// Its error is one of numbers near 1, wherever tanh(x) lies: trace/rewrites/approximate.py.
DEVICE float short_tanh(float x) { return one_plus_tanh(x) - 1.0f; }
