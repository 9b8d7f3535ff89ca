// grid (256, 1, 1), block (1, 1, 1), 0 bytes shared
// nested
extern "C" void fused_mul_sum_add_sub_bf16_nested(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    const bf16* __restrict__ T2,
    float* __restrict__ T8,
    bf16* __restrict__ T20,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 divisor3,
    const i64 size4,
    const i64 size5,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    float T11_r[16];
    float T13_r[16];
    for (i64 j = 0; j < size1; ++j) {
      double T8_a = 0.0;
      double T10_a = 0.0;
      double T12_a = 0.0;
      const bf16 T1_e = ld(T1, index_mod(i, size2, divisor3) * size1 + j);
      const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
      #pragma omp simd reduction(sum_f64 : T8_a) reduction(sum_f64 : T10_a) reduction(sum_f64 : T12_a)
      for (i64 k = 0; k < size4; ++k) {
        const bf16 T2_e = ld(T2, i * size5 + j * size4 + k);
        const float T6 = convert<float>(T2_e);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
        const bf16 T0_e = ld(T0, i * size5 + j * size4 + k);
        const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T7 = (T6 * T3);  // T7 = fd.ops.mul(T6, T3)
        T8_a = Sum::apply(T8_a, convert<double>(T7));
        const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
        const float T9 = (T5 * T6);  // T9 = fd.ops.mul(T5, T6)
        T10_a = Sum::apply(T10_a, convert<double>(T9));
        T12_a = Sum::apply(T12_a, convert<double>(T5));
      }
      const float T10 = convert<float>(T10_a);  // T10 = fd.ops.sum(T9)
      T11_r[j] = T10;
      const float T12 = convert<float>(T12_a);  // T12 = fd.ops.sum(T5)
      T13_r[j] = T12;
      const float T8_e = convert<float>(T8_a);  // T8 = fd.ops.sum(T7)
      st(T8, i * size1 + j, T8_e);
    }
    const double T11_a = reduce_rows<Sum>(T11_r, 16, 0.0);
    const double T13_a = reduce_rows<Sum>(T13_r, 16, 0.0);
    const float T11 = convert<float>(T11_a);  // T11 = fd.ops.sum(T10)
    const float T13 = convert<float>(T13_a);  // T13 = fd.ops.sum(T12)
    for (i64 j = 0; j < size1; ++j) {
      const bf16 T1_e = ld(T1, index_mod(i, size2, divisor3) * size1 + j);
      const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
      #pragma omp simd
      for (i64 k = 0; k < size4; ++k) {
        const bf16 T0_e = ld(T0, i * size5 + j * size4 + k);
        const float T3 = convert<float>(T0_e);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
        const bf16 T2_e = ld(T2, i * size5 + j * size4 + k);
        const float T6 = convert<float>(T2_e);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
        const float T15 = (T6 * T11);  // T15 = fd.ops.mul(T6, T14)
        const float T17 = (T15 + T13);  // T17 = fd.ops.add(T15, T16)
        const float T18 = (T17 * 6.1035156e-05f);  // T18 = fd.ops.mul(T17, 6.103515625e-05)
        const float T19 = (T5 - T18);  // T19 = fd.ops.sub(T5, T18)
        const bf16 T20_e = convert<bf16>(T19);  // T20 = fd.ops.cast(T19, dtype=DataType.BFloat16)
        st(T20, i * size5 + j * size4 + k, T20_e);
      }
    }
  }
}
