// provides: same_lanes
// needs:
// A math function must give the same bits in every loop. But libmvec's versions for 4, 8 and 16
// lanes differ, and libm's, which would compute the end of a row, differs from all. So all versions
// call the widest one that the machine has (libm.py writes one for each number of lanes).
#if defined(__AVX512F__)
#define WIDEST 64
#define WIDEST_OF(b, d, e) "_ZGVeN" #e
#elif defined(__AVX2__)
#define WIDEST 32
#define WIDEST_OF(b, d, e) "_ZGVdN" #d
#elif defined(__AVX__)
#define WIDEST 32
#define WIDEST_OF(b, d, e) "_ZGVcN" #d
#else
#define WIDEST 16
#define WIDEST_OF(b, d, e) "_ZGVbN" #b
#endif
#define LANES_OF(T, BYTES) typedef T T##BYTES __attribute__((vector_size(BYTES)))
LANES_OF(float, 16); LANES_OF(float, 32); LANES_OF(float, 64);
LANES_OF(double, 16); LANES_OF(double, 32); LANES_OF(double, 64);
typedef float widest_float __attribute__((vector_size(WIDEST)));
typedef double widest_double __attribute__((vector_size(WIDEST)));
#define CALLED extern "C" __attribute__((simd("notinbranch"), const, nothrow))
#define MADE extern "C" __attribute__((used, noinline, visibility("hidden")))
// It stays in registers: a wide load of two narrow stores would wait for both to reach the cache.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define DOUBLED(V, W, ...) inline W doubled(V x) { return __builtin_shufflevector(x, x, __VA_ARGS__); }
#endif
#endif
#ifndef DOUBLED
#define DOUBLED(V, W, ...) inline W doubled(V x) { \
    W wide; \
    for (unsigned at = 0; at < 2; ++at) __builtin_memcpy(reinterpret_cast<V*>(&wide) + at, &x, sizeof(V)); \
    return wide; \
  }
#endif
DOUBLED(float16, float32, 0, 1, 2, 3, 4, 5, 6, 7)
DOUBLED(float32, float64, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
DOUBLED(double16, double32, 0, 1, 2, 3)
DOUBLED(double32, double64, 0, 1, 2, 3, 4, 5, 6, 7)
template <typename W> inline W repeated(float x) { return x - W{}; }  // -0.0 too
template <typename W> inline W repeated(double x) { return x - W{}; }
template <typename W, typename V> inline W repeated(V x) {
  if constexpr (sizeof(W) == sizeof(V)) return x;
  else return repeated<W>(doubled(x));
}
template <typename V, typename W> inline V same_lanes(W (*f)(W), V x) {
  const W wide = f(repeated<W>(x));
  __builtin_memcpy(&x, &wide, sizeof(V));
  return x;
}
// For an f that is 0 below `least`.
template <typename V, typename W, typename T> inline V same_lanes(W (*f)(W), V x, T least) {
  const V y = same_lanes(f, x < least ? V{} : x);
  return x < least ? V{} : y;
}
template <typename V, typename W> inline V same_lanes(W (*f)(W, W), V x, V y) {
  const W wide = f(repeated<W>(x), repeated<W>(y));
  __builtin_memcpy(&x, &wide, sizeof(V));
  return x;
}
