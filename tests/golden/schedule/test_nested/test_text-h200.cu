// grid (256, 1, 1), block (64, 8, 1), 192 bytes shared
// nested(vectorize=8, threads=64x8, unroll=1, persistent in registers)
extern "C" __global__ void __launch_bounds__(512)
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
  const Shared<float> scratch_f32(128, 16);
  const Shared<float> T13_r(64, 16);
  const Shared<float> T11_r(0, 16);
  const i32 i = static_cast<i32>(blockIdx.x);
  const i32 j_i = static_cast<i32>(threadIdx.y);
  const i32 k_o_i = static_cast<i32>(threadIdx.x);
  Vec<bf16, 8> T0_p[4];
  Vec<bf16, 8> T2_p[4];
  #pragma unroll
  for (i32 j_o = 0; j_o < 2; ++j_o) {
    float T8_e = 0.0f;
    float T10 = 0.0f;
    float T12 = 0.0f;
    const bf16 T1_e = ld(T1, index_mod(i, size0, divisor1) * size2 + j_i + j_o * 8);
    const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
    #pragma unroll
    for (i32 k_o_o = 0; k_o_o < 2; ++k_o_o) {
      T2_p[j_o * 2 + k_o_o] = ldv<8>(T2, i * size3 + j_i * size4 + j_o * size5 + k_o_i * 8 + k_o_o * 512);
      T0_p[j_o * 2 + k_o_o] = ldv<8>(T0, i * size3 + j_i * size4 + j_o * size5 + k_o_i * 8 + k_o_o * 512);
      #pragma unroll
      for (i32 k_i = 0; k_i < 8; ++k_i) {
        const float T6 = convert<float>(T2_p[j_o * 2 + k_o_o].v[k_i]);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
        const float T3 = convert<float>(T0_p[j_o * 2 + k_o_o].v[k_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T7 = (T6 * T3);  // T7 = fd.ops.mul(T6, T3)
        T8_e = Sum::apply(T8_e, T7);
        const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
        const float T9 = (T5 * T6);  // T9 = fd.ops.mul(T5, T6)
        T10 = Sum::apply(T10, T9);
        T12 = Sum::apply(T12, T5);
      }
    }
    T8_e = reduce_x<Sum, 64, 8>(T8_e, scratch_f32);
    T10 = reduce_x<Sum, 64, 8>(T10, scratch_f32);
    T12 = reduce_x<Sum, 64, 8>(T12, scratch_f32);
    if (k_o_i < 1) {
      T11_r.put(j_i + j_o * 8, T10);
    }
    if (k_o_i < 1) {
      T13_r.put(j_i + j_o * 8, T12);
    }
    if (k_o_i < 1) st(T8, i * size2 + j_i + j_o * 8, T8_e);
  }
  sync_threads();
  const float T11 = reduce_rows<Sum, 16, 8, 8>(T11_r, 0.0f);
  const float T13 = reduce_rows<Sum, 16, 8, 8>(T13_r, 0.0f);
  #pragma unroll
  for (i32 j_o = 0; j_o < 2; ++j_o) {
    const bf16 T1_e = ld(T1, index_mod(i, size0, divisor1) * size2 + j_i + j_o * 8);
    const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
    #pragma unroll
    for (i32 k_o_o = 0; k_o_o < 2; ++k_o_o) {
      Vec<bf16, 8> T20_o;
      #pragma unroll
      for (i32 k_i = 0; k_i < 8; ++k_i) {
        const float T3 = convert<float>(T0_p[j_o * 2 + k_o_o].v[k_i]);  // T3 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T5 = (T3 * T4);  // T5 = fd.ops.mul(T3, T4)
        const float T6 = convert<float>(T2_p[j_o * 2 + k_o_o].v[k_i]);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
        const float T15 = (T6 * T11);  // T15 = fd.ops.mul(T6, T14)
        const float T17 = (T15 + T13);  // T17 = fd.ops.add(T15, T16)
        const float T18 = (T17 * 6.1035156e-05f);  // T18 = fd.ops.mul(T17, 6.103515625e-05)
        const float T19 = (T5 - T18);  // T19 = fd.ops.sub(T5, T18)
        const bf16 T20_e = convert<bf16>(T19);  // T20 = fd.ops.cast(T19, dtype=DataType.BFloat16)
        T20_o.v[k_i] = T20_e;
      }
      stv<8>(T20, i * size3 + j_i * size4 + j_o * size5 + k_o_i * 8 + k_o_o * 512, T20_o);
    }
  }
}
