// grid (4, 64, 1), block (1, 1, 1), 0 bytes shared
// reduction
extern "C" void fused_exp_sum_bf16_reduction(
    const bf16* __restrict__ T0,
    float* __restrict__ T3,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 size3,
    const i64 size4,
    int threads) {
  #pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1)
  for (i64 i_o = 0; i_o < size0; ++i_o) {
    for (i64 j_o = 0; j_o < size1; ++j_o) {
      double T3_a[256];
      #pragma omp simd
      for (i64 i_i = 0; i_i < 256; ++i_i) {
        T3_a[i_i] = 0.0;
      }
      for (i64 j_i = 0; j_i < size2; ++j_i) {
        #pragma omp simd
        for (i64 i_i = 0; i_i < 256; ++i_i) {
          const bf16 T0_e = ld(T0, i_i + i_o * 256 + j_i * size3 + j_o * size4);
          const float T1 = convert<float>(T0_e);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
          const float T2 = expf(T1);  // T2 = fd.ops.exp(T1)
          T3_a[i_i] = Sum::apply(T3_a[i_i], convert<double>(T2));
        }
      }
      #pragma omp simd
      for (i64 i_i = 0; i_i < 256; ++i_i) {
        const float T3_e = convert<float>(T3_a[i_i]);  // T3 = fd.ops.sum(T2)
        st(T3, i_i + i_o * 256 + j_o * size3, T3_e);
      }
    }
  }
}
