// provides: round_even nextafter_ rsqrt_ mul_add
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE float round_even(float x) { return rintf(x); }
DEVICE double round_even(double x) { return rint(x); }
DEVICE float nextafter_(float x, float y) { return nextafterf(x, y); }
DEVICE double nextafter_(double x, double y) { return nextafter(x, y); }
DEVICE float rsqrt_(float x) { return rsqrtf(x); }
DEVICE double rsqrt_(double x) { return rsqrt(x); }
// Rounds twice, where NVRTC would fuse both operations: so every target has the same bits.
DEVICE float mul_add(float x, float y, float z) { return __fadd_rn(__fmul_rn(x, y), z); }
DEVICE double mul_add(double x, double y, double z) { return __dadd_rn(__dmul_rn(x, y), z); }
#endif
