def schedule(s):  # persistent(vectorize=8, threads=512x1, unroll=1, persistent in registers)
    s.split("i0", 1)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 8, shift="(4095*i0) % 8")
    s.split("i1.o", 512)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    s.cache("T0", "registers")  # bf16, 8190 bytes a row
    s.cache("T6", "registers")  # f32, 16380 bytes a row
    # T1   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T2   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T3   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y]
    # T4   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y]
    # T5   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T6   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T7   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T8   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
    # T9   loop[i0.o{64}@blockIdx.x, i0.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{512}@threadIdx.x, i1.i{8}@vectorize]
