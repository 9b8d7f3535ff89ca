// provides: round_even nextafter_ rsqrt_ mul_add
// needs: device
DEVICE float round_even(float x) { return __builtin_rintf(x); }
DEVICE double round_even(double x) { return __builtin_rint(x); }
DEVICE float nextafter_(float x, float y) { return __builtin_nextafterf(x, y); }
DEVICE double nextafter_(double x, double y) { return __builtin_nextafter(x, y); }
DEVICE float rsqrt_(float x) { return 1.0f / __builtin_sqrtf(x); }
DEVICE double rsqrt_(double x) { return 1.0 / __builtin_sqrt(x); }
DEVICE float mul_add(float x, float y, float z) { return x * y + z; }
DEVICE double mul_add(double x, double y, double z) { return x * y + z; }
