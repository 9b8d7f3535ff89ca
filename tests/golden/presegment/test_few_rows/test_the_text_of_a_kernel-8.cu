
// products(vectorize=1, threads=16x16, unroll=1, blocks=4)
extern "C" __global__ void __launch_bounds__(256, 4)
fused_mul_sum_bf16_products(
    const bf16* T0,
    const bf16* T1,
    bf16* __restrict__ T8,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  const Shared<float> scratch_f32(0, 1280);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(i_i < 16);
  const i32 j_i = static_cast<i32>(threadIdx.y);
  __builtin_assume(j_i < 16);
  const i32 j = (j_i < size0 ? j_i : size0);
  float T7 = 0.0f;
  T7 = sum_of_products<Sum, 16, 16, 1>(T1, 0, size1, size2, i_o * 16, T0, 0, size1, size3, size1, scratch_f32);
  const bf16 T8_e = convert<bf16>(T7);  // T8 = fd.ops.cast(T7, dtype=DataType.BFloat16)
  if (j_i < size3) st(T8, i_i + i_o * 16 + j * size2, T8_e);
}
