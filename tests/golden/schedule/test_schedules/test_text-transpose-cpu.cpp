// grid (32768, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void pointwise_kernel(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 divisor3,
    const i64 size4,
    const i64 size5,
    const i64 size6,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i1_o_i0_o = 0; i1_o_i0_o < size0; ++i1_o_i0_o) {
    for (i64 i1_i = 0; i1_i < 32; ++i1_i) {
      #pragma omp simd
      for (i64 i0_i = 0; i0_i < 32; ++i0_i) {
        const bf16 T0_e = ld(T0, i0_i * size1 + i1_i + index_mod(i1_o_i0_o, size2, divisor3) * size4 + index_div(i1_o_i0_o, divisor3) * 32);
        const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const bf16 T1_e = ld(T1, i0_i + i1_i * size5 + index_mod(i1_o_i0_o, size2, divisor3) * 32 + index_div(i1_o_i0_o, divisor3) * size6);
        const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        st(T7, i0_i + i1_i * size5 + index_mod(i1_o_i0_o, size2, divisor3) * 32 + index_div(i1_o_i0_o, divisor3) * size6, T7_e);
      }
    }
  }
}
