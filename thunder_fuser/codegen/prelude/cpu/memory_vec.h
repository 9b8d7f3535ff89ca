// provides: ldv ldv_if stv
// needs: device vec
template <int N, typename T, typename I> DEVICE Vec<T, N> ldv(const T* pointer, I i) {
  Vec<T, N> out;
  __builtin_memcpy(out.v, pointer + i, sizeof(out.v));
  return out;
}
template <int N, typename T, typename I>
DEVICE Vec<T, N> ldv_if(bool holds, const T* pointer, I i) {
  return holds ? ldv<N>(pointer, i) : Vec<T, N>{};
}
template <int N, typename T, typename I> DEVICE void stv(T* pointer, I i, Vec<T, N> values) {
  __builtin_memcpy(pointer + i, values.v, sizeof(values.v));
}
