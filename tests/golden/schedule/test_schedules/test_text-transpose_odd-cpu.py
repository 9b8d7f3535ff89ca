def schedule(s):  # pointwise(vectorize=32, threads=1x1, unroll=1)
    s.split("i1", 32)
    s.split("i0", 32)
    s.reorder(['i1.o', 'i0.o', 'i1.i', 'i0.i'])
    s.merge("i1.o", "i0.o")
    s.parallelize("i1.o*i0.o", "blockIdx.x")
    s.parallelize("i0.i", "vectorize")
    # T2   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
    # T3   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
    # T4   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
    # T5   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
    # T6   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
    # T7   loop[i1.o*i0.o{32768}@blockIdx.x, i1.i{32}, i0.i{32}@vectorize]
