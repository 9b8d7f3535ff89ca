def schedule(s):  # reduction(vectorize=1024, threads=1x1, unroll=1)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    # T1   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T2   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T3   loop[i0{4096}@blockIdx.x, i1{1024}@vectorize]
    # T4   loop[i0{4096}@blockIdx.x]
