// provides: reduce_rows
// needs: device types convert stream
// Values in an array, as a row of them is added.
template <class Op, typename T, typename A> DEVICE A reduce_rows(const T* rows, i64 count, A start) {
  Stream<Op, T, A> row(start);
  for (i64 begin = 0, end; begin < count; begin = end) {
    end = row.end(begin, count);
    T* next = row.from(begin);
    for (i64 i = begin; i < end; ++i) next[i] = rows[i];
    row.took(end - begin);
  }
  return total(row);
}
