def schedule(s):  # products(vectorize=1, threads=16x8, unroll=2)
    s.split("i2", 16)
    s.split("i0", 8)
    s.parallelize("i2.o", "blockIdx.x")
    s.parallelize("i2.i", "threadIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    # T4   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T5   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T6   loop[i2.o{32}@blockIdx.x, i2.i{16}@threadIdx.x, i1{512}]
    # T7   loop[i2.o{32}@blockIdx.x, i2.i{16}@threadIdx.x, i1{512}]
    # T8   loop[i2.o{32}@blockIdx.x, i2.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T9   loop[i2.o{32}@blockIdx.x, i2.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T10  loop[i2.o{32}@blockIdx.x, i2.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y]

def schedule(s):  # products(vectorize=1, threads=16x8, unroll=2)
    s.split("i3", 16)
    s.split("i0", 8)
    s.parallelize("i3.o", "blockIdx.x")
    s.parallelize("i3.i", "threadIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    # T4   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T5   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T11  loop[i3.o{16}@blockIdx.x, i3.i{16}@threadIdx.x, i1{512}]
    # T12  loop[i3.o{16}@blockIdx.x, i3.i{16}@threadIdx.x, i1{512}]
    # T13  loop[i3.o{16}@blockIdx.x, i3.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T14  loop[i3.o{16}@blockIdx.x, i3.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T15  loop[i3.o{16}@blockIdx.x, i3.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y]

def schedule(s):  # products(vectorize=1, threads=16x8, unroll=2)
    s.split("i4", 16)
    s.split("i0", 8)
    s.parallelize("i4.o", "blockIdx.x")
    s.parallelize("i4.i", "threadIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    # T4   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T5   loop[i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T16  loop[i4.o{8}@blockIdx.x, i4.i{16}@threadIdx.x, i1{512}]
    # T17  loop[i4.o{8}@blockIdx.x, i4.i{16}@threadIdx.x, i1{512}]
    # T18  loop[i4.o{8}@blockIdx.x, i4.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T19  loop[i4.o{8}@blockIdx.x, i4.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y, i1{512}]
    # T20  loop[i4.o{8}@blockIdx.x, i4.i{16}@threadIdx.x, i0.o{1}, i0.i{8}@threadIdx.y]
