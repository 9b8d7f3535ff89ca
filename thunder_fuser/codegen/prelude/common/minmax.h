// provides: maximum minimum
// needs: device float_minmax
// A NaN on either side is the result.
template <typename T> DEVICE T maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
template <typename T> DEVICE T minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
DEVICE float maximum(float a, float b) { return float_max(a, b); }
DEVICE float minimum(float a, float b) { return float_min(a, b); }
