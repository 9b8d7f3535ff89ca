// grid (16, 1, 1), block (512, 1, 1), 64 bytes shared
// persistent(vectorize=4, threads=512x1, unroll=1)
extern "C" __global__ void __launch_bounds__(512)
fused_softmax_f32_persistent(
    const float* __restrict__ T0,
    float* __restrict__ T6,
    const i32 size0,
    const i32 size1) {
  const Shared<float> scratch_f32(0, 16);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  float T1 = -infinity<float>();
  #pragma unroll 4
  for (i32 j_o_o = 0; j_o_o < size0; ++j_o_o) {
    const Vec<float, 4> T0_v = ldv<4>(T0, i_o * size1 + j_o_i * 4 + j_o_o * 2048);
    #pragma unroll
    for (i32 j_i = 0; j_i < 4; ++j_i) {
      T1 = Max::apply(T1, T0_v.v[j_i]);
    }
  }
  T1 = reduce_x<Max, 512, 1>(T1, scratch_f32);
  float T4 = 0.0f;
  #pragma unroll 4
  for (i32 j_o_o = 0; j_o_o < size0; ++j_o_o) {
    const Vec<float, 4> T0_v = ldv<4>(T0, i_o * size1 + j_o_i * 4 + j_o_o * 2048);
    #pragma unroll
    for (i32 j_i = 0; j_i < 4; ++j_i) {
      const float T2 = (T0_v.v[j_i] - T1);  // T2 = fd.ops.sub(T0, T1)
      const float T3 = expf(T2);  // T3 = fd.ops.exp(T2)
      T4 = Sum::apply(T4, T3);
    }
  }
  T4 = reduce_x<Sum, 512, 1>(T4, scratch_f32);
  const Vec<float, 2> T4_d = divisor(T4);
  #pragma unroll 4
  for (i32 j_o_o = 0; j_o_o < size0; ++j_o_o) {
    const Vec<float, 4> T0_v = ldv<4>(T0, i_o * size1 + j_o_i * 4 + j_o_o * 2048);
    Vec<float, 4> T6_o;
    #pragma unroll
    for (i32 j_i = 0; j_i < 4; ++j_i) {
      const float T2 = (T0_v.v[j_i] - T1);  // T2 = fd.ops.sub(T0, T1)
      const float T3 = expf(T2);  // T3 = fd.ops.exp(T2)
      const float T5 = quotient(T3, T4_d);  // T5 = fd.ops.truediv(T3, T4)
      const float T6_e = convert<float>(T5);  // T6 = fd.ops.cast(T5, dtype=DataType.Float)
      T6_o.v[j_i] = T6_e;
    }
    stv<4>(T6, i_o * size1 + j_o_i * 4 + j_o_o * 2048, T6_o);
  }
}
