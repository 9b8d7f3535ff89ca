// grid (4096, 1, 1), block (1, 1, 1), 0 bytes shared
// persistent
extern "C" void fused_softmax_bf16_persistent(
    const bf16* __restrict__ T0,
    bf16* __restrict__ T9,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    float T6_p[8192];
    float T2 = -infinity<float>();
    #pragma omp simd reduction(max_f32 : T2)
    for (i64 j = 0; j < 8192; ++j) {
      const bf16 T0_e = ld(T0, i * size1 + j);
      const float T1 = convert<float>(T0_e);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
      T2 = Max::apply(T2, T1);
    }
    double T7_a = 0.0;
    const bf16 T3 = convert<bf16>(T2);  // T3 = fd.ops.cast(T2, dtype=DataType.BFloat16)
    const float T4 = convert<float>(T3);  // T4 = fd.ops.cast(T3, dtype=DataType.Float)
    #pragma omp simd reduction(sum_f64 : T7_a)
    for (i64 j = 0; j < 8192; ++j) {
      const bf16 T0_e = ld(T0, i * size1 + j);
      const float T1 = convert<float>(T0_e);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T5 = (T1 - T4);  // T5 = fd.ops.sub(T1, T4)
      const float T6 = expf(T5);  // T6 = fd.ops.exp(T5)
      T6_p[j] = T6;
      T7_a = Sum::apply(T7_a, convert<double>(T6));
    }
    const float T7 = convert<float>(T7_a);  // T7 = fd.ops.sum(T6)
    #pragma omp simd
    for (i64 j = 0; j < 8192; ++j) {
      const float T8 = (T6_p[j] / T7);  // T8 = fd.ops.truediv(T6, T7)
      const bf16 T9_e = convert<bf16>(T8);  // T9 = fd.ops.cast(T8, dtype=DataType.BFloat16)
      st(T9, i * size1 + j, T9_e);
    }
  }
}
