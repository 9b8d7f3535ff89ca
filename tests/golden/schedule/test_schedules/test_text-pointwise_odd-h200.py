def schedule(s):  # pointwise(vectorize=1, threads=128x1, unroll=1)
    s.merge("i1", "i0")
    s.split("i1*i0", 1)
    s.split("i1*i0.o", 128)
    s.split("i1*i0.o.o", 1)
    s.parallelize("i1*i0.o.o.o", "blockIdx.x")
    s.parallelize("i1*i0.o.o.i", "unroll")
    s.parallelize("i1*i0.o.i", "threadIdx.x")
    s.parallelize("i1*i0.i", "vectorize")
    # T2   loop[i1*i0.o.o.o{1}@blockIdx.x, i1*i0.o.o.i{1}@unroll, i1*i0.o.i{128}@threadIdx.x, i1*i0.i{1}@vectorize]
    # T3   loop[i1*i0.o.o.o{20}@blockIdx.x, i1*i0.o.o.i{1}@unroll, i1*i0.o.i{128}@threadIdx.x, i1*i0.i{1}@vectorize]
    # T4   loop[i1*i0.o.o.o{20}@blockIdx.x, i1*i0.o.o.i{1}@unroll, i1*i0.o.i{128}@threadIdx.x, i1*i0.i{1}@vectorize]
    # T5   loop[i1*i0.o.o.o{20}@blockIdx.x, i1*i0.o.o.i{1}@unroll, i1*i0.o.i{128}@threadIdx.x, i1*i0.i{1}@vectorize]
