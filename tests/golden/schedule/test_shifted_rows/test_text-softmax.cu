// grid (64, 1, 1), block (512, 1, 1), 64 bytes shared
// persistent(vectorize=8, threads=512x1, unroll=1, persistent in registers)
extern "C" __global__ void __launch_bounds__(512)
fused_softmax_bf16_persistent(
    const bf16* T0,
    bf16* __restrict__ T9,
    const i32 size0,
    const i32 size1,
    const i32 size2,
    const i32 size3) {
  next_kernel_may_start();
  after_earlier_kernels();
  const Shared<float> scratch_f32(0, 16);
  const i32 i_o = static_cast<i32>(blockIdx.x);
  const i32 j_o_i = static_cast<i32>(threadIdx.x);
  __builtin_assume(j_o_i < 512);
  Vec<bf16, 8> T0_p[2];
  float T6_p[16];
  float T2 = -infinity<float>();
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    if (j_o_o < 1 || j_o_i + j_o_o * 512 < size0) {
      const i32 j_o = j_o_i + j_o_o * 512;
      T0_p[j_o_o] = lde<8>(T0, static_cast<i32>(((i_o * size1) % 8) * -1 + i_o * size1 + j_o * 8), static_cast<i32>(size2));
    }
  }
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    if (j_o_o < 1 || j_o_i + j_o_o * 512 < size0) {
      const i32 j_o = j_o_i + j_o_o * 512;
      if (j_o * 8 < ((i_o * size1) % 8) + size3 && (0 < j_o_o || (i_o * size1) % 8 < j_o * 8 + 1)) {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          const float T1 = convert<float>(T0_p[j_o_o].v[j_i]);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
          T2 = Max::apply(T2, T1);
        }
      } else {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          if ((i_o * size1) % 8 < j_i + j_o * 8 + 1 && j_i + j_o * 8 < ((i_o * size1) % 8) + size1) {
            const float T1 = convert<float>(T0_p[j_o_o].v[j_i]);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
            T2 = Max::apply(T2, T1);
          }
        }
      }
    }
  }
  T2 = reduce_x<Max, 512, 1>(T2, scratch_f32);
  float T7 = 0.0f;
  const bf16 T3 = convert<bf16>(T2);  // T3 = fd.ops.cast(T2, dtype=DataType.BFloat16)
  const float T4 = convert<float>(T3);  // T4 = fd.ops.cast(T3, dtype=DataType.Float)
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    if (j_o_o < 1 || j_o_i + j_o_o * 512 < size0) {
      const i32 j_o = j_o_i + j_o_o * 512;
      if (j_o * 8 < ((i_o * size1) % 8) + size3 && (0 < j_o_o || (i_o * size1) % 8 < j_o * 8 + 1)) {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          const float T1 = convert<float>(T0_p[j_o_o].v[j_i]);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
          const float T5 = (T1 - T4);  // T5 = fd.ops.sub(T1, T4)
          const float T6 = short_exp(T5);  // T6 = fd.ops.exp(T5)
          T6_p[j_i + j_o_o * 8] = T6;
          T7 = Sum::apply(T7, T6);
        }
      } else {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          if ((i_o * size1) % 8 < j_i + j_o * 8 + 1 && j_i + j_o * 8 < ((i_o * size1) % 8) + size1) {
            const float T1 = convert<float>(T0_p[j_o_o].v[j_i]);  // T1 = fd.ops.cast(T0, dtype=DataType.Float)
            const float T5 = (T1 - T4);  // T5 = fd.ops.sub(T1, T4)
            const float T6 = short_exp(T5);  // T6 = fd.ops.exp(T5)
            T6_p[j_i + j_o_o * 8] = T6;
            T7 = Sum::apply(T7, T6);
          }
        }
      }
    }
  }
  T7 = reduce_x<Sum, 512, 1>(T7, scratch_f32);
  const Vec<float, 2> T7_d = divisor(T7);
  #pragma unroll
  for (i32 j_o_o = 0; j_o_o < 2; ++j_o_o) {
    if (j_o_o < 1 || j_o_i + j_o_o * 512 < size0) {
      const i32 j_o = j_o_i + j_o_o * 512;
      Vec<bf16, 8> T9_o;
      if (j_o * 8 < ((i_o * size1) % 8) + size3 && (0 < j_o_o || (i_o * size1) % 8 < j_o * 8 + 1)) {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          const float T8 = quotient(T6_p[j_i + j_o_o * 8], T7_d);  // T8 = fd.ops.truediv(T6, T7)
          const bf16 T9_e = convert<bf16>(T8);  // T9 = fd.ops.cast(T8, dtype=DataType.BFloat16)
          T9_o.v[j_i] = T9_e;
        }
        stv<8>(T9, ((i_o * size1) % 8) * -1 + i_o * size1 + j_o * 8, T9_o);
      } else {
        #pragma unroll
        for (i32 j_i = 0; j_i < 8; ++j_i) {
          if ((i_o * size1) % 8 < j_i + j_o * 8 + 1 && j_i + j_o * 8 < ((i_o * size1) % 8) + size1) {
            const float T8 = quotient(T6_p[j_i + j_o_o * 8], T7_d);  // T8 = fd.ops.truediv(T6, T7)
            const bf16 T9_e = convert<bf16>(T8);  // T9 = fd.ops.cast(T8, dtype=DataType.BFloat16)
            st(T9, ((i_o * size1) % 8) * -1 + i_o * size1 + j_i + j_o * 8, T9_e);
          }
        }
      }
    }
  }
}
