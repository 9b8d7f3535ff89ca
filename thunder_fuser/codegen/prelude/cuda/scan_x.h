// provides: scan_x
// needs: device block shared shuffle
// An inclusive scan in the order of the row: first the carry, which every thread of the row holds,
// then the N values of each thread along threadIdx.x. The order of operations is fixed, so the same
// values give the same bits.
template <class Op, int BX, int BY, int N, typename T>
DEVICE void scan_x(T (&values)[N], T& carry, Shared<T> scratch) {
  constexpr int WIDTH = BX < 32 ? BX : 32;
  const int lane = static_cast<int>(threadIdx.x) % WIDTH;
#pragma unroll
  for (int k = 1; k < N; ++k) values[k] = Op::apply(values[k - 1], values[k]);
  T upto = values[N - 1];  // of this thread and those before it in the warp
#pragma unroll
  for (int step = 1; step < WIDTH; step *= 2) {
    const T other = shfl_idx<T>(upto, lane >= step ? lane - step : lane, WIDTH);
    if (lane >= step) upto = Op::apply(other, upto);
  }
  const T before = shfl_idx<T>(upto, lane > 0 ? lane - 1 : 0, WIDTH);
  T start = carry;
  if constexpr (BX > 32) {
    constexpr int WARPS = BX / 32;
    const int first = static_cast<int>(threadIdx.y) * WARPS;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    sync_threads();  // the scratch may still be read by what came before
    if (lane == 31) scratch.put(first + warp, upto);
    sync_threads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      carry = Op::apply(carry, scratch.get(first + w));
      if (w + 1 == warp) start = carry;
    }
  } else {
    carry = Op::apply(carry, shfl_idx<T>(upto, WIDTH - 1, WIDTH));
  }
  if (lane > 0) start = Op::apply(start, before);
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = Op::apply(start, values[k]);
}
