def schedule(s):  # scan(vectorize=1, threads=256x1, unroll=1)
    s.split("i1", 1)
    s.parallelize("i1.o", "blockIdx.x")
    s.parallelize("i1.i", "threadIdx.y")
    s.split("i0", 1)
    s.split("i0.o", 256)
    s.parallelize("i0.o.i", "threadIdx.x")
    s.parallelize("i0.i", "vectorize")
    # T1   loop[i1.o{24}@blockIdx.x, i1.i{1}@threadIdx.y, i0.o.o{16}, i0.o.i{256}@threadIdx.x, i0.i{1}@vectorize]
    # T2   loop[i1.o{24}@blockIdx.x, i1.i{1}@threadIdx.y, i0.o.o{16}, i0.o.i{256}@threadIdx.x, i0.i{1}@vectorize]
    # T3   loop[i1.o{24}@blockIdx.x, i1.i{1}@threadIdx.y, i0.o.o{16}, i0.o.i{256}@threadIdx.x, i0.i{1}@vectorize]
