def schedule(s):  # nested(vectorize=8, threads=8x64, unroll=1, persistent in registers)
    s.merge("i0", "i1")
    s.split("i3", 64)
    s.split("i2", 8)
    s.split("i2.o", 8)
    s.parallelize("i0*i1", "blockIdx.x")
    s.parallelize("i3.i", "threadIdx.y")
    s.parallelize("i2.o.i", "threadIdx.x")
    s.parallelize("i2.i", "vectorize")
    s.cache("T2", "registers")  # bf16, 65536 bytes a row
    # T4   loop[i0*i1{96}@blockIdx.x, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T5   loop[i0*i1{32}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T6   loop[i0*i1{32}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T7   loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T8   loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T9   loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T10  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T11  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T12  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T13  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T14  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T15  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T16  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T17  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T18  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y]
    # T19  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T20  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T21  loop[i0*i1{96}@blockIdx.x, i3.o{8}, i3.i{64}@threadIdx.y, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T22  loop[i0*i1{96}@blockIdx.x, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T23  loop[i0*i1{96}@blockIdx.x, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
    # T24  loop[i0*i1{96}@blockIdx.x, i2.o.o{1}, i2.o.i{8}@threadIdx.x, i2.i{8}@vectorize]
