// provides: reduce_y
// needs: device block shared shuffle
// Reduces N values over threadIdx.y, for each threadIdx.x. Where a warp has one row: a tree in shared
// memory, whose root all threads read. All N values take each step together, so there is one barrier
// a step, not N. Where it has several rows: a butterfly first, then one thread for each column.
template <class Op, int BX, int BY, int N, typename T>
DEVICE void reduce_y(T* values, Shared<T> scratch) {
  constexpr int ALIKE = BX < 32 && 32 % BX == 0 && BY % (32 / BX) == 0 ? 32 / BX : 1;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int mask = BX; mask < BX * ALIKE; mask *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      values[i] = Op::apply(values[i], shfl_xor<T>(values[i], mask, 32));
  sync_threads();  // the scratch may still be read by the reduction before this one
  if (y % ALIKE == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) scratch.put((y / ALIKE * N + i) * BX + x, values[i]);
  }
  sync_threads();
  if constexpr (ALIKE > 1) {
    for (int column = y * BX + x; column < N * BX; column += BX * BY) {
      T total = scratch.get(column);
#pragma unroll 4  // all loads at once would take registers, and the SM fewer blocks
      for (int row = 1; row < BY / ALIKE; ++row)
        total = Op::apply(total, scratch.get(row * N * BX + column));
      scratch.put(column, total);
    }
    sync_threads();
  } else {
#pragma unroll
    for (int rows = BY; rows > 1; rows = (rows + 1) / 2) {
      const int half = (rows + 1) / 2;
      if (y < rows - half) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          values[i] = Op::apply(values[i], scratch.get(((y + half) * N + i) * BX + x));
          scratch.put((y * N + i) * BX + x, values[i]);
        }
      }
      sync_threads();
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = scratch.get(i * BX + x);
}
