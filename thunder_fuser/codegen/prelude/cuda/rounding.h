// provides: round_even nextafter_ rsqrt_
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE float round_even(float x) { return rintf(x); }
DEVICE double round_even(double x) { return rint(x); }
DEVICE float nextafter_(float x, float y) { return nextafterf(x, y); }
DEVICE double nextafter_(double x, double y) { return nextafter(x, y); }
DEVICE float rsqrt_(float x) { return rsqrtf(x); }
DEVICE double rsqrt_(double x) { return rsqrt(x); }
#endif
