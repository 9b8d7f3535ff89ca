def schedule(s):  # persistent(vectorize=262144, threads=1x1, unroll=1)
    s.parallelize("i0", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    # T1   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
    # T2   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
    # T3   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
    # T4   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
    # T5   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
    # T6   loop[i0{16}@blockIdx.x, i1{262144}@vectorize]
