def schedule(s):  # persistent(vectorize=40000, threads=1x1, unroll=1, persistent in registers)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    s.cache("T3", "registers")  # f32, 160000 bytes a row
    # T1   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
    # T2   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
    # T3   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
    # T4   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
    # T5   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
    # T6   loop[i0{64}@blockIdx.x, i1{40000}@vectorize]
