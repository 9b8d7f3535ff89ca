def schedule(s):  # reduction(vectorize=8192, threads=1x1, unroll=1)
    s.merge("i0", "i1")
    s.parallelize("i0*i1", "vectorize")
    # T1   loop[i0*i1{8192}@vectorize]
    # T2   loop[i0*i1{8192}@vectorize]
    # T3   loop[]
