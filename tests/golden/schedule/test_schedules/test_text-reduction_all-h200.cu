// grid (1, 1, 1), block (512, 1, 1), 64 bytes shared
// reduction(vectorize=4, threads=512x1, unroll=1)
extern "C" __global__ void __launch_bounds__(512)
fused_exp_sum_f32_reduction(
    const float* T0,
    float* __restrict__ T3,
    const i32 size0) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 16);
  const i32 i_o_i = static_cast<i32>(threadIdx.x);
  float T2 = 0.0f;
  #pragma unroll
  for (i32 i_o_o = 0; i_o_o < 4; ++i_o_o) {
    const Vec<float, 4> T0_v = ldv<4>(T0, i_o_i * 4 + i_o_o * size0);
    #pragma unroll
    for (i32 i_i = 0; i_i < 4; ++i_i) {
      const float T1 = expf(T0_v.v[i_i]);  // T1 = fd.ops.exp(T0)
      T2 = Sum::apply(T2, T1);
    }
  }
  T2 = reduce_x<Sum, 512, 1>(T2, scratch_f32);
  const float T3_e = convert<float>(T2);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
  if (i_o_i < 1) st(T3, 0, T3_e);
}
