// provides: Stream total
// needs: device types convert
// Adds a row's values in order, in turn to LANES sums. So the additions do not depend on the lanes of
// the loop that makes the values, or on where outer loops cut the row. New values wait in `next`.
template <class Op, typename T, typename A> struct Stream {
  static constexpr i64 ROOM = 256, LANES = 16;
  T next[ROOM];
  A lanes[LANES], start;
  i64 used = 0;
  explicit DEVICE Stream(A start) : start(start) {
    for (A& lane : lanes) lane = start;
  }
  DEVICE i64 end(i64 begin, i64 last) const {
    return last - begin < ROOM - used ? last : begin + ROOM - used;
  }
  DEVICE T* from(i64 begin) { return next + used - begin; }
  DEVICE void took(i64 count) {
    used += count;
    if (used == ROOM) add();
  }
  DEVICE void add() {
    while (used % LANES) next[used++] = convert<T>(start);
#pragma GCC unroll 4
    for (i64 k = 0; k < used; k += LANES)
#pragma omp simd
      for (int lane = 0; lane < LANES; ++lane)
        lanes[lane] = Op::apply(lanes[lane], convert<A>(next[k + lane]));
    used = 0;
  }
};
template <class Op, typename T, typename A> DEVICE A total(Stream<Op, T, A>& row) {
  row.add();
  for (int half = Stream<Op, T, A>::LANES / 2; half > 0; half /= 2)
#pragma omp simd
    for (int lane = 0; lane < half; ++lane)
      row.lanes[lane] = Op::apply(row.lanes[lane], row.lanes[lane + half]);
  return row.lanes[0];
}
