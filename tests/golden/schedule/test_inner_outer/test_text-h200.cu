// grid (256, 1, 1), block (256, 1, 1), 32 bytes shared
// inner_outer(vectorize=8, threads=256x1, unroll=1, blocks=2, persistent in registers)
extern "C" __global__ void __launch_bounds__(256, 2)
fused_sub_mul_sum_bf16_inner_outer(
    const bf16* __restrict__ T0,
    const float* __restrict__ T1,
    const float* __restrict__ T2,
    const bf16* __restrict__ T3,
    const bf16* __restrict__ T4,
    float* __restrict__ T22,
    float* __restrict__ T23,
    bf16* __restrict__ T24,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  const Shared<float> scratch_f32(0, 8);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  float T22_e[16];
  #pragma unroll
  for (i32 slot = 0; slot < 16; ++slot) {
    T22_e[slot] = 0.0f;
  }
  float T23_e[16];
  #pragma unroll
  for (i32 slot = 0; slot < 16; ++slot) {
    T23_e[slot] = 0.0f;
  }
  #pragma unroll 1
  for (i32 i_i_o = 0; i_i_o < size0; ++i_i_o) {
    Vec<bf16, 8> T3_p[2];
    Vec<bf16, 8> T0_p[2];
    Vec<bf16, 8> T4_p[2];
    float T14 = 0.0f;
    float T13 = 0.0f;
    const float T1_e = ld(T1, i_i_o + i_o * size0);
    const float T2_e = ld(T2, i_i_o + i_o * size0);
    #pragma unroll
    for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
      if (i_i_o < size3) prefetch(T3, i_i_o * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 2048 + size1);
      T3_p[j_o_o] = ldv<8>(T3, i_i_o * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 2048);
      if (i_i_o < size3) prefetch(T0, i_i_o * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 2048 + size1);
      T0_p[j_o_o] = ldv<8>(T0, i_i_o * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 2048);
      T4_p[j_o_o] = ldv<8>(T4, j_o_i * 8 + j_o_o * 2048);
      #pragma unroll
      for (i32 j_i = 0; j_i < 8; ++j_i) {
        const float T8 = convert<float>(T3_p[j_o_o].v[j_i]);  // T8 = fd.ops.cast(T3, dtype=DataType.Float)
        T23_e[j_i + j_o_o * 8] = Sum::apply(T23_e[j_i + j_o_o * 8], T8);
        const float T5 = convert<float>(T0_p[j_o_o].v[j_i]);  // T5 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T6 = (T5 - T1_e);  // T6 = fd.ops.sub(T5, T1)
        const float T7 = (T6 * T2_e);  // T7 = fd.ops.mul(T6, T2)
        const float T21 = (T8 * T7);  // T21 = fd.ops.mul(T8, T7)
        T22_e[j_i + j_o_o * 8] = Sum::apply(T22_e[j_i + j_o_o * 8], T21);
        const float T9 = convert<float>(T4_p[j_o_o].v[j_i]);  // T9 = fd.ops.cast(T4, dtype=DataType.Float)
        const float T11 = (T8 * T9);  // T11 = fd.ops.mul(T8, T10)
        T14 = Sum::apply(T14, T11);
        const float T12 = (T11 * T7);  // T12 = fd.ops.mul(T11, T7)
        T13 = Sum::apply(T13, T12);
      }
    }
    T14 = reduce_x<Sum, 256, 1>(T14, scratch_f32);
    T13 = reduce_x<Sum, 256, 1>(T13, scratch_f32);
    const float T15 = (T13 * 0.00024414062f);  // T15 = fd.ops.mul(T13, 0.000244140625)
    const float T18 = (T14 * 0.00024414062f);  // T18 = fd.ops.mul(T14, 0.000244140625)
    #pragma unroll
    for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
      Vec<bf16, 8> T24_o;
      #pragma unroll
      for (i32 j_i = 0; j_i < 8; ++j_i) {
        const float T8 = convert<float>(T3_p[j_o_o].v[j_i]);  // T8 = fd.ops.cast(T3, dtype=DataType.Float)
        const float T9 = convert<float>(T4_p[j_o_o].v[j_i]);  // T9 = fd.ops.cast(T4, dtype=DataType.Float)
        const float T11 = (T8 * T9);  // T11 = fd.ops.mul(T8, T10)
        const float T5 = convert<float>(T0_p[j_o_o].v[j_i]);  // T5 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T6 = (T5 - T1_e);  // T6 = fd.ops.sub(T5, T1)
        const float T7 = (T6 * T2_e);  // T7 = fd.ops.mul(T6, T2)
        const float T16 = (T15 * T7);  // T16 = fd.ops.mul(T15, T7)
        const float T17 = (T11 - T16);  // T17 = fd.ops.sub(T11, T16)
        const float T19 = (T17 - T18);  // T19 = fd.ops.sub(T17, T18)
        const float T20 = (T19 * T2_e);  // T20 = fd.ops.mul(T19, T2)
        const bf16 T24_e = convert<bf16>(T20);  // T24 = fd.ops.cast(T20, dtype=DataType.BFloat16)
        T24_o.v[j_i] = T24_e;
      }
      stv<8>(T24, i_i_o * size1 + i_o * size2 + j_o_i * 8 + j_o_o * 2048, T24_o);
    }
  }
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    Vec<float, 8> T22_o;
    Vec<float, 8> T23_o;
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      T22_o.v[j_i] = T22_e[j_i + j_o_o * 8];
      T23_o.v[j_i] = T23_e[j_i + j_o_o * 8];
    }
    stv<8>(T22, i_o * size1 + j_o_i * 8 + j_o_o * 2048, T22_o);
    stv<8>(T23, i_o * size1 + j_o_i * 8 + j_o_o * 2048, T23_o);
  }
}
