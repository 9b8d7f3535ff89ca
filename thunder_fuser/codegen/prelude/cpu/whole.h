// provides: whole
// needs: device
// A float before it becomes an integer. With -fno-trapping-math gcc takes the float of the integer
// of a float for trunc, which is -0.0 for -0.5; this sum is 0.0.
template <typename T> DEVICE T whole(T value) { return value; }
DEVICE float whole(float value) { return __builtin_truncf(value) + 0.0f; }
DEVICE double whole(double value) { return __builtin_trunc(value) + 0.0; }
