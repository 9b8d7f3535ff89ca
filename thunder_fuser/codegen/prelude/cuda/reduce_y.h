// provides: reduce_y
// needs: device block shared shuffle
// Reduces N values over threadIdx.y, for each threadIdx.x: a butterfly in each warp that has several
// rows, then a tree in shared memory, whose root all threads read. All N values take each step
// together, so there is one barrier a step, not N.
template <class Op, int BX, int BY, int N, typename T>
DEVICE void reduce_y(T* values, Shared<T> scratch) {
  constexpr int ALIKE = BX < 32 && 32 % BX == 0 && BY % (32 / BX) == 0 ? 32 / BX : 1;
#pragma unroll
  for (int mask = BX; mask < BX * ALIKE; mask *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      values[i] = Op::apply(values[i], shfl_xor<T>(values[i], mask, 32));
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y) / ALIKE;
  const bool is_first = static_cast<int>(threadIdx.y) % ALIKE == 0;
  sync_threads();  // the scratch may still be read by the reduction before this one
  if (is_first) {
#pragma unroll
    for (int i = 0; i < N; ++i) scratch.put((y * N + i) * BX + x, values[i]);
  }
  sync_threads();
#pragma unroll
  for (int rows = BY / ALIKE; rows > 1; rows = (rows + 1) / 2) {
    const int half = (rows + 1) / 2;
    if (is_first && y < rows - half) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = Op::apply(values[i], scratch.get(((y + half) * N + i) * BX + x));
        scratch.put((y * N + i) * BX + x, values[i]);
      }
    }
    sync_threads();
  }
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = scratch.get(i * BX + x);
}
