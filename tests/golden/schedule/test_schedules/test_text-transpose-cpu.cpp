// grid (32768, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void fused_add_relu_bf16_pointwise(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i64 size0,
    const i64 size1,
    const i64 divisor2,
    const i64 size3,
    const i64 size4,
    const i64 size5,
    const i64 size6,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i_o_j_o = 0; i_o_j_o < size0; ++i_o_j_o) {
    for (i64 i_i = 0; i_i < 32; ++i_i) {
      #pragma omp simd
      for (i64 j_i = 0; j_i < 32; ++j_i) {
        const bf16 T0_e = ld(T0, i_i + index_mod(i_o_j_o, size1, divisor2) * size3 + index_div(i_o_j_o, divisor2) * 32 + j_i * size4);
        const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const bf16 T1_e = ld(T1, i_i * size5 + index_mod(i_o_j_o, size1, divisor2) * 32 + index_div(i_o_j_o, divisor2) * size6 + j_i);
        const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        st(T7, i_i * size5 + index_mod(i_o_j_o, size1, divisor2) * 32 + index_div(i_o_j_o, divisor2) * size6 + j_i, T7_e);
      }
    }
  }
}
