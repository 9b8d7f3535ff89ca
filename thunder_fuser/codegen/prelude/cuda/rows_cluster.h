// provides: open_rows put_rows
// needs: cluster device reduce_rows shared words
// Values of N rows, as words. Each row's threads send its value to all blocks of the cluster, which
// may read it once their gate has opened.
template <int N, typename W> DEVICE void open_rows(Shared<W>, Shared<i64> gates, int gate) {
  if (threadIdx.x == 0 && threadIdx.y == 0)
    open_gate(gates, gate, N * static_cast<int>(sizeof(W)), true);
}
template <int CLUSTER, typename T, typename W>
DEVICE void put_rows(Shared<W> rows, int at, T value, Shared<i64> gates, int gate) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < CLUSTER) put_to_peer(rows, peer, at, to_word<W>(value), gates, gate);
}
template <class Op, int N, int WIDTH, int LANES, typename T, typename W>
DEVICE T reduce_rows(Shared<W> rows, T value, Shared<i64> gates, int gate) {
  wait_gate(gates, gate, 0);
  return reduce_rows<Op, N, WIDTH, LANES>(rows, value);
}
