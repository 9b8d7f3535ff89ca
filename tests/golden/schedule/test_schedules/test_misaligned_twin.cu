// grid (2048, 1, 1), block (128, 1, 1), 0 bytes shared
// pointwise(vectorize=8, threads=128x1, unroll=2)
extern "C" __global__ void __launch_bounds__(128)
fused_add_relu_bf16_pointwise(
    const bf16* T0,
    const bf16* T1,
    bf16* __restrict__ T7,
    const i32 size0,
    const i32 size1) {
  after_earlier_kernels();
  const i32 i_o_o_o = static_cast<i32>(blockIdx.x);
  const i32 i_o_i = static_cast<i32>(threadIdx.x);
  #pragma unroll
  for (i32 i_o_o_i = 0; i_o_o_i < 2; ++i_o_o_i) {
    Vec<bf16, 8> T7_o;
    #pragma unroll
    for (i32 i_i = 0; i_i < 8; ++i_i) {
      const bf16 T0_e = ld(T0, i_i + i_o_i * 8 + i_o_o_i * size0 + i_o_o_o * size1);
      const float T2 = convert<float>(T0_e);  // T2 = fd.ops.cast(T0, dtype=DataType.Float)
      const bf16 T1_e = ld(T1, i_i + i_o_i * 8);
      const float T3 = convert<float>(T1_e);  // T3 = fd.ops.cast(T1, dtype=DataType.Float)
      const float T5 = (T2 + T3);  // T5 = fd.ops.add(T2, T4)
      const float T6 = relu(T5);  // T6 = fd.ops.relu(T5)
      const bf16 T7_e = convert<bf16>(T6);  // T7 = fd.ops.cast(T6, dtype=DataType.BFloat16)
      T7_o.v[i_i] = T7_e;
    }
    stv<8>(T7, i_o_i * 8 + i_o_o_i * size0 + i_o_o_o * size1, T7_o);
  }
}
