// grid (4096, 1, 1), block (512, 1, 1), 16384 bytes shared
// transpose(vectorize=8, threads=512x1, unroll=1)
extern "C" __global__ void __launch_bounds__(512)
fused_add_relu_bf16_transpose(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i32 size0,
    const i64 divisor1,
    const i32 size2,
    const i32 size3,
    const i32 size4,
    const i32 size5,
    const i32 size6,
    const i32 size7) {
  const Shared<bf16> T0_t(0, 8192);
  {  // read
    const i32 i_o_o_j_o = static_cast<i32>(blockIdx.x);
    const i32 j_i_i_o_i_i = static_cast<i32>(threadIdx.x);
    #pragma unroll
    for (i32 j_i_i_o_i_o = 0; j_i_i_o_i_o < 2; ++j_i_i_o_i_o) {
      const Vec<bf16, 8> T0_v = ldv<8>(T0, index_mod(i_o_o_j_o, size0, divisor1) * size2 + index_div(i_o_o_j_o, divisor1) * 64 + (j_i_i_o_i_i % 8) * 8 + (j_i_i_o_i_i / 8) * size3 + j_i_i_o_i_o * size4);
      #pragma unroll
      for (i32 i_i = 0; i_i < 8; ++i_i) {
        T0_t.put((((j_i_i_o_i_i % 8) * 8 + (j_i_i_o_i_i / 8) + j_i_i_o_i_o * 64) % 128) + i_i * 128 + (j_i_i_o_i_i % 8) * 1024, T0_v.v[i_i]);
      }
    }
  }
  sync_threads();
  {  // compute
    const i32 i_o_j_o_o = static_cast<i32>(blockIdx.x);
    const i32 i_i_j_o_i_i = static_cast<i32>(threadIdx.x);
    #pragma unroll
    for (i32 i_i_j_o_i_o = 0; i_i_j_o_i_o < 2; ++i_i_j_o_i_o) {
      const Vec<bf16, 8> T0_s = T0_t.template getv<8>((((i_i_j_o_i_i % 16) + (i_i_j_o_i_i / 128) + i_i_j_o_i_o * 4) % 16) * 8 + (i_i_j_o_i_i / 16) * 128 + i_i_j_o_i_o * 4096);
      const Vec<bf16, 8> T1_v = ldv<8>(T1, (i_i_j_o_i_i % 16) * 8 + (i_i_j_o_i_i / 16) * size5 + i_i_j_o_i_o * size6 + index_mod(i_o_j_o_o, size0, divisor1) * 128 + index_div(i_o_j_o_o, divisor1) * size7);
      Vec<bf16, 8> T7_o;
      #pragma unroll
      for (i32 j_i = 0; j_i < 8; ++j_i) {
        const float T3 = convert<float>(T0_s.v[j_i]);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const float T4 = convert<float>(T1_v.v[j_i]);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        T7_o.v[j_i] = T7_e;
      }
      stv<8>(T7, (i_i_j_o_i_i % 16) * 8 + (i_i_j_o_i_i / 16) * size5 + i_i_j_o_i_o * size6 + index_mod(i_o_j_o_o, size0, divisor1) * 128 + index_div(i_o_j_o_o, divisor1) * size7, T7_o);
    }
  }
}
