def schedule(s):  # pointwise(vectorize=8, threads=128x1, unroll=1)
    s.merge("i0", "i1")
    s.split("i0*i1", 8, shift="0")
    s.split("i0*i1.o", 128)
    s.split("i0*i1.o.o", 1)
    s.parallelize("i0*i1.o.o.o", "blockIdx.x")
    s.parallelize("i0*i1.o.o.i", "unroll")
    s.parallelize("i0*i1.o.i", "threadIdx.x")
    s.parallelize("i0*i1.i", "vectorize")
    # T1   loop[i0*i1.o.o.o{252}@blockIdx.x, i0*i1.o.o.i{1}@unroll, i0*i1.o.i{128}@threadIdx.x, i0*i1.i{8}@vectorize]
    # T2   loop[i0*i1.o.o.o{252}@blockIdx.x, i0*i1.o.o.i{1}@unroll, i0*i1.o.i{128}@threadIdx.x, i0*i1.i{8}@vectorize]
    # T3   loop[i0*i1.o.o.o{252}@blockIdx.x, i0*i1.o.o.i{1}@unroll, i0*i1.o.i{128}@threadIdx.x, i0*i1.i{8}@vectorize]
