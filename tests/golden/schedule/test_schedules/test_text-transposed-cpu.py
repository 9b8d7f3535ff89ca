def schedule(s):  # reduction(vectorize=96, threads=1x1, unroll=1)
    s.parallelize("i1", "blockIdx.x")
    s.parallelize("i0", "vectorize")
    # T2   loop[i1{64}@blockIdx.x, i0{96}@vectorize]
    # T3   loop[i1{64}@blockIdx.x, i0{96}@vectorize]
    # T4   loop[i1{64}@blockIdx.x, i0{96}@vectorize]
