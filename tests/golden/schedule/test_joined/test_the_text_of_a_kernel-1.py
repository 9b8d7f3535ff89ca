def schedule(s):  # reduction(vectorize=8, threads=32x8, unroll=1)
    s.split("i2", 8)
    s.parallelize("i2.o", "blockIdx.x")
    s.parallelize("i2.i", "threadIdx.y")
    s.split("i1", 8)
    s.split("i1.o", 32)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T4   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T5   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T6   loop[i2.o{64}@blockIdx.x, i2.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T7   loop[i2.o{64}@blockIdx.x, i2.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T8   loop[i2.o{64}@blockIdx.x, i2.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T9   loop[i2.o{64}@blockIdx.x, i2.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T10  loop[i2.o{64}@blockIdx.x, i2.i{8}@threadIdx.y]

def schedule(s):  # reduction(vectorize=8, threads=32x8, unroll=1)
    s.split("i3", 8)
    s.parallelize("i3.o", "blockIdx.x")
    s.parallelize("i3.i", "threadIdx.y")
    s.split("i1", 8)
    s.split("i1.o", 32)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T4   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T5   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T11  loop[i3.o{32}@blockIdx.x, i3.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T12  loop[i3.o{32}@blockIdx.x, i3.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T13  loop[i3.o{32}@blockIdx.x, i3.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T14  loop[i3.o{32}@blockIdx.x, i3.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T15  loop[i3.o{32}@blockIdx.x, i3.i{8}@threadIdx.y]

def schedule(s):  # reduction(vectorize=8, threads=32x8, unroll=1)
    s.split("i4", 8)
    s.parallelize("i4.o", "blockIdx.x")
    s.parallelize("i4.i", "threadIdx.y")
    s.split("i1", 8)
    s.split("i1.o", 32)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # T4   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T5   loop[i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T16  loop[i4.o{16}@blockIdx.x, i4.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T17  loop[i4.o{16}@blockIdx.x, i4.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T18  loop[i4.o{16}@blockIdx.x, i4.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T19  loop[i4.o{16}@blockIdx.x, i4.i{8}@threadIdx.y, i1.o.o{2}, i1.o.i{32}@threadIdx.x, i1.i{8}@vectorize]
    # T20  loop[i4.o{16}@blockIdx.x, i4.i{8}@threadIdx.y]
