def schedule(s):  # nested(vectorize=8, threads=64x8, unroll=1, persistent in registers)
    s.merge("i0", "i1")
    s.split("i2", 8)
    s.split("i3", 8)
    s.split("i3.o", 64)
    s.parallelize("i0*i1", "blockIdx.x")
    s.parallelize("i2.i", "threadIdx.y")
    s.parallelize("i3.o.i", "threadIdx.x")
    s.parallelize("i3.i", "vectorize")
    s.cache("T0", "registers")  # bf16, 32768 bytes a row
    s.cache("T2", "registers")  # bf16, 32768 bytes a row
    # T3   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T4   loop[i0*i1{32}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y]
    # T5   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T6   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T7   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T8   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T9   loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T10  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T11  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y]
    # T12  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T13  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y]
    # T14  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T15  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T16  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T17  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T18  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T19  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
    # T20  loop[i0*i1{256}@blockIdx.x, i2.o{2}, i2.i{8}@threadIdx.y, i3.o.o{2}, i3.o.i{64}@threadIdx.x, i3.i{8}@vectorize]
