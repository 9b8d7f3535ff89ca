// grid (4096, 1, 1), block (512, 1, 1), 16384 bytes shared
// transpose(vectorize=1, threads=512x1, unroll=1)
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
    const i32 size6) {
  const Shared<bf16> T0_t(0, 8192);
  {  // read
    const i32 i_o_o_j_o = static_cast<i32>(blockIdx.x);
    const i32 j_i_i_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(j_i_i_o_i_i < 512);
    #pragma unroll
    for (i32 j_i_i_o_i_o = 0; j_i_i_o_i_o < 2; ++j_i_i_o_i_o) {
      const i32 j = ((index_mod(i_o_o_j_o, size0, divisor1) * 128 + (j_i_i_o_i_i / 8) + j_i_i_o_i_o * 64) < size2 ? (index_mod(i_o_o_j_o, size0, divisor1) * 128 + (j_i_i_o_i_i / 8) + j_i_i_o_i_o * 64) : size2);
      const Vec<bf16, 8> T0_v = ldv<8>(T0, index_div(i_o_o_j_o, divisor1) * 64 + j * size3 + (j_i_i_o_i_i % 8) * 8);
      #pragma unroll
      for (i32 i_i = 0; i_i < 8; ++i_i) {
        T0_t.put((((j_i_i_o_i_i % 8) * 4 + (j_i_i_o_i_i / 8) + j_i_i_o_i_o * 64) % 128) + i_i * 128 + (j_i_i_o_i_i % 8) * 1024, T0_v.v[i_i]);
      }
    }
  }
  sync_threads();
  {  // compute
    const i32 i_o_j_o_o = static_cast<i32>(blockIdx.x);
    const i32 i_i_j_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(i_i_j_o_i_i < 512);
    if ((i_i_j_o_i_i % 128) + index_mod(i_o_j_o_o, size0, divisor1) * 128 < size4) {
      const i32 j_o = (i_i_j_o_i_i % 128) + index_mod(i_o_j_o_o, size0, divisor1) * 128;
      #pragma unroll 4
      for (i32 i_i_j_o_i_o = 0; i_i_j_o_i_o < 16; ++i_i_j_o_i_o) {
        const bf16 T0_s = T0_t.get(((((i_i_j_o_i_i % 128) / 2) + (i_i_j_o_i_o / 2) * 2) % 64) * 2 + (i_i_j_o_i_i % 2) + (i_i_j_o_i_i / 128) * 128 + i_i_j_o_i_o * 512);
        const float T3 = convert<float>(T0_s);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const bf16 T1_e = ld(T1, (i_i_j_o_i_i / 128) * size4 + i_i_j_o_i_o * size5 + index_div(i_o_j_o_o, divisor1) * size6 + j_o);
        const float T4 = convert<float>(T1_e);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        st(T7, (i_i_j_o_i_i / 128) * size4 + i_i_j_o_i_o * size5 + index_div(i_o_j_o_o, divisor1) * size6 + j_o, T7_e);
      }
    }
  }
}
