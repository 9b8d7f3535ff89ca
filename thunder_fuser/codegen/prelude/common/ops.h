// provides: Sum Prod Max Min
// needs: device minmax wrapping
struct Sum {
  template <typename T> static DEVICE T apply(T a, T b) { return wrap_add(a, b); }
};
struct Prod {
  template <typename T> static DEVICE T apply(T a, T b) { return wrap_mul(a, b); }
};
struct Max {
  template <typename T> static DEVICE T apply(T a, T b) { return maximum(a, b); }
};
struct Min {
  template <typename T> static DEVICE T apply(T a, T b) { return minimum(a, b); }
};
