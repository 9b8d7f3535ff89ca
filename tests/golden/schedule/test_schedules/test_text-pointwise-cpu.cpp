// grid (4096, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void fused_add_relu_bf16_pointwise(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    #pragma omp simd
    for (i64 j = 0; j < size1; ++j) {
      const bf16 T0_e = ld(T0, i * size1 + j);
      const float T2 = convert<float>(T0_e);  // T2 = fd.ops.cast(T0, dtype=DataType.Float)
      const bf16 T1_e = ld(T1, j);
      const float T3 = convert<float>(T1_e);  // T3 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T5 = (T2 + T3);  // T5 = fd.ops.add(T2, T4)
      const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
      const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
      st(T7, i * size1 + j, T7_e);
    }
  }
}
