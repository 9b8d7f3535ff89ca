// provides: Sum Prod Max Min
// needs: device minmax
struct Sum {
  template <typename T> static DEVICE T apply(T a, T b) { return static_cast<T>(a + b); }
};
struct Prod {
  template <typename T> static DEVICE T apply(T a, T b) { return static_cast<T>(a * b); }
};
struct Max {
  template <typename T> static DEVICE T apply(T a, T b) { return maximum(a, b); }
};
struct Min {
  template <typename T> static DEVICE T apply(T a, T b) { return minimum(a, b); }
};
