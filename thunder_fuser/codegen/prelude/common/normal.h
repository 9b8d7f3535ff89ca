// provides: normal_
// needs: device convert uniform
// Box-Muller: words (a, b) make elements 0 and 1 of a group, (c, d) elements 2 and 3.
template <typename C> struct Normal {
  static DEVICE C make(Words x, int lane) {
    const u32 first = lane < 2 ? x.a : x.c, second = lane < 2 ? x.b : x.d;
    // Never 0, so its logarithm is finite.
    const float open = (static_cast<float>(static_cast<i32>(first >> 8)) + 1.0f) * 0x1p-24f;
    const float angle = static_cast<float>(static_cast<i32>(second >> 8)) * (0x1p-24f * 6.2831853f);
    const float radius = sqrtf(-2.0f * logf(open));
    return radius * ((lane & 1) ? sinf(angle) : cosf(angle));
  }
};
template <> struct Normal<double> {
  static DEVICE double make(Words x, int lane) {
    const double open = (static_cast<double>(static_cast<i64>(word<double>(x, 0) >> 11)) + 1.0) * 0x1p-53;
    const double angle =
        static_cast<double>(static_cast<i64>(word<double>(x, 1) >> 11)) * (0x1p-53 * 6.283185307179586);
    const double radius = sqrt(-2.0 * log(open));
    return radius * (lane ? sin(angle) : cos(angle));
  }
};
template <typename T, typename C> DEVICE T normal_(Words x, int lane, C mean, C std) {
  return convert<T>(mean + std * Normal<C>::make(x, lane));
}
