// grid (1024, 5, 1), block (256, 2, 1), 176 bytes shared
// nested(vectorize=8, threads=256x2, unroll=1, cluster=5, persistent in registers)
extern "C" __global__ void __cluster_dims__(1, 5, 1) __launch_bounds__(512)
fused_mul_sum_add_sub_bf16_nested(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    const bf16* __restrict__ T2,
    float* __restrict__ T8,
    bf16* __restrict__ T20,
    const i32 size0,
    const i64 divisor1,
    const i32 size2,
    const i32 size3,
    const i32 size4,
    const i32 size5) {
  const Shared<float> scratch_f32(112, 16);
  const Shared<i64> gates(96, 2);
  const Shared<i32> T13_r(48, 10);
  const Shared<i32> T11_r(0, 10);
  const i32 i = static_cast<i32>(blockIdx.x);
  const i32 j_o_o = static_cast<i32>(blockIdx.y);
  const i32 j_i = static_cast<i32>(threadIdx.y);
  const i32 k_o_i = static_cast<i32>(threadIdx.x);
  Vec<bf16, 8> T0_p[2];
  Vec<bf16, 8> T2_p[2];
  open_rows<10>(T11_r, gates, 0);
  open_rows<10>(T13_r, gates, 1);
  gates_made();
  float T8_e = 0.0f;
  float T10 = 0.0f;
  float T12 = 0.0f;
  const bf16 T1_e = ld(T1, index_mod(i, size0, divisor1) * size2 + j_i + j_o_o * 2);
  const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
  #pragma unroll
  for (i32 k_o_o = 0; k_o_o < 2; ++k_o_o) {
    T2_p[k_o_o] = ldv<8>(T2, i * size3 + j_i * size4 + j_o_o * size5 + k_o_i * 8 + k_o_o * 2048);
    T0_p[k_o_o] = ldv<8>(T0, i * size3 + j_i * size4 + j_o_o * size5 + k_o_i * 8 + k_o_o * 2048);
    #pragma unroll
    for (i32 k_i = 0; k_i < 8; ++k_i) {
      const float T6 = convert<float>(T2_p[k_o_o].v[k_i]);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
      const float T3 = convert<float>(T0_p[k_o_o].v[k_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T7 = (T6 * T3);  // T7 = fd.ops.mul(T6, T3)
      T8_e = Sum::apply(T8_e, T7);
      const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
      const float T9 = (T5 * T6);  // T9 = fd.ops.mul(T5, T6)
      T10 = Sum::apply(T10, T9);
      T12 = Sum::apply(T12, T5);
    }
  }
  T8_e = reduce_x<Sum, 256, 2>(T8_e, scratch_f32);
  T10 = reduce_x<Sum, 256, 2>(T10, scratch_f32);
  T12 = reduce_x<Sum, 256, 2>(T12, scratch_f32);
  gates_ready();
  put_rows<5>(T11_r, j_i + j_o_o * 2, T10, gates, 0);
  put_rows<5>(T13_r, j_i + j_o_o * 2, T12, gates, 1);
  if (k_o_i < 1) st(T8, i * size2 + j_i + j_o_o * 2, T8_e);
  const float T11 = reduce_rows<Sum, 10, 2, 8>(T11_r, 0.0f, gates, 0);
  const float T13 = reduce_rows<Sum, 10, 2, 8>(T13_r, 0.0f, gates, 1);
  #pragma unroll
  for (i32 k_o_o = 0; k_o_o < 2; ++k_o_o) {
    Vec<bf16, 8> T20_o;
    #pragma unroll
    for (i32 k_i = 0; k_i < 8; ++k_i) {
      const float T3 = convert<float>(T0_p[k_o_o].v[k_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
      const float T6 = convert<float>(T2_p[k_o_o].v[k_i]);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
      const float T15 = (T6 * T11);  // T15 = fd.ops.mul(T6, T14)
      const float T17 = (T15 + T13);  // T17 = fd.ops.add(T15, T16)
      const float T18 = (T17 * 2.4414063e-05f);  // T18 = fd.ops.mul(T17, 2.44140625e-05)
      const float T19 = (T5 - T18);  // T19 = fd.ops.sub(T5, T18)
      const bf16 T20_e = convert<bf16>(T19);  // T20 = fd.ops.cast(T19, dtype=DataType.BFloat16)
      T20_o.v[k_i] = T20_e;
    }
    stv<8>(T20, i * size3 + j_i * size4 + j_o_o * size5 + k_o_i * 8 + k_o_o * 2048, T20_o);
  }
}
