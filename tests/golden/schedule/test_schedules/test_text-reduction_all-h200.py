def schedule(s):  # reduction(vectorize=4, threads=512x1, unroll=1)
    s.merge("i0", "i1")
    s.split("i0*i1", 4)
    s.split("i0*i1.o", 512)
    s.parallelize("i0*i1.o.i", "threadIdx.x")
    s.parallelize("i0*i1.i", "vectorize")
    # T1   loop[i0*i1.o.o{4}, i0*i1.o.i{512}@threadIdx.x, i0*i1.i{4}@vectorize]
    # T2   loop[i0*i1.o.o{4}, i0*i1.o.i{512}@threadIdx.x, i0*i1.i{4}@vectorize]
    # T3   loop[]
