// grid (977, 1, 1), block (256, 1, 1), 8192 bytes shared
// transpose(vectorize=4, threads=256x1, unroll=1)
extern "C" __global__ void __launch_bounds__(256)
transpose_kernel(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T5,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  const Shared<float> T0_t(0, 2048);
  {  // read
    const i32 i0_i1_o_o = static_cast<i32>(blockIdx.x);
    const i32 i0_i1_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(i0_i1_o_i_i < 256);
    #pragma unroll
    for (i32 i0_i1_o_i_o = 0; i0_i1_o_i_o < 2; ++i0_i1_o_i_o) {
      const i32 i0_i1_o = ((i0_i1_o_i_i + i0_i1_o_i_o * 256 + i0_i1_o_o * 512) < size0 ? (i0_i1_o_i_i + i0_i1_o_i_o * 256 + i0_i1_o_o * 512) : size0);
      const Vec<float, 4> T0_v = ldv<4>(T0, i0_i1_o * size1);
      #pragma unroll
      for (i32 i0_i1_i = 0; i0_i1_i < 4; ++i0_i1_i) {
        T0_t.put((i0_i1_i % 2) * 1024 + (i0_i1_i / 2) + i0_i1_o_i_i * 2 + i0_i1_o_i_o * 512, T0_v.v[i0_i1_i]);
      }
    }
  }
  sync_threads();
  {  // compute
    const i32 i1_o_i0_o_o = static_cast<i32>(blockIdx.x);
    const i32 i1_i_i0_o_i_i = static_cast<i32>(threadIdx.x);
    __builtin_assume(i1_i_i0_o_i_i < 256);
    if (i1_i_i0_o_i_i + i1_o_i0_o_o * 256 < size2) {
      const i32 i0_o = i1_i_i0_o_i_i + i1_o_i0_o_o * 256;
      #pragma unroll
      for (i32 i1_i_i0_o_i_o = 0; i1_i_i0_o_i_o < 2; ++i1_i_i0_o_i_o) {
        const Vec<float, 4> T0_s = T0_t.template getv<4>(i1_i_i0_o_i_i * 4 + i1_i_i0_o_i_o * 1024);
        const Vec<float, 4> T1_v = ldv<4>(T1, i0_o * 4 + i1_i_i0_o_i_o * size3);
        Vec<float, 4> T5_o;
        #pragma unroll
        for (i32 i0_i = 0; i0_i < 4; ++i0_i) {
          const float T3 = (T0_s.v[i0_i] + T1_v.v[i0_i]);  // T3 = fd.ops.add(T2, T1)
          const float T4 = relu(T3);  // T4 = fd.ops.relu(T3)
          const float T5_e = convert<float>(T4);  // T5 = fd.ops.cast(T4, dtype=DataType.Float)
          T5_o.v[i0_i] = T5_e;
        }
        stv<4>(T5, i0_o * 4 + i1_i_i0_o_i_o * size3, T5_o);
      }
    }
  }
}
