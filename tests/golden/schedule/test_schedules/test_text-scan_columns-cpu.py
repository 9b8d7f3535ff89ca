def schedule(s):  # scan(vectorize=256, threads=1x1, unroll=1)
    s.split("i1", 256)
    s.reorder(['i1.o', 'i0', 'i1.i'])
    s.parallelize("i1.o", "blockIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i1.o{256}@blockIdx.x, i0{512}, i1.i{256}@vectorize]
    # T2   loop[i1.o{256}@blockIdx.x, i0{512}, i1.i{256}@vectorize]
    # T3   loop[i1.o{256}@blockIdx.x, i0{512}, i1.i{256}@vectorize]
