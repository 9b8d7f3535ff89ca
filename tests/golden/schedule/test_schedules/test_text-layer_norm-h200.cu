// grid (2048, 1, 1), block (64, 2, 1), 16 bytes shared
// persistent(vectorize=8, threads=64x2, unroll=1, persistent in registers)
extern "C" __global__ void __launch_bounds__(128)
fused_layer_norm_bf16_persistent(
    const bf16* T0,
    const bf16* T1,
    const bf16* T2,
    bf16* __restrict__ T19,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 4);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 i_i = static_cast<i32>(threadIdx.y);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  Vec<bf16, 8> T0_p[2];
  float T4 = 0.0f;
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    T0_p[j_o_o] = ldv<8>(T0, i_i * size0 + i_o * size1 + j_o_i * 8 + j_o_o * 512);
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      const float T3 = convert<float>(T0_p[j_o_o].v[j_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      T4 = Sum::apply(T4, T3);
    }
  }
  T4 = reduce_x<Sum, 64, 2>(T4, scratch_f32);
  float T8 = 0.0f;
  const float T5_by_n = static_cast<float>(size2);
  const Vec<float, 2> T5_by = by_count(T5_by_n);
  const float T5 = over_count(T4, T5_by);  // T5 = fd.ops.truediv(T4, T5_by)
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      const float T3 = convert<float>(T0_p[j_o_o].v[j_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T6 = (T3 - T5);  // T6 = fd.ops.sub(T3, T5)
      const float T7 = (T6 * T6);  // T7 = fd.ops.mul(T6, T6)
      T8 = Sum::apply(T8, T7);
    }
  }
  T8 = reduce_x<Sum, 64, 2>(T8, scratch_f32);
  const float T9_by_n = static_cast<float>(size3);
  const Vec<float, 2> T9_by = by_count(T9_by_n);
  const float T9 = over_count(T8, T9_by);  // T9 = fd.ops.truediv(T8, T9_by)
  const float T10 = (T9 + 1e-05f);  // T10 = fd.ops.add(T9, 1e-05)
  const float T11 = rsqrt_(T10);  // T11 = fd.ops.rsqrt(T10)
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    const Vec<bf16, 8> T1_v = ldv<8>(T1, j_o_i * 8 + j_o_o * 512);
    const Vec<bf16, 8> T2_v = ldv<8>(T2, j_o_i * 8 + j_o_o * 512);
    Vec<bf16, 8> T19_o;
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      const float T3 = convert<float>(T0_p[j_o_o].v[j_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T6 = (T3 - T5);  // T6 = fd.ops.sub(T3, T5)
      const float T12 = (T6 * T11);  // T12 = fd.ops.mul(T6, T11)
      const float T13 = convert<float>(T1_v.v[j_i]);  // T13 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T15 = (T12 * T13);  // T15 = fd.ops.mul(T12, T14)
      const float T16 = convert<float>(T2_v.v[j_i]);  // T16 = fd.ops.cast(T2, dtype=DataType.Float)
      const float T18 = (T15 + T16);  // T18 = fd.ops.add(T15, T17)
      const bf16 T19_e = convert<bf16>(T18);  // T19 = fd.ops.cast(T18, dtype=DataType.BFloat16)
      T19_o.v[j_i] = T19_e;
    }
    stv<8>(T19, i_i * size0 + i_o * size1 + j_o_i * 8 + j_o_o * 512, T19_o);
  }
}
