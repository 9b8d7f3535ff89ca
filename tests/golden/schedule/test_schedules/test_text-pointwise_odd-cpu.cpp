// grid (33, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void fused_add_relu_f32_pointwise(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T5,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < size0; ++i) {
    #pragma omp simd
    for (i64 j = 0; j < size1; ++j) {
      const float T1_e = ld(T1, i * size1 + j);
      const float T0_e = ld(T0, j);
      const float T3 = (T1_e + T0_e);  // T3 = fd.ops.add(T1, T2)
      const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
      const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
      st(T5, i * size1 + j, T5_e);
    }
  }
}
