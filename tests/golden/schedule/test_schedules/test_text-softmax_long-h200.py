def schedule(s):  # persistent(vectorize=4, threads=256x1, unroll=1, cluster=4, persistent in registers)
    s.split("i0", 1)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 4)
    s.split("i1.o", 1024)
    s.split("i1.o.i", 256)
    s.parallelize("i1.o.i.o", "cluster")
    s.parallelize("i1.o.i.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    s.cache("T0", "registers")  # f32, 160000 bytes a row
    s.cache("T3", "registers")  # f32, 160000 bytes a row
    # T1   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T2   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T3   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T4   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T5   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
    # T6   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{10}, i1.o.i.o{4}@cluster, i1.o.i.i{256}@threadIdx.x, i1.i{4}@vectorize]
