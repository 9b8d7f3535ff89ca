// grid (1, 1, 1), block (1, 1, 1), 0 bytes shared
// reduction
extern "C" void fused_exp_sum_f32_reduction(
    const float* __restrict__ T0,
    float* __restrict__ T3,
    const i64 size0,
    int threads) {
  double T2_a = 0.0;
  #pragma omp simd reduction(sum_f64 : T2_a)
  for (i64 i = 0; i < size0; ++i) {
    const float T0_e = ld(T0, i);
    const float T1 = expf(T0_e);  // T1 = fd.ops.exp(T0)
    T2_a = Sum::apply(T2_a, convert<double>(T1));
  }
  const float T2 = convert<float>(T2_a);  // T2 = fd.ops.sum(T1)
  const float T3_e = convert<float>(T2);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
  st(T3, 0, T3_e);
}
