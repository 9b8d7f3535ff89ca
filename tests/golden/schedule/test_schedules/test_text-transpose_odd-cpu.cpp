// grid (32768, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void pointwise_kernel(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i64 size0,
    const i64 size1,
    const i64 divisor2,
    const i64 size3,
    const i64 size4,
    const i64 size5,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i1_o_i0_o = 0; i1_o_i0_o < size0; ++i1_o_i0_o) {
    for (i64 i1_i = 0; i1_i < 32; ++i1_i) {
      #pragma omp simd
      for (i64 i0_i = 0; i0_i < (32 < (index_mod(i1_o_i0_o, size1, divisor2) * -32 + size3) ? 32 : (index_mod(i1_o_i0_o, size1, divisor2) * -32 + size3)); ++i0_i) {
        const i64 i0 = i0_i + index_mod(i1_o_i0_o, size1, divisor2) * 32;
        const bf16 T0_e = ld(T0, i0 * size4 + i1_i + index_div(i1_o_i0_o, divisor2) * 32);
        const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const bf16 T1_e = ld(T1, i0 + i1_i * size3 + index_div(i1_o_i0_o, divisor2) * size5);
        const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        st(T7, i0 + i1_i * size3 + index_div(i1_o_i0_o, divisor2) * size5, T7_e);
      }
    }
  }
}
