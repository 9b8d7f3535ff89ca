// provides: reduce_cluster open_gates
// needs: device cluster power_of_two shared shuffle words
// Reduces over threadIdx.x of all blocks of a cluster. Each warp sends its part to every block; when
// all parts have arrived, each thread adds them in the same order. There are two sets of parts and
// gates, used in turn: a block that sends its next part may not have read the last set yet.
template <int BX, int CLUSTER, typename W>
DEVICE void open_gates(Shared<W>, Shared<i64> gates, int gate) {
  if (threadIdx.x == 0)
    for (int slot = 0; slot < 2; ++slot)
      open_gate(gates, 2 * gate + slot, BX / 32 * CLUSTER * static_cast<int>(sizeof(W)), true);
}
template <class Op, int BX, int CLUSTER, typename T, typename W>
DEVICE T reduce_cluster(T value, Shared<W> parts, Shared<i64> gates, int gate, int turn) {
  constexpr int WARPS = BX / 32, COUNT = WARPS * CLUSTER;
  constexpr int WIDTH = power_of_two_below(COUNT < 32 ? COUNT : 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int slot = turn % 2, first = slot * COUNT, k = 2 * gate + slot;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value = Op::apply(value, shfl_xor<T>(value, mask, 32));
  if (lane < CLUSTER) {
    const int place = first + static_cast<int>(blockIdx.y) * WARPS + warp;
    put_to_peer(parts, lane, place, to_word<W>(value), gates, k);
  }
  wait_gate(gates, k, turn / 2 % 2);
  if (threadIdx.x == 0) open_gate(gates, k, COUNT * static_cast<int>(sizeof(W)), false);
  value = from_word<T>(parts.get(first + lane % WIDTH));
#pragma unroll
  for (int i = WIDTH; i < COUNT; i += WIDTH)
    if (i + WIDTH <= COUNT || i + lane % WIDTH < COUNT)
      value = Op::apply(value, from_word<T>(parts.get(first + i + lane % WIDTH)));
#pragma unroll
  for (int mask = WIDTH / 2; mask > 0; mask /= 2)
    value = Op::apply(value, shfl_xor<T>(value, mask, WIDTH));
  return value;
}
