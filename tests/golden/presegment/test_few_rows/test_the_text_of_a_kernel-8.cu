
// products(vectorize=1, threads=16x8, unroll=2)
extern "C" __global__ void __launch_bounds__(128)
fused_mul_sum_bf16_products(
    const bf16* T0,
    const bf16* T1,
    bf16* __restrict__ T8,
    const i32 size0,
    const i32 size1,
    const i32 size2) {
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 640);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.x);
  const i32 j_i = static_cast<i32>(threadIdx.y);
  float T7 = 0.0f;
  T7 = sum_of_products<Sum, 16, 8, 2>(T1, 0, size0, size1, i_o * 16, T0, 0, size0, size2, size0, scratch_f32);
  const bf16 T8_e = convert<bf16>(T7);  // T8 = fd.ops.cast(T7, dtype=DataType.BFloat16)
  st(T8, i_i + i_o * 16 + j_i * size1, T8_e);
}
