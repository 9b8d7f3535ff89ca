def schedule(s):  # reduction(vectorize=1, threads=8x32, unroll=1)
    s.split("i1", 1)
    s.split("i1.o", 8)
    s.split("i0", 32)
    s.reorder(['i1.o.o', 'i1.o.i', 'i0.o', 'i0.i', 'i1.i'])
    s.parallelize("i1.o.o", "blockIdx.x")
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i1.o.o{2}@blockIdx.x, i1.o.i{8}@threadIdx.x, i0.o{2}, i0.i{32}@threadIdx.y, i1.i{1}@vectorize]
    # T2   loop[i1.o.o{2}@blockIdx.x, i1.o.i{8}@threadIdx.x, i0.o{2}, i0.i{32}@threadIdx.y, i1.i{1}@vectorize]
    # T3   loop[i1.o.o{2}@blockIdx.x, i1.o.i{8}@threadIdx.x, i1.i{1}@vectorize]
