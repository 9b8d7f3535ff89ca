// grid (112, 1, 1), block (32, 8, 1), 0 bytes shared
// joined(vectorize=8, threads=32x8, unroll=1)
extern "C" __global__ void __launch_bounds__(256)
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
    const i32 size3) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 0);
  const i32 block = static_cast<i32>(blockIdx.x);
  if (block < size0) {
    const i32 i_o = block;
    const i32 i_i = static_cast<i32>(threadIdx.y);
    const i32 j_o_i = static_cast<i32>(threadIdx.x);
    float T9 = 0.0f;
    #pragma unroll
    for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
      const Vec<bf16, 8> T0_v = ldv<8>(T0, j_o_i * 8 + j_o_o * 256);
      const Vec<bf16, 8> T1_v = ldv<8>(T1, i_i * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 256);
      #pragma unroll
      for (i32 j_i = 0; j_i < 8; ++j_i) {
        const float T4 = convert<float>(T0_v.v[j_i]);  // T4 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T6 = convert<float>(T1_v.v[j_i]);  // T6 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T8 = (T4 * T6);  // T8 = fd.ops.mul(T5, T7)
        T9 = Sum::apply(T9, T8);
      }
    }
    T9 = reduce_x<Sum, 32, 8>(T9, scratch_f32);
    const bf16 T10_e = convert<bf16>(T9);  // T10 = fd.ops.cast(T9, dtype=DataType.BFloat16)
    if (j_o_i < 1) st(T10, i_i + i_o * 8, T10_e);
  } else {
    if (block < size3) {
      const i32 i_o = block - size0;
      const i32 i_i = static_cast<i32>(threadIdx.y);
      const i32 j_o_i = static_cast<i32>(threadIdx.x);
      float T14 = 0.0f;
      #pragma unroll
      for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
        const Vec<bf16, 8> T0_v = ldv<8>(T0, j_o_i * 8 + j_o_o * 256);
        const Vec<bf16, 8> T2_v = ldv<8>(T2, i_i * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 256);
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          const float T4 = convert<float>(T0_v.v[j_i]);  // T4 = fd.ops.cast(T0, dtype=DataType.Float)
          const float T11 = convert<float>(T2_v.v[j_i]);  // T11 = fd.ops.cast(T2, dtype=DataType.Float)
          const float T13 = (T4 * T11);  // T13 = fd.ops.mul(T5, T12)
          T14 = Sum::apply(T14, T13);
        }
      }
      T14 = reduce_x<Sum, 32, 8>(T14, scratch_f32);
      const bf16 T15_e = convert<bf16>(T14);  // T15 = fd.ops.cast(T14, dtype=DataType.BFloat16)
      if (j_o_i < 1) st(T15, i_i + i_o * 8, T15_e);
    } else {
      const i32 i_o = block - size3;
      const i32 i_i = static_cast<i32>(threadIdx.y);
      const i32 j_o_i = static_cast<i32>(threadIdx.x);
      float T19 = 0.0f;
      #pragma unroll
      for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
        const Vec<bf16, 8> T0_v = ldv<8>(T0, j_o_i * 8 + j_o_o * 256);
        const Vec<bf16, 8> T3_v = ldv<8>(T3, i_i * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 256);
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          const float T4 = convert<float>(T0_v.v[j_i]);  // T4 = fd.ops.cast(T0, dtype=DataType.Float)
          const float T16 = convert<float>(T3_v.v[j_i]);  // T16 = fd.ops.cast(T3, dtype=DataType.Float)
          const float T18 = (T4 * T16);  // T18 = fd.ops.mul(T5, T17)
          T19 = Sum::apply(T19, T18);
        }
      }
      T19 = reduce_x<Sum, 32, 8>(T19, scratch_f32);
      const bf16 T20_e = convert<bf16>(T19);  // T20 = fd.ops.cast(T19, dtype=DataType.BFloat16)
      if (j_o_i < 1) st(T20, i_i + i_o * 8, T20_e);
    }
  }
}
