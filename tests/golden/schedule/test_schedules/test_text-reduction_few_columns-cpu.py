def schedule(s):  # reduction(vectorize=16, threads=1x1, unroll=1)
    s.split("i1", 16)
    s.reorder(['i1.o', 'i0', 'i1.i'])
    s.parallelize("i1.o", "blockIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i1.o{1}@blockIdx.x, i0{64}, i1.i{16}@vectorize]
    # T2   loop[i1.o{1}@blockIdx.x, i0{64}, i1.i{16}@vectorize]
    # T3   loop[i1.o{1}@blockIdx.x, i1.i{16}@vectorize]
