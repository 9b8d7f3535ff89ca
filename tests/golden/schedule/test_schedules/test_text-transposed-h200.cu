// grid (8, 1, 1), block (16, 8, 1), 0 bytes shared
// reduction(vectorize=4, threads=16x8, unroll=1)
extern "C" __global__ void __launch_bounds__(128)
fused_add_sum_f32_reduction(
    const float* T0,
    const float* T1,
    float* __restrict__ T3,
    float* __restrict__ T4,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3,
    const i32 size4) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 0);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.y);
  __builtin_assume(i_i < 8);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(j_o_i < 16);
  float T4_e = 0.0f;
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    if (j_o_o < 1 || j_o_i + j_o_o * 16 < size0) {
      const i32 j_o = j_o_i + j_o_o * 16;
      const Vec<float, 4> T1_v = ldv<4>(T1, i_i * size1 + i_o * size2 + j_o * 4);
      Vec<float, 4> T3_o;
      #pragma unroll
      for (i32 j_i = 0; j_i < 4; ++j_i) {
        const float T0_e = ld(T0, i_i + i_o * 8 + j_i * size3 + j_o * size4);
        const float T3_e = (T0_e + T1_v.v[j_i]);  // T3 = fd.ops.add(T2, T1)
        T4_e = Sum::apply(T4_e, T3_e);
        T3_o.v[j_i] = T3_e;
      }
      stv<4>(T3, i_i * size1 + i_o * size2 + j_o * 4, T3_o);
    }
  }
  T4_e = reduce_x<Sum, 16, 8>(T4_e, scratch_f32);
  if (j_o_i < 1) st(T4, i_i + i_o * 8, T4_e);
}
