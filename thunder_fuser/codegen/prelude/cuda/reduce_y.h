// provides: reduce_y
// needs: device block shared
// Reduces N values over threadIdx.y, for each threadIdx.x: a tree in shared memory, whose root all
// threads read. All N values take each step together, so there is one barrier a step, not N.
template <class Op, int BX, int BY, int N, typename T>
DEVICE void reduce_y(T* values, Shared<T> scratch) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  sync_threads();  // the scratch may still be read by the reduction before this one
#pragma unroll
  for (int i = 0; i < N; ++i) scratch.put((y * N + i) * BX + x, values[i]);
  sync_threads();
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
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = scratch.get(i * BX + x);
}
