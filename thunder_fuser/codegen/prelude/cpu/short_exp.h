// provides: short_exp
// needs: device
// For the emulator, which has no instruction for it.
DEVICE float short_exp(float x) { return __builtin_exp2f(x * 1.44269504f); }
