// provides: reduce_y
// needs: device block shared shuffle
// Reduces N values over threadIdx.y, for each threadIdx.x. A warp that has several rows begins with a
// butterfly. Then a thread has a column in shared memory, and reduces it in pairs, as a tree.
template <class Op, int BX, int BY, int N, typename T>
DEVICE void reduce_y(T* values, Shared<T> scratch) {
  constexpr int ALIKE = BX < 32 && 32 % BX == 0 && BY % (32 / BX) == 0 ? 32 / BX : 1;
  constexpr int ROWS = BY / ALIKE, COLUMNS = N * BX;
#pragma unroll
  for (int mask = BX; mask < BX * ALIKE; mask *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      values[i] = Op::apply(values[i], shfl_xor<T>(values[i], mask, 32));
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  sync_threads();  // the scratch may still be read by the reduction before this one
  if (y % ALIKE == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) scratch.put((y / ALIKE * N + i) * BX + x, values[i]);
  }
  sync_threads();
#pragma unroll
  for (int first = 0; first < COLUMNS; first += BX * BY) {
    const int column = first + y * BX + x;
    if (column < COLUMNS) {
      T rows[ROWS];
#pragma unroll
      for (int row = 0; row < ROWS; ++row) rows[row] = scratch.get(row * COLUMNS + column);
#pragma unroll
      for (int left = ROWS; left > 1; left = (left + 1) / 2)
#pragma unroll
        for (int row = 0; row < left / 2; ++row)
          rows[row] = Op::apply(rows[row], rows[row + (left + 1) / 2]);
      scratch.put(column, rows[0]);
    }
  }
  sync_threads();
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = scratch.get(i * BX + x);
}
