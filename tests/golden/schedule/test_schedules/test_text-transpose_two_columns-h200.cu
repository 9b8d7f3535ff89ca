// grid (977, 1, 1), block (256, 1, 1), 8192 bytes shared
// transpose(vectorize=4, threads=256x1, unroll=1)
extern "C" __global__ void __launch_bounds__(256)
fused_add_relu_f32_transpose(
    const float* T0,
    const float* T1,
    float* __restrict__ T5,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  after_earlier_kernels();
  const Shared<float> T0_t(0, 2048);
  {  // read
    const i32 i_o_o = static_cast<i32>(blockIdx.x);
    const i32 i_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(i_o_i_i < 256);
    #pragma unroll
    for (i32 i_o_i_o = 0; i_o_i_o < 2; ++i_o_i_o) {
      const i32 i_o = ((i_o_i_i + i_o_i_o * 256 + i_o_o * 512) < size0 ? (i_o_i_i + i_o_i_o * 256 + i_o_o * 512) : size0);
      const Vec<float, 4> T0_v = ldv<4>(T0, i_o * size1);
      #pragma unroll
      for (i32 i_i = 0; i_i < 4; ++i_i) {
        T0_t.put((i_i % 2) * 1024 + (i_i / 2) + i_o_i_i * 2 + i_o_i_o * 512, T0_v.v[i_i]);
      }
    }
  }
  sync_threads();
  {  // compute
    const i32 i_o_j_o_o = static_cast<i32>(blockIdx.x);
    const i32 i_i_j_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(i_i_j_o_i_i < 256);
    if (i_i_j_o_i_i + i_o_j_o_o * 256 < size2) {
      const i32 j_o = i_i_j_o_i_i + i_o_j_o_o * 256;
      #pragma unroll
      for (i32 i_i_j_o_i_o = 0; i_i_j_o_i_o < 2; ++i_i_j_o_i_o) {
        const Vec<float, 4> T0_s = T0_t.template getv<4>(i_i_j_o_i_i * 4 + i_i_j_o_i_o * 1024);
        const Vec<float, 4> T1_v = ldv<4>(T1, i_i_j_o_i_o * size3 + j_o * 4);
        Vec<float, 4> T5_o;
        #pragma unroll
        for (i32 j_i = 0; j_i < 4; ++j_i) {
          const float T3 = (T0_s.v[j_i] + T1_v.v[j_i]);  // T3 = fd.ops.add(T2, T1)
          const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
          const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
          T5_o.v[j_i] = T5_e;
        }
        stv<4>(T5, i_i_j_o_i_o * size3 + j_o * 4, T5_o);
      }
    }
  }
}
