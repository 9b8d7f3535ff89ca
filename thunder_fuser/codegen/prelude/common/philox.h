// provides: philox Words
// needs: device types
// Philox 4x32-10: ten rounds of a counter under a key give four words (Salmon et al., SC 2011).
// U is u32, or u64 in a loop of the CPU's: its SIMD multiplies 32-bit words that lie 64 bits apart.
template <typename U> struct Lanes { U a, b, c, d; };
using Words = Lanes<u32>;
template <typename U> DEVICE Lanes<U> philox_round(Lanes<U> x, u32 key_a, u32 key_b) {
  const u64 left = 0xD2511F53ull * static_cast<u32>(x.a);
  const u64 right = 0xCD9E8D57ull * static_cast<u32>(x.c);
  return {static_cast<U>(right >> 32) ^ x.b ^ key_a, static_cast<U>(static_cast<u32>(right)),
          static_cast<U>(left >> 32) ^ x.d ^ key_b, static_cast<U>(static_cast<u32>(left))};
}
// By recursion, since the CPU's compiler makes no vectors around a loop.
template <int rounds, typename U>
DEVICE Lanes<U> philox_rounds(Lanes<U> x, u32 key_a, u32 key_b) {
  if constexpr (rounds == 0) {
    return x;
  } else {
    return philox_rounds<rounds - 1>(
        philox_round(x, key_a, key_b), key_a + 0x9E3779B9u, key_b + 0xBB67AE85u);
  }
}
template <typename U = u32> DEVICE Lanes<U> philox(i64 seed, i64 offset, i64 group) {
  const u64 key = static_cast<u64>(seed), stream = static_cast<u64>(offset);
  const u64 place = static_cast<u64>(group);
  return philox_rounds<10, U>(
      {static_cast<u32>(stream), static_cast<u32>(stream >> 32),
       static_cast<u32>(place), static_cast<u32>(place >> 32)},
      static_cast<u32>(key), static_cast<u32>(key >> 32));
}
