def schedule(s):  # reduction(vectorize=8, threads=32x16, unroll=1)
    s.split("i1", 8)
    s.split("i1.o", 32)
    s.split("i0", 64)
    s.parallelize("i0.o", "blockIdx.y")
    s.split("i0.i", 16)
    s.reorder(['i1.o.o', 'i0.o', 'i1.o.i', 'i0.i.o', 'i0.i.i', 'i1.i'])
    s.parallelize("i1.o.o", "blockIdx.x")
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i0.i.i", "threadIdx.y")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i1.o.o{4}@blockIdx.x, i0.o{64}@blockIdx.y, i1.o.i{32}@threadIdx.x, i0.i.o{4}, i0.i.i{16}@threadIdx.y, i1.i{8}@vectorize]
    # T2   loop[i1.o.o{4}@blockIdx.x, i0.o{64}@blockIdx.y, i1.o.i{32}@threadIdx.x, i0.i.o{4}, i0.i.i{16}@threadIdx.y, i1.i{8}@vectorize]
    # T3   loop[i1.o.o{4}@blockIdx.x, i0.o{64}@blockIdx.y, i1.o.i{32}@threadIdx.x, i0.i.o{4}, i0.i.i{16}@threadIdx.y, i1.i{8}@vectorize]
