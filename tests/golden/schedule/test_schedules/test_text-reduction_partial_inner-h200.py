def schedule(s):  # reduction(vectorize=4, threads=32x4, unroll=1)
    s.split("i0", 4)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 4)
    s.split("i1.o", 128)
    s.parallelize("i1.o.o", "blockIdx.y")
    s.split("i1.o.i", 32)
    s.parallelize("i1.o.i.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i0.o{2}@blockIdx.x, i0.i{4}@threadIdx.y, i1.o.o{128}@blockIdx.y, i1.o.i.o{4}, i1.o.i.i{32}@threadIdx.x, i1.i{4}@vectorize]
    # T2   loop[i0.o{2}@blockIdx.x, i0.i{4}@threadIdx.y, i1.o.o{128}@blockIdx.y, i1.o.i.o{4}, i1.o.i.i{32}@threadIdx.x, i1.i{4}@vectorize]
