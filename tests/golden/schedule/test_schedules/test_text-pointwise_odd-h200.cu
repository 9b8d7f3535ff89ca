// grid (20, 1, 1), block (128, 1, 1), 0 bytes shared
// pointwise(vectorize=1, threads=128x1, unroll=1)
extern "C" __global__ void __launch_bounds__(128)
fused_add_relu_f32_pointwise(
    const float* T0,
    const float* T1,
    float* __restrict__ T5,
    const i32 size0,
    const i32 size1,
    const i64 divisor2) {
  next_kernel_may_start();
  after_earlier_kernels();
  const i32 i_o_o_o = static_cast<i32>(blockIdx.x);
  const i32 i_o_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(i_o_i < 128);
  if (i_o_i + i_o_o_o * 128 < size0) {
    const i32 i_o = i_o_i + i_o_o_o * 128;
    const float T1_e = ld(T1, i_o);
    const float T0_e = ld(T0, index_mod(i_o, size1, divisor2));
    const float T3 = (T1_e + T0_e);  // T3 = fd.ops.add(T1, T2)
    const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
    const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
    st(T5, i_o, T5_e);
  }
}
