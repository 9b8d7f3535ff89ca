// provides: philox
// needs: device types
// Philox 4x32-10: ten rounds of a counter under a key give four words (Salmon et al., SC 2011).
struct Words { u32 a, b, c, d; };
DEVICE Words philox_round(Words x, u32 key_a, u32 key_b) {
  const u64 left = static_cast<u64>(0xD2511F53u) * x.a;
  const u64 right = static_cast<u64>(0xCD9E8D57u) * x.c;
  return {static_cast<u32>(right >> 32) ^ x.b ^ key_a, static_cast<u32>(right),
          static_cast<u32>(left >> 32) ^ x.d ^ key_b, static_cast<u32>(left)};
}
// By recursion, since the CPU's compiler makes no vectors around a loop.
template <int rounds> DEVICE Words philox_rounds(Words x, u32 key_a, u32 key_b) {
  if constexpr (rounds == 0) {
    return x;
  } else {
    return philox_rounds<rounds - 1>(
        philox_round(x, key_a, key_b), key_a + 0x9E3779B9u, key_b + 0xBB67AE85u);
  }
}
DEVICE Words philox(i64 seed, i64 offset, i64 group) {
  const u64 key = static_cast<u64>(seed), stream = static_cast<u64>(offset);
  const u64 place = static_cast<u64>(group);
  return philox_rounds<10>(
      {static_cast<u32>(stream), static_cast<u32>(stream >> 32),
       static_cast<u32>(place), static_cast<u32>(place >> 32)},
      static_cast<u32>(key), static_cast<u32>(key >> 32));
}
DEVICE u32 word(Words x, int lane) { return lane < 2 ? (lane ? x.b : x.a) : (lane == 2 ? x.c : x.d); }
DEVICE u64 long_word(Words x, int lane) {
  const u64 high = lane ? x.d : x.b;
  return high << 32 | (lane ? x.c : x.a);
}
