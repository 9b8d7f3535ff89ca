// provides: reduce_x
// needs: device block power_of_two shared shuffle
// Over threadIdx.x, for each threadIdx.y. Every thread of a row ends with the same bits: a butterfly
// applies Op to the same pairs in every lane, and Op is commutative.
template <class Op, int BX, int BY, typename T>
DEVICE T reduce_x(T value, Shared<T> scratch) {
  constexpr int WIDTH = BX < 32 ? BX : 32;
#pragma unroll
  for (int mask = WIDTH / 2; mask > 0; mask /= 2)
    value = Op::apply(value, shfl_xor<T>(value, mask, WIDTH));
  if constexpr (BX > 32) {
    constexpr int WARPS = BX / 32;
    const int first = static_cast<int>(threadIdx.y) * WARPS;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sync_threads();  // the scratch may still be read by the reduction before this one
    if (lane == 0) scratch.put(first + static_cast<int>(threadIdx.x) / 32, value);
    sync_threads();
    constexpr int PARTS = power_of_two_below(WARPS);
    value = scratch.get(first + lane % PARTS);
    if (PARTS < WARPS && lane % PARTS + PARTS < WARPS)
      value = Op::apply(value, scratch.get(first + lane % PARTS + PARTS));
#pragma unroll
    for (int mask = PARTS / 2; mask > 0; mask /= 2)
      value = Op::apply(value, shfl_xor<T>(value, mask, PARTS));
  }
  return value;
}
