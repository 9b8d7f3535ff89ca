def schedule(s):  # persistent(vectorize=8192, threads=1x1, unroll=1, persistent in registers)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    s.cache("T6", "registers")  # f32, 32768 bytes a row
    # T1   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T2   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T3   loop[i0{4096}@blockIdx.x]
    # T4   loop[i0{4096}@blockIdx.x]
    # T5   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T6   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T7   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T8   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
    # T9   loop[i0{4096}@blockIdx.x, i1{8192}@vectorize]
