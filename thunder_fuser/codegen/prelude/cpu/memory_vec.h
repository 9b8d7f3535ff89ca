// provides: ldv stv
// needs: device vec
template <int N, typename T, typename I> DEVICE Vec<T, N> ldv(const T* pointer, I i) {
  Vec<T, N> out;
  __builtin_memcpy(out.v, pointer + i, sizeof(out.v));
  return out;
}
template <int N, typename T, typename I> DEVICE void stv(T* pointer, I i, Vec<T, N> values) {
  __builtin_memcpy(pointer + i, values.v, sizeof(values.v));
}
