// provides: reduce_y
// needs: device block shared
// Over threadIdx.y, for each threadIdx.x: a tree in shared memory, then everybody reads its root.
template <class Op, int BX, int BY, typename T>
DEVICE T reduce_y(T value, Shared<T> scratch) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  if constexpr (BY > 1) {
    sync_threads();  // the scratch may still be read by the reduction before this one
    scratch.put(y * BX + x, value);
    sync_threads();
#pragma unroll
    for (int rows = BY; rows > 1; rows = (rows + 1) / 2) {
      const int half = (rows + 1) / 2;
      if (y < rows - half) {
        value = Op::apply(value, scratch.get((y + half) * BX + x));
        scratch.put(y * BX + x, value);
      }
      sync_threads();
    }
    value = scratch.get(x);
  }
  return value;
}
