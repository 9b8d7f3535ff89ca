// grid (4096, 1, 1), block (256, 1, 1), 16384 bytes shared
// transpose(vectorize=8, threads=256x1, unroll=1)
extern "C" __global__ void __launch_bounds__(256)
transpose_kernel(
    const bf16* __restrict__ T0,
    const bf16* __restrict__ T1,
    bf16* __restrict__ T7,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i64 divisor3,
    const i32 size4,
    const i32 size5,
    const i32 size6,
    const i32 size7) {
  const Shared<bf16> T0_t(0, 8192);
  {  // read
    const i32 i1_o_o_i0_o = static_cast<i32>(blockIdx.x);
    const i32 i0_i_i1_o_i_i = static_cast<i32>(threadIdx.x);
    #pragma unroll
    for (i32 i0_i_i1_o_i_o = 0; i0_i_i1_o_i_o < 4; ++i0_i_i1_o_i_o) {
      const Vec<bf16, 8> T0_v = ldv<8>(T0, (i0_i_i1_o_i_i % 8) * 8 + (i0_i_i1_o_i_i / 8) * size0 + i0_i_i1_o_i_o * size1 + index_mod(i1_o_o_i0_o, size2, divisor3) * size4 + index_div(i1_o_o_i0_o, divisor3) * 64);
      #pragma unroll
      for (i32 i1_i = 0; i1_i < 8; ++i1_i) {
        T0_t.put((((i0_i_i1_o_i_i % 8) + (i0_i_i1_o_i_i / 64) + i0_i_i1_o_i_o * 4) % 16) * 8 + ((i0_i_i1_o_i_i / 8) % 8) + (i0_i_i1_o_i_i % 8) * 1024 + i1_i * 128, T0_v.v[i1_i]);
      }
    }
  }
  sync_threads();
  {  // compute
    const i32 i1_o_i0_o_o = static_cast<i32>(blockIdx.x);
    const i32 i1_i_i0_o_i_i = static_cast<i32>(threadIdx.x);
    #pragma unroll
    for (i32 i1_i_i0_o_i_o = 0; i1_i_i0_o_i_o < 4; ++i1_i_i0_o_i_o) {
      const Vec<bf16, 8> T0_s = T0_t.template getv<8>((((i1_i_i0_o_i_i % 16) + (i1_i_i0_o_i_i / 128) + i1_i_i0_o_i_o * 2) % 16) * 8 + (i1_i_i0_o_i_i / 16) * 128 + i1_i_i0_o_i_o * 2048);
      const Vec<bf16, 8> T1_v = ldv<8>(T1, (i1_i_i0_o_i_i % 16) * 8 + (i1_i_i0_o_i_i / 16) * size5 + i1_i_i0_o_i_o * size6 + index_mod(i1_o_i0_o_o, size2, divisor3) * 128 + index_div(i1_o_i0_o_o, divisor3) * size7);
      Vec<bf16, 8> T7_o;
      #pragma unroll
      for (i32 i0_i = 0; i0_i < 8; ++i0_i) {
        const float T3 = convert<float>(T0_s.v[i0_i]);  // T3 = fd.ops.cast(T2, dtype=DataType.Float)
        const float T4 = convert<float>(T1_v.v[i0_i]);  // T4 = fd.ops.cast(T1, dtype=DataType.Float)
        const float T5 = (T3 + T4);  // T5 = fd.ops.add(T3, T4)
        const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
        const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
        T7_o.v[i0_i] = T7_e;
      }
      stv<8>(T7, (i1_i_i0_o_i_i % 16) * 8 + (i1_i_i0_o_i_i / 16) * size5 + i1_i_i0_o_i_o * size6 + index_mod(i1_o_i0_o_o, size2, divisor3) * 128 + index_div(i1_o_i0_o_o, divisor3) * size7, T7_o);
    }
  }
}
