def schedule(s):  # scan(vectorize=1, threads=32x4, unroll=1)
    s.split("i0", 4)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 1)
    s.split("i1.o", 32)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i0.o{9}@blockIdx.x, i0.i{4}@threadIdx.y, i1.o.o{3}, i1.o.i{32}@threadIdx.x, i1.i{1}@vectorize]
    # T2   loop[i0.o{9}@blockIdx.x, i0.i{4}@threadIdx.y, i1.o.o{3}, i1.o.i{32}@threadIdx.x, i1.i{1}@vectorize]
    # T3   loop[i0.o{9}@blockIdx.x, i0.i{4}@threadIdx.y, i1.o.o{3}, i1.o.i{32}@threadIdx.x, i1.i{1}@vectorize]
