def schedule(s):  # persistent(vectorize=8, threads=64x2, unroll=1, persistent in registers)
    s.split("i0", 2)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 8)
    s.split("i1.o", 64)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    s.cache("T0", "registers")  # bf16, 2048 bytes a row
    # T3   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T4   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T5   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y]
    # T6   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T7   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T8   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T9   loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y]
    # T10  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y]
    # T11  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y]
    # T12  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T13  loop[i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T14  loop[i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T15  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T16  loop[i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T17  loop[i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T18  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
    # T19  loop[i0.o{2048}@blockIdx.x, i0.i{2}@threadIdx.y, i1.o.o{2}, i1.o.i{64}@threadIdx.x, i1.i{8}@vectorize]
