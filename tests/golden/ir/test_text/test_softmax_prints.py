def fusion(fd):
    T0 = fd.define_tensor(shape=[-1, 768], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False, stride_order=[1, 0])  # bf16[i0{i0}, i1{768}]
    T1 = fd.ops.cast(T0, dtype=DataType.Float)                            # f32[i0{i0}, i1{768}]
    T2 = fd.ops.max(T1, dims=[1], keepdim=True)                           # f32[i0{i0}, r1{768}, b2{1}]
    T3 = fd.ops.cast(T2, dtype=DataType.BFloat16)                         # bf16[i0{i0}, b2{1}]
    T4 = fd.ops.cast(T3, dtype=DataType.Float)                            # f32[i0{i0}, b2{1}]
    T5 = fd.ops.sub(T1, T4)                                               # f32[i0{i0}, i1{768}]
    T6 = fd.ops.exp(T5)                                                   # f32[i0{i0}, i1{768}]
    T7 = fd.ops.sum(T6, dims=[1], keepdim=True)                           # f32[i0{i0}, r1{768}, b3{1}]
    T8 = fd.ops.truediv(T6, T7)                                           # f32[i0{i0}, i1{768}]
    T9 = fd.ops.cast(T8, dtype=DataType.BFloat16)                         # bf16[i0{i0}, i1{768}]
    fd.add_output(T9, stride_order=[0, 1])
