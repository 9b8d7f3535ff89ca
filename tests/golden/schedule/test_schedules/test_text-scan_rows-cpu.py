def schedule(s):  # scan(vectorize=1024, threads=1x1, unroll=1)
    s.parallelize("i0", "blockIdx.x")
    s.split("i1", 1024)
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i0{4096}@blockIdx.x, i1.o{8}, i1.i{1024}@vectorize]
    # T2   loop[i0{4096}@blockIdx.x, i1.o{8}, i1.i{1024}@vectorize]
    # T3   loop[i0{4096}@blockIdx.x, i1.o{8}, i1.i{1024}@vectorize]
