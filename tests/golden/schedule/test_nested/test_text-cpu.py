def schedule(s):  # nested(vectorize=1024, threads=1x1, unroll=1)
    s.merge("i0", "i1")
    s.parallelize("i0*i1", "blockIdx.x")
    s.parallelize("i3", "vectorize")
    # T3   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T4   loop[i0*i1{32}@blockIdx.x, i2{16}]
    # T5   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T6   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T7   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T8   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T9   loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T10  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T11  loop[i0*i1{256}@blockIdx.x, i2{16}]
    # T12  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T13  loop[i0*i1{256}@blockIdx.x, i2{16}]
    # T14  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T15  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T16  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T17  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T18  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T19  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
    # T20  loop[i0*i1{256}@blockIdx.x, i2{16}, i3{1024}@vectorize]
