// provides: relu sign reciprocal frac lerp_ clamp_ threshold_
// needs: device minmax types
template <typename T> DEVICE T relu(T x) {
  if constexpr (is_signed_type<T>) return x < T(0) ? T(0) : x;
  return x;
}
template <typename T> DEVICE T sign(T x) {
  if constexpr (is_signed_type<T>) return static_cast<T>((x > T(0)) - (x < T(0)));
  return static_cast<T>(x != T(0));
}
template <typename T> DEVICE T reciprocal(T x) { return T(1) / x; }
DEVICE float frac(float x) { return x - truncf(x); }
DEVICE double frac(double x) { return x - trunc(x); }
// It starts from the nearer end, so that weight 1 gives `end` exactly.
template <typename T> DEVICE T lerp_(T start, T end, T weight) {
  const T distance = end - start;
  const bool near_start = weight < T(0.5) && weight > T(-0.5);
  return near_start ? start + weight * distance : end - distance * (T(1) - weight);
}
template <typename T> DEVICE T clamp_(T x, T low, T high) {
  return minimum(maximum(x, low), high);
}
template <typename T> DEVICE T threshold_(T x, T limit, T value) { return x <= limit ? value : x; }
