// provides: mma
// needs: convert device half shuffle types vec
// sums[16, 8] += a[16, 16] * b[16, 8] by the tensor cores, for a whole warp. A word has two numbers
// that are neighbours along the summed axis. With lane = 4 * g + q, a lane holds
//   a:    rows g, g + 8 at 2q, 2q + 1; then the same rows at 2q + 8, 2q + 9
//   b:    column g at 2q, 2q + 1; then at 2q + 8, 2q + 9
//   sums: row g, then row g + 8, of columns 2q, 2q + 1
#ifndef THUNDER_FUSER_EMULATOR
#define MMA(TYPE, NAME)                                                                             \
  DEVICE void mma(Vec<float, 4>& sums, Vec<u32, 4> a, Vec<u32, 2> b, TYPE) {                        \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                              \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
        : "+f"(sums.v[0]), "+f"(sums.v[1]), "+f"(sums.v[2]), "+f"(sums.v[3])                        \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));            \
  }
MMA(bf16, "bf16")
MMA(f16, "f16")
#undef MMA
#else
template <typename T> DEVICE void mma(Vec<float, 4>& sums, Vec<u32, 4> a, Vec<u32, 2> b, T) {
  const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  for (int half = 0; half < 2; ++half)
    for (int at = 0; at < 4; ++at) {
      u32 rows[2], columns[2];
      for (int i = 0; i < 2; ++i) {
        rows[i] = shfl_idx<u32>(a.v[2 * half + i], 4 * g + at, 32);
        columns[i] = shfl_idx<u32>(b.v[half], 4 * (2 * q + i) + at, 32);
      }
      for (int i = 0; i < 4; ++i)
        for (int bits = 0; bits < 32; bits += 16)
          sums.v[i] += convert<float>(T{static_cast<u16>(rows[i / 2] >> bits)}) *
                       convert<float>(T{static_cast<u16>(columns[i % 2] >> bits)});
    }
}
#endif
