// grid (4096, 1, 1), block (1, 1, 1), 0 bytes shared
// reduction
extern "C" void fused_exp_sum_bf16_reduction(
    const bf16* __restrict__ T0,
    bf16* __restrict__ T4,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    double T3_a = 0.0;
    #pragma omp simd reduction(sum_f64 : T3_a)
    for (i64 j = 0; j < size1; ++j) {
      const bf16 T0_e = ld(T0, i * size1 + j);
      const float T1 = convert<float>(T0_e);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T2 = expf(T1);  // T2 = fd.ops.exp(T1)
      T3_a = Sum::apply(T3_a, convert<double>(T2));
    }
    const float T3 = convert<float>(T3_a);  // T3 = fd.ops.sum(T2)
    const bf16 T4_e = convert<bf16>(T3);  // T4 = fd.ops.cast(T3, dtype=DataType.BFloat16)
    st(T4, i, T4_e);
  }
}
