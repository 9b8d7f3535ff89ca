// grid (4096, 1, 1), block (1, 1, 1), 0 bytes shared
// persistent
extern "C" void fused_layer_norm_bf16_persistent(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    const bf16* __restrict__ T2,
    bf16* __restrict__ T19,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 size3,
    int threads) {
  const float T5_by = static_cast<float>(size0);
  const float T9_by = static_cast<float>(size1);
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size2; ++i) {
    double T4_a = 0.0;
    #pragma omp simd reduction(sum_f64 : T4_a)
    for (i64 j = 0; j < size3; ++j) {
      const bf16 T0_e = ld(T0, i * size3 + j);
      const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      T4_a = Sum::apply(T4_a, convert<double>(T3));
    }
    double T8_a = 0.0;
    const float T4 = convert<float>(T4_a);  // T4 = fd.ops.sum(T3)
    const float T5 = (T4 / T5_by);  // T5 = fd.ops.truediv(T4, T5_by)
    #pragma omp simd reduction(sum_f64 : T8_a)
    for (i64 j = 0; j < size3; ++j) {
      const bf16 T0_e = ld(T0, i * size3 + j);
      const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T6 = (T3 - T5);  // T6 = fd.ops.sub(T3, T5)
      const float T7 = (T6 * T6);  // T7 = fd.ops.mul(T6, T6)
      T8_a = Sum::apply(T8_a, convert<double>(T7));
    }
    const float T8 = convert<float>(T8_a);  // T8 = fd.ops.sum(T7)
    const float T9 = (T8 / T9_by);  // T9 = fd.ops.truediv(T8, T9_by)
    const float T10 = (T9 + 1e-05f);  // T10 = fd.ops.add(T9, 1e-05)
    const float T11 = rsqrt_(T10);  // T11 = fd.ops.rsqrt(T10)
    #pragma omp simd
    for (i64 j = 0; j < size3; ++j) {
      const bf16 T0_e = ld(T0, i * size3 + j);
      const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T6 = (T3 - T5);  // T6 = fd.ops.sub(T3, T5)
      const float T12 = (T6 * T11);  // T12 = fd.ops.mul(T6, T11)
      const bf16 T1_e = ld(T1, j);
      const float T13 = convert<float>(T1_e);  // T13 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T15 = (T12 * T13);  // T15 = fd.ops.mul(T12, T14)
      const bf16 T2_e = ld(T2, j);
      const float T16 = convert<float>(T2_e);  // T16 = fd.ops.cast(T2, dtype=DataType.Float)
      const float T18 = (T15 + T16);  // T18 = fd.ops.add(T15, T17)
      const bf16 T19_e = convert<bf16>(T18);  // T19 = fd.ops.cast(T18, dtype=DataType.BFloat16)
      st(T19, i * size3 + j, T19_e);
    }
  }
}
