// grid (65, 1, 1), block (128, 1, 1), 0 bytes shared
// pointwise(vectorize=8, threads=128x1, unroll=1)
extern "C" __global__ void __launch_bounds__(128)
fused_mul_relu_bf16_pointwise(
    const bf16* T0,
    const float* T1,
    bf16* __restrict__ T5,
    const i32 size0,
    const i64 divisor1,
    const i32 size2,
    const i32 size3,
    const i32 size4) {
  next_kernel_may_start();
  after_earlier_kernels();
  const i32 i_o_o_o = static_cast<i32>(blockIdx.x);
  const i32 i_o_i = static_cast<i32>(threadIdx.x);
  const Vec<bf16, 8> T0_v = lde<8>(T0, static_cast<i32>(index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + index_div((i_o_i + i_o_o_o * 128), divisor1) * size2 + ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8) * -1), static_cast<i32>(size3));
  const float T1_e = ld(T1, index_div((i_o_i + i_o_o_o * 128), divisor1));
  Vec<bf16, 8> T5_o;
  if ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8 < index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + 1 && index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 < ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8) + size4) {
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      const float T2 = convert<float>(T0_v.v[j_i]);  // T2 = fd.ops.cast(T0, dtype=DataType.Float)
      const float T3 = (T2 * T1_e);  // T3 = fd.ops.mul(T2, T1)
      const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
      const bf16 T5_e = convert<bf16>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.BFloat16)
      T5_o.v[j_i] = T5_e;
    }
    stv<8>(T5, index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + index_div((i_o_i + i_o_o_o * 128), divisor1) * size2 + ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8) * -1, T5_o);
  } else {
    #pragma unroll
    for (i32 j_i = 0; j_i < 8; ++j_i) {
      if ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8 < index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + j_i + 1 && index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + j_i < ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8) + size2) {
        const float T2 = convert<float>(T0_v.v[j_i]);  // T2 = fd.ops.cast(T0, dtype=DataType.Float)
        const float T3 = (T2 * T1_e);  // T3 = fd.ops.mul(T2, T1)
        const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
        const bf16 T5_e = convert<bf16>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.BFloat16)
        st(T5, index_mod((i_o_i + i_o_o_o * 128), size0, divisor1) * 8 + index_div((i_o_i + i_o_o_o * 128), divisor1) * size2 + ((index_div((i_o_i + i_o_o_o * 128), divisor1) * size2) % 8) * -1 + j_i, T5_e);
      }
    }
  }
}
