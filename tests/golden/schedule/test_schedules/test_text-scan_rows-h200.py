def schedule(s):  # scan(vectorize=4, threads=256x1, unroll=1)
    s.split("i0", 1)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 4)
    s.split("i1.o", 256)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T1   loop[i0.o{4096}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{8}, i1.o.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T2   loop[i0.o{4096}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{8}, i1.o.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T3   loop[i0.o{4096}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{8}, i1.o.i{256}@threadIdx.x, i1.i{4}@vectorize]
