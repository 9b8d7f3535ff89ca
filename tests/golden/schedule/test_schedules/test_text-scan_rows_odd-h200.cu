// grid (9, 1, 1), block (32, 4, 1), 0 bytes shared
// scan(vectorize=1, threads=32x4, unroll=1)
extern "C" __global__ void __launch_bounds__(128)
fused_exp_cumprod_relu_f32_scan(
    const float* T0,
    float* __restrict__ T3,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 0);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.y);
  __builtin_assume(i_i < 4);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(j_o_i < 32);
  const i32 i = ((i_i + i_o * 4) < size0 ? (i_i + i_o * 4) : size0);
  float T2[1];
  float T2_c = 1.0f;
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 3; ++j_o_o) {
    const i32 j_o = ((j_o_i + j_o_o * 32) < size1 ? (j_o_i + j_o_o * 32) : size1);
    const float T0_e = ld(T0, i * size2 + j_o);
    const float T1 = expf(T0_e);  // T1 = fd.ops.exp(T0)
    T2[0] = T1;
    scan_x<Prod, 32, 4>(T2, T2_c, scratch_f32);
    const float T3_e = relu(T2[0]);  // T3 = fd.ops.relu(T2)
    if (i_i + i_o * 4 < size3 && j_o_i + j_o_o * 32 < size2) st(T3, i * size2 + j_o, T3_e);
  }
}
