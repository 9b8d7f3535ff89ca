// grid (33, 1, 1), block (1, 1, 1), 0 bytes shared
// pointwise(vectorize=77, threads=1x1, unroll=1)
extern "C" void pointwise_kernel(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T5,
    int threads) {
  #pragma omp parallel for num_threads(threads) if (false)
  for (i64 i1 = 0; i1 < 33; ++i1) {
    #pragma omp simd
    for (i64 i0 = 0; i0 < 77; ++i0) {
      const float T1_e = ld(T1, i0 + i1 * 77);
      const float T0_e = ld(T0, i0);
      const float T3 = (T1_e + T0_e);  // T3 = fd.ops.add(T1, T2)
      const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
      const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
      st(T5, i0 + i1 * 77, T5_e);
    }
  }
}
