def schedule(s):  # pointwise(vectorize=1024, threads=1x1, unroll=1)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    # T2   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T3   loop[i1{1024}@vectorize]
    # T4   loop[i1{1024}@vectorize]
    # T5   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T6   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T7   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
