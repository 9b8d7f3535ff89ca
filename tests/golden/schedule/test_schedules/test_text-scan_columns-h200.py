def schedule(s):  # scan(vectorize=4, threads=64x1, unroll=1)
    s.split("i1", 4)
    s.split("i1.o", 64)
    s.reorder(['i1.o.o', 'i1.o.i', 'i0', 'i1.i'])
    s.parallelize("i1.o.o", "blockIdx.x")
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i1.o.o{256}@blockIdx.x, i1.o.i{64}@threadIdx.x, i0{512}, i1.i{4}@vectorize]
    # T2   loop[i1.o.o{256}@blockIdx.x, i1.o.i{64}@threadIdx.x, i0{512}, i1.i{4}@vectorize]
    # T3   loop[i1.o.o{256}@blockIdx.x, i1.o.i{64}@threadIdx.x, i0{512}, i1.i{4}@vectorize]
