// grid (33, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise
extern "C" void pointwise_kernel(
    const float* __restrict__ T1,
    const float* __restrict__ T0,
    float* __restrict__ T5,
    const i64 size0,
    const i64 size1,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (threads > 1)
  for (i64 i0 = 0; i0 < size0; ++i0) {
    #pragma omp simd
    for (i64 i1 = 0; i1 < size1; ++i1) {
      const float T0_e = ld(T0, i0 * size1 + i1);
      const float T1_e = ld(T1, i1);
      const float T3 = (T0_e + T1_e);  // T3 = fd.ops.add(T0, T2)
      const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
      const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
      st(T5, i0 * size1 + i1, T5_e);
    }
  }
}
