def schedule(s):  # inner_outer(vectorize=4096, threads=1x1, unroll=1)
    s.split("i0", 128)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i1", "vectorize")
    # T5   loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T6   loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T7   loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T8   loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T9   loop[i1{4096}@vectorize]
    # T10  loop[i1{4096}@vectorize]
    # T11  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T12  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T13  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T14  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T15  loop[i0.o{64}@blockIdx.x, i0.i{128}]
    # T16  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T17  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T18  loop[i0.o{64}@blockIdx.x, i0.i{128}]
    # T19  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T20  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T21  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T22  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T23  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
    # T24  loop[i0.o{64}@blockIdx.x, i0.i{128}, i1{4096}@vectorize]
