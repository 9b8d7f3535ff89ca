def schedule(s):  # reduction(vectorize=4, threads=16x8, unroll=1)
    s.split("i1", 8)
    s.parallelize("i1.o", "blockIdx.x")
    s.parallelize("i1.i", "threadIdx.y")
    s.split("i0", 4)
    s.split("i0.o", 16)
    s.parallelize("i0.o.i", "threadIdx.x")
    s.parallelize("i0.i", "vectorize")
    # T2   loop[i1.o{8}@blockIdx.x, i1.i{8}@threadIdx.y, i0.o.o{2}, i0.o.i{16}@threadIdx.x, i0.i{4}@vectorize]
    # T3   loop[i1.o{8}@blockIdx.x, i1.i{8}@threadIdx.y, i0.o.o{2}, i0.o.i{16}@threadIdx.x, i0.i{4}@vectorize]
    # T4   loop[i1.o{8}@blockIdx.x, i1.i{8}@threadIdx.y, i0.o.o{2}, i0.o.i{16}@threadIdx.x, i0.i{4}@vectorize]
