// provides: approximate_exp2 approximate_reciprocal
// needs: device
// For the emulator, which has no instructions for them.
DEVICE float approximate_exp2(float x) { return __builtin_exp2f(x); }
DEVICE float approximate_reciprocal(float x) { return 1.0f / x; }
