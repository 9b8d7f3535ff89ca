// grid (31250, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void fused_add_relu_f32_pointwise(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T5,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 size3,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i_o_j_o = 0; i_o_j_o < size0; ++i_o_j_o) {
    for (i64 i_i = 0; i_i < size1; ++i_i) {
      const i64 i = i_i;
      #pragma omp simd
      for (i64 j_i = 0; j_i < 32; ++j_i) {
        const float T0_e = ld(T0, i + i_o_j_o * size2 + j_i * size1);
        const float T1_e = ld(T1, i * size3 + i_o_j_o * 32 + j_i);
        const float T3 = (T0_e + T1_e);  // T3 = fd.ops.add(T2, T1)
        const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
        const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
        st(T5, i * size3 + i_o_j_o * 32 + j_i, T5_e);
      }
    }
  }
}
