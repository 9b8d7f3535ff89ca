// grid (64, 1, 1), block (1, 1, 1), 0 bytes shared
// reduction
extern "C" void fused_add_sum_f32_reduction(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T3,
    float* __restrict__ T4,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    double T4_a = 0.0;
    #pragma omp simd reduction(sum_f64 : T4_a)
    for (i64 j = 0; j < size1; ++j) {
      const float T0_e = ld(T0, i + j * size0);
      const float T1_e = ld(T1, i * size1 + j);
      const float T3_e = (T0_e + T1_e);  // T3 = fd.ops.add(T2, T1)
      T4_a = Sum::apply(T4_a, convert<double>(T3_e));
      st(T3, i * size1 + j, T3_e);
    }
    const float T4_e = convert<float>(T4_a);  // T4 = fd.ops.sum(T3)
    st(T4, i, T4_e);
  }
}
