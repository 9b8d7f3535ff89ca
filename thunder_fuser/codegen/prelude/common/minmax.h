// provides: maximum minimum
// needs: device
// A NaN on either side is the result.
template <typename T> DEVICE T maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
template <typename T> DEVICE T minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
