def schedule(s):  # reduction(vectorize=4, threads=64x2, unroll=1)
    s.split("i0", 2)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 2048)
    s.parallelize("i1.o", "blockIdx.y")
    s.split("i1.i", 4)
    s.split("i1.i.o", 64)
    s.parallelize("i1.i.o.i", "threadIdx.x")
    s.parallelize("i1.i.i", "vectorize")
    # T1   loop[i0.o{4}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o{32}@blockIdx.y, i1.i.o.o{8}, i1.i.o.i{64}@threadIdx.x, i1.i.i{4}@vectorize]
    # T2   loop[i0.o{4}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o{32}@blockIdx.y, i1.i.o.o{8}, i1.i.o.i{64}@threadIdx.x, i1.i.i{4}@vectorize]
