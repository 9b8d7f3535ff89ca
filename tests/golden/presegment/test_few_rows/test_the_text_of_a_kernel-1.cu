
// reduction(vectorize=8, threads=64x4, unroll=1)
extern "C" __global__ void __launch_bounds__(256)
fused_mul_sum_bf16_reduction(
    const bf16* T0,
    const bf16* T1,
    bf16* __restrict__ T8,
    const i32 size0,
    const i32 size1) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 8);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.y);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  float T7 = 0.0f;
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 4; ++j_o_o) {
    const Vec<bf16, 8> T0_v = ldv<8>(T0, j_o_i * 8 + j_o_o * 512);
    const Vec<bf16, 8> T1_v = ldv<8>(T1, i_i * size0 + i_o * size1 + j_o_i * 8 + j_o_o * 512);
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      const float T2 = convert<float>(T0_v.v[j_i]);  // T2 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T4 = convert<float>(T1_v.v[j_i]);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T6 = (T2 * T4);  // T6 = fd.ops.mul(T3, T5)
      T7 = Sum::apply(T7, T6);
    }
  }
  T7 = reduce_x<Sum, 64, 4>(T7, scratch_f32);
  const bf16 T8_e = convert<bf16>(T7);  // T8 = fd.ops.cast(T7, dtype=DataType.BFloat16)
  if (j_o_i < 1) st(T8, i_i + i_o * 4, T8_e);
}
