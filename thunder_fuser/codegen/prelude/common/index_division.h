// provides: index_div index_mod
// needs: device types
// x / d and x % d for 0 <= x < 2^31, by a multiplication and a shift instead of a division.
// `by` is division_by(d) of codegen/indices.py: 32 bits of multiplier above the shift.
template <typename T> DEVICE T index_div(T x, i64 by) {
  const u32 multiplier = static_cast<u32>(static_cast<u64>(by) >> 32);
  const u64 product = static_cast<u64>(static_cast<u32>(x)) * multiplier;
  return static_cast<T>(static_cast<u32>(product >> 32) >> static_cast<u32>(by));
}
template <typename T> DEVICE T index_mod(T x, T d, i64 by) { return x - index_div(x, by) * d; }
