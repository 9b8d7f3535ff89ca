// grid (64, 1, 1), block (1, 1, 1), 0 bytes shared
// inner_outer
extern "C" void fused_sub_mul_sum_bf16_inner_outer(
    const bf16* __restrict__ T0,
    const float* __restrict__ T1,
    const float* __restrict__ T2,
    const bf16* __restrict__ T3,
    const bf16* __restrict__ T4,
    float* __restrict__ T22,
    float* __restrict__ T23,
    bf16* __restrict__ T24,
    const i64 size0,
    const i64 size1,
    const i64 size2,
    const i64 size3,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i_o = 0; i_o < size0; ++i_o) {
    double T22_a[4096];
    #pragma omp simd
    for (i64 slot = 0; slot < 4096; ++slot) {
      T22_a[slot] = 0.0;
    }
    double T23_a[4096];
    #pragma omp simd
    for (i64 slot = 0; slot < 4096; ++slot) {
      T23_a[slot] = 0.0;
    }
    for (i64 i_i = 0; i_i < size1; ++i_i) {
      double T14_a = 0.0;
      double T13_a = 0.0;
      const float T1_e = ld(T1, i_i + i_o * size1);
      const float T2_e = ld(T2, i_i + i_o * size1);
      #pragma omp simd reduction(sum_f64 : T14_a) reduction(sum_f64 : T13_a)
      for (i64 j = 0; j < 4096; ++j) {
        const bf16 T3_e = ld(T3, i_i * size2 + i_o * size3 + j);
        const float T8 = convert<float>(T3_e);  // T8 = fd.ops.cast(T3, dtype=DataType.Float)
        T23_a[j] = Sum::apply(T23_a[j], convert<double>(T8));
        const bf16 T0_e = ld(T0, i_i * size2 + i_o * size3 + j);
        const float T5 = convert<float>(T0_e);  // T5 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T6 = (T5 - T1_e);  // T6 = fd.ops.sub(T5, T1)
        const float T7 = (T6 * T2_e);  // T7 = fd.ops.mul(T6, T2)
        const float T21 = (T8 * T7);  // T21 = fd.ops.mul(T8, T7)
        T22_a[j] = Sum::apply(T22_a[j], convert<double>(T21));
        const bf16 T4_e = ld(T4, j);
        const float T9 = convert<float>(T4_e);  // T9 = fd.ops.cast(T4, dtype=DataType.Float)
        const float T11 = (T8 * T9);  // T11 = fd.ops.mul(T8, T10)
        T14_a = Sum::apply(T14_a, convert<double>(T11));
        const float T12 = (T11 * T7);  // T12 = fd.ops.mul(T11, T7)
        T13_a = Sum::apply(T13_a, convert<double>(T12));
      }
      const float T13 = convert<float>(T13_a);  // T13 = fd.ops.sum(T12)
      const float T15 = (T13 * 0.00024414062f);  // T15 = fd.ops.mul(T13, 0.000244140625)
      const float T14 = convert<float>(T14_a);  // T14 = fd.ops.sum(T11)
      const float T18 = (T14 * 0.00024414062f);  // T18 = fd.ops.mul(T14, 0.000244140625)
      #pragma omp simd
      for (i64 j = 0; j < 4096; ++j) {
        const bf16 T3_e = ld(T3, i_i * size2 + i_o * size3 + j);
        const float T8 = convert<float>(T3_e);  // T8 = fd.ops.cast(T3, dtype=DataType.Float)
        const bf16 T4_e = ld(T4, j);
        const float T9 = convert<float>(T4_e);  // T9 = fd.ops.cast(T4, dtype=DataType.Float)
        const float T11 = (T8 * T9);  // T11 = fd.ops.mul(T8, T10)
        const bf16 T0_e = ld(T0, i_i * size2 + i_o * size3 + j);
        const float T5 = convert<float>(T0_e);  // T5 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T6 = (T5 - T1_e);  // T6 = fd.ops.sub(T5, T1)
        const float T7 = (T6 * T2_e);  // T7 = fd.ops.mul(T6, T2)
        const float T16 = (T15 * T7);  // T16 = fd.ops.mul(T15, T7)
        const float T17 = (T11 - T16);  // T17 = fd.ops.sub(T11, T16)
        const float T19 = (T17 - T18);  // T19 = fd.ops.sub(T17, T18)
        const float T20 = (T19 * T2_e);  // T20 = fd.ops.mul(T19, T2)
        const bf16 T24_e = convert<bf16>(T20);  // T24 = fd.ops.cast(T20, dtype=DataType.BFloat16)
        st(T24, i_i * size2 + i_o * size3 + j, T24_e);
      }
    }
    #pragma omp simd
    for (i64 j = 0; j < 4096; ++j) {
      const float T22_e = convert<float>(T22_a[j]);  // T22 = fd.ops.sum(T21)
      st(T22, i_o * size2 + j, T22_e);
      const float T23_e = convert<float>(T23_a[j]);  // T23 = fd.ops.sum(T8)
      st(T23, i_o * size2 + j, T23_e);
    }
  }
}
