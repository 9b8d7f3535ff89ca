// provides: reduce_rows
// needs: device shared shuffle words
// Reduces N values in shared memory in reduce_x's order for a row: LANES threads take vectors of
// WIDTH in turn, then a butterfly. Every LANES threads of the block do so, and get the same bits.
template <class Op, int N, int WIDTH, int LANES, typename T, typename W>
DEVICE T reduce_rows(Shared<W> rows, T value) {
  const int lane = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % LANES;
#pragma unroll
  for (int first = 0; first < N; first += LANES * WIDTH)
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const int at = first + lane * WIDTH + i;
      if (at < N) value = Op::apply(value, from_word<T>(rows.get(at)));
    }
#pragma unroll
  for (int mask = LANES / 2; mask > 0; mask /= 2)
    value = Op::apply(value, shfl_xor<T>(value, mask, LANES));
  return value;
}
