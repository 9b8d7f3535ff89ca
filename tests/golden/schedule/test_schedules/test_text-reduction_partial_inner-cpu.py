def schedule(s):  # reduction(vectorize=1024, threads=1x1, unroll=1)
    s.split("i1", 1024)
    s.parallelize("i1.o", "blockIdx.y")
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i0{8}@blockIdx.x, i1.o{64}@blockIdx.y, i1.i{1024}@vectorize]
    # T2   loop[i0{8}@blockIdx.x, i1.o{64}@blockIdx.y, i1.i{1024}@vectorize]
