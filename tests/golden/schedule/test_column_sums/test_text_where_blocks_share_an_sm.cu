// grid (192, 1, 1), block (8, 64, 1), 20480 bytes shared
// nested(vectorize=8, threads=8x64, unroll=1, blocks=2, persistent in registers)
extern "C" __global__ void __launch_bounds__(512, 2)
fused_mul_sum_where_max_sub_exp_mean_bf16_nested(
    const bf16* T0,
    const bf16* T1,
    const bf16* T2,
    const bool* T3,
    bf16* __restrict__ T24,
    const i32 size0,
    const i64 divisor1,
    const i32 size2,
    const i32 size3) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32_1(4096, 4096);
  const Shared<float> scratch_f32(4096, 0);
  const Shared<float> T18_r(2048, 512);
  const Shared<float> T14_r(0, 512);
  const i32 i = static_cast<i32>(blockIdx.x);
  const i32 j_i = static_cast<i32>(threadIdx.y);
  const i32 k_o_i = static_cast<i32>(threadIdx.x);
  float T11_k[8];
  float T21[8];
  #pragma unroll
  for (i32 slot = 0; slot < 8; ++slot) {
    T21[slot] = 0.0f;
  }
  const Vec<bf16, 8> T0_v = ldv<8>(T0, i * size0 + k_o_i * 8);
  #pragma unroll
  for (i32 j_o = 0; j_o < 8; ++j_o) {
    float T11 = 0.0f;
    const Vec<bf16, 8> T1_v = ldv<8>(T1, index_div(i, divisor1) * size2 + j_i * size0 + j_o * size3 + k_o_i * 8);
    #pragma unroll
    for (i32 k_i = 0; k_i < 8; ++k_i) {
      const float T4 = convert<float>(T0_v.v[k_i]);  // T4 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T5 = convert<float>(T1_v.v[k_i]);  // T5 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T10 = (T4 * T5);  // T10 = fd.ops.mul(T7, T8)
      T11 = Sum::apply(T11, T10);
    }
    T11 = reduce_x<Sum, 8, 64>(T11, scratch_f32);
    T11_k[j_o] = T11;
    const bool T3_e = ld(T3, j_i + j_o * 64);
    const float T13 = (T3_e ? T11 : (-10000.0f));  // T13 = fd.ops.where(T12, T11, -10000.0)
    if (k_o_i < 1) {
      T14_r.put(j_i + j_o * 64, T13);
    }
  }
  sync_threads();
  const float T14 = reduce_rows<Max, 512, 8, 32>(T14_r, -infinity<float>());
  #pragma unroll
  for (i32 j_o = 0; j_o < 8; ++j_o) {
    const bool T3_e = ld(T3, j_i + j_o * 64);
    const float T13 = (T3_e ? T11_k[j_o] : (-10000.0f));  // T13 = fd.ops.where(T12, T11, -10000.0)
    const float T16 = (T13 - T14);  // T16 = fd.ops.sub(T13, T15)
    const float T17 = short_exp(T16);  // T17 = fd.ops.exp(T16)
    const Vec<bf16, 8> T2_v = ldv<8>(T2, index_div(i, divisor1) * size2 + j_i * size0 + j_o * size3 + k_o_i * 8);
    #pragma unroll
    for (i32 k_i = 0; k_i < 8; ++k_i) {
      const float T6 = convert<float>(T2_v.v[k_i]);  // T6 = fd.ops.cast(T2, dtype=DataType.Float)
      const float T20 = (T17 * T6);  // T20 = fd.ops.mul(T19, T9)
      T21[k_i] = Sum::apply(T21[k_i], T20);
    }
    if (k_o_i < 1) {
      T18_r.put(j_i + j_o * 64, T17);
    }
  }
  sync_threads();
  const float T18 = reduce_rows<Sum, 512, 8, 32>(T18_r, 0.0f);
  reduce_y<Sum, 8, 64, 8>(T21, scratch_f32_1);
  if (j_i < 1) {
    Vec<bf16, 8> T24_o;
    #pragma unroll
    for (i32 k_i = 0; k_i < 8; ++k_i) {
      const float T23 = (T21[k_i] / T18);  // T23 = fd.ops.div(T21, T22)
      const bf16 T24_e = convert<bf16>(T23);  // T24 = fd.ops.cast(T23, dtype=DataType.BFloat16)
      T24_o.v[k_i] = T24_e;
    }
    stv<8>(T24, i * size0 + k_o_i * 8, T24_o);
  }
}
