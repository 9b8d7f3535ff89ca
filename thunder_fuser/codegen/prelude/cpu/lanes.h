// provides: same_lanes
// needs:
// A math function gives the same bits in every loop: libmvec's versions for 4, 8 and 16 lanes
// differ, and libm's, which would compute the end of a row, differs from all. Here all are the
// widest version that the machine has (libm.py writes them, one for each number of lanes).
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
template <typename W, typename V> inline W repeated(V x) {
  W wide;
  for (unsigned long at = 0; at < sizeof(W); at += sizeof(V))
    __builtin_memcpy(reinterpret_cast<char*>(&wide) + at, &x, sizeof(V));
  return wide;
}
template <typename V, typename W> inline V same_lanes(W (*f)(W), V x) {
  const W wide = f(repeated<W>(x));
  __builtin_memcpy(&x, &wide, sizeof(V));
  return x;
}
template <typename V, typename W> inline V same_lanes(W (*f)(W, W), V x, V y) {
  const W wide = f(repeated<W>(x), repeated<W>(y));
  __builtin_memcpy(&x, &wide, sizeof(V));
  return x;
}
