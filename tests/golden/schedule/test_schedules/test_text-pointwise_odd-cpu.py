def schedule(s):  # pointwise(vectorize=77, threads=1x1, unroll=1)
    s.parallelize("i1", "blockIdx.x")
    s.parallelize("i0", "vectorize")
    # T2   loop[i0{77}@vectorize]
    # T3   loop[i1{33}@blockIdx.x, i0{77}@vectorize]
    # T4   loop[i1{33}@blockIdx.x, i0{77}@vectorize]
    # T5   loop[i1{33}@blockIdx.x, i0{77}@vectorize]
