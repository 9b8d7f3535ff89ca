// provides: isnan_ isfinite_ isinf_ isposinf_ isneginf_
// needs: device
// Infinity is the one value that equals itself and whose difference from itself does not.
template <typename T> DEVICE bool isnan_(T x) { return x != x; }
template <typename T> DEVICE bool isfinite_(T x) { return x - x == 0; }
template <typename T> DEVICE bool isinf_(T x) { return x == x && x - x != 0; }
template <typename T> DEVICE bool isposinf_(T x) { return isinf_(x) && x > T(0); }
template <typename T> DEVICE bool isneginf_(T x) { return isinf_(x) && !(x > T(0)); }
