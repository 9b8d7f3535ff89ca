// grid (8, 1, 1), block (16, 8, 1), 0 bytes shared
// reduction(vectorize=4, threads=16x8, unroll=1)
extern "C" __global__ void __launch_bounds__(128)
reduction_kernel(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T3,
    float* __restrict__ T4,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3,
    const i32 size4) {
  const Shared<float> scratch_f32(0, 0);
  const i32 i1_o = static_cast<i32>(blockIdx.x);
  const i32 i1_i = static_cast<i32>(threadIdx.y);
  __builtin_assume(i1_i < 8);
  const i32 i0_o_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(i0_o_i < 16);
  float T4_e = 0.0f;
  #pragma unroll
  for (i32 i0_o_o = 0; i0_o_o < 2; ++i0_o_o) {
    if (i0_o_o < 1 || i0_o_i + i0_o_o * 16 < size0) {
      const i32 i0_o = i0_o_i + i0_o_o * 16;
      const Vec<float, 4> T1_v = ldv<4>(T1, i0_o * 4 + i1_i * size1 + i1_o * size2);
      Vec<float, 4> T3_o;
      #pragma unroll
      for (i32 i0_i = 0; i0_i < 4; ++i0_i) {
        const float T0_e = ld(T0, i0_i * size3 + i0_o * size4 + i1_i + i1_o * 8);
        const float T3_e = (T0_e + T1_v.v[i0_i]);  // T3 = fd.ops.add(T2, T1)
        T4_e = Sum::apply(T4_e, T3_e);
        T3_o.v[i0_i] = T3_e;
      }
      stv<4>(T3, i0_o * 4 + i1_i * size1 + i1_o * size2, T3_o);
    }
  }
  T4_e = reduce_x<Sum, 16, 8>(T4_e, scratch_f32);
  if (i0_o_i < 1) st(T4, i1_i + i1_o * 8, T4_e);
}
