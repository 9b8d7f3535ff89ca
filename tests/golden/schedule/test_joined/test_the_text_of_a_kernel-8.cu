// grid (56, 1, 1), block (16, 8, 1), 2560 bytes shared
// joined(vectorize=1, threads=16x8, unroll=2)
extern "C" __global__ void __launch_bounds__(128)
fused_mul_sum_bf16_joined(
    const bf16* T0,
    const bf16* T1,
    const bf16* T2,
    const bf16* T3,
    bf16* __restrict__ T10,
    bf16* __restrict__ T15,
    bf16* __restrict__ T20,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3,
    const i32 size4,
    const i32 size5,
    const i32 size6) {
  const Shared<float> scratch_f32(0, 640);
  const i32 block = static_cast<i32>(blockIdx.x);
  if (block < size0) {
    const i32 i_o = block;
    const i32 i_i = static_cast<i32>(threadIdx.x);
    const i32 j_i = static_cast<i32>(threadIdx.y);
    float T9 = 0.0f;
    T9 = sum_of_products<Sum, 16, 8, 2>(T1, 0, size1, size2, i_o * 16, T0, 0, size1, size3, size1, scratch_f32);
    const bf16 T10_e = convert<bf16>(T9);  // T10 = fd.ops.cast(T9, dtype=DataType.BFloat16)
    st(T10, i_i + i_o * 16 + j_i * size2, T10_e);
  } else {
    if (block < size4) {
      const i32 i_o = block - size0;
      const i32 i_i = static_cast<i32>(threadIdx.x);
      const i32 j_i = static_cast<i32>(threadIdx.y);
      float T14 = 0.0f;
      T14 = sum_of_products<Sum, 16, 8, 2>(T2, 0, size1, size5, i_o * 16, T0, 0, size1, size3, size1, scratch_f32);
      const bf16 T15_e = convert<bf16>(T14);  // T15 = fd.ops.cast(T14, dtype=DataType.BFloat16)
      st(T15, i_i + i_o * 16 + j_i * size5, T15_e);
    } else {
      const i32 i_o = block - size4;
      const i32 i_i = static_cast<i32>(threadIdx.x);
      const i32 j_i = static_cast<i32>(threadIdx.y);
      float T19 = 0.0f;
      T19 = sum_of_products<Sum, 16, 8, 2>(T3, 0, size1, size6, i_o * 16, T0, 0, size1, size3, size1, scratch_f32);
      const bf16 T20_e = convert<bf16>(T19);  // T20 = fd.ops.cast(T19, dtype=DataType.BFloat16)
      st(T20, i_i + i_o * 16 + j_i * size6, T20_e);
    }
  }
}
