// grid (256, 1, 1), block (1, 1, 1), 0 bytes shared
// scan
extern "C" void fused_exp_cummax_relu_f32_scan(
    const float* __restrict__ T0,
    float* __restrict__ T3,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i_o = 0; i_o < size0; ++i_o) {
    float T2[256];
    #pragma omp simd
    for (i64 i_i = 0; i_i < 256; ++i_i) {
      T2[i_i] = -infinity<float>();
    }
    for (i64 j = 0; j < size1; ++j) {
      #pragma omp simd
      for (i64 i_i = 0; i_i < 256; ++i_i) {
        const float T0_e = ld(T0, i_i + i_o * 256 + j * size2);
        const float T1 = expf(T0_e);  // T1 = fd.ops.exp(T0)
        T2[i_i] = Max::apply(T2[i_i], T1);
      }
      #pragma omp simd
      for (i64 i_i = 0; i_i < 256; ++i_i) {
        const float T3_e = relu(T2[i_i]);  // T3 = fd.ops.relu(T2)
        st(T3, i_i + i_o * 256 + j * size2, T3_e);
      }
    }
  }
}
