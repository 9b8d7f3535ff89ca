// provides: checked_index
// needs: device types
// failed: the number of the first check that failed, and its value. Several threads may fail.
inline __attribute__((noinline, cold)) i64 index_failed(i64 value, i64 number, i64* failed) {
  i64 none = 0;
  if (__atomic_compare_exchange_n(failed, &none, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    failed[1] = value;
  return 0;
}
// An index outside the axis is recorded and replaced by 0, so that no read leaves the tensor.
// With AVX-512, gcc 12 reads at a wrong place if it finds that the index is a bool, as (x > 2) & 1: it
// takes lanes from a mask as from a vector. No pointer has a highest bit, but gcc does not know that.
template <typename I, typename T> DEVICE I checked_index(T value, I size, i64 number, i64* failed) {
  if (__builtin_expect(value >= 0 && value < size, 1))
    return value | static_cast<I>(reinterpret_cast<u64>(failed) >> 63);
  return index_failed(value, number, failed);
}
