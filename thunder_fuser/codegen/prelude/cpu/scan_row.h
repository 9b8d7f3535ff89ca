// provides: scan_row
// needs: device types
template <class Op, typename T> DEVICE void scan_row(T* values, i64 count, T& carry) {
  for (i64 k = 0; k < count; ++k) carry = values[k] = Op::apply(carry, values[k]);
}
