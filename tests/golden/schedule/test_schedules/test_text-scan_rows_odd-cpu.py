def schedule(s):  # scan(vectorize=77, threads=1x1, unroll=1)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    # T1   loop[i0{33}@blockIdx.x, i1{77}@vectorize]
    # T2   loop[i0{33}@blockIdx.x, i1{77}@vectorize]
    # T3   loop[i0{33}@blockIdx.x, i1{77}@vectorize]
