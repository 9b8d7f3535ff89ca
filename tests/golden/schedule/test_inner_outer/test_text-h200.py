def schedule(s):  # inner_outer(vectorize=8, threads=256x1, unroll=1, blocks=2, persistent in registers)
    s.split("i0", 32)
    s.split("i0.i", 1)
    s.split("i1", 8)
    s.split("i1.o", 256)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i.i", "threadIdx.y")
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    s.blocks(2)
    s.cache("T3", "registers")  # bf16, 8192 bytes a row
    s.cache("T0", "registers")  # bf16, 8192 bytes a row
    s.cache("T4", "registers")  # bf16, 8192 bytes a row
    # T5   loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T6   loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T7   loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T8   loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T9   loop[i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T10  loop[i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T11  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T12  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T13  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T14  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T15  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y]
    # T16  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T17  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T18  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y]
    # T19  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T20  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T21  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T22  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T23  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
    # T24  loop[i0.o{256}@blockIdx.x, i0.i.o{32}, i0.i.i{1}@threadIdx.y, i1.o.o{2}, i1.o.i{256}@threadIdx.x, i1.i{8}@vectorize]
