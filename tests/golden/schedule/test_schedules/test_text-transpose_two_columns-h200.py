def schedule(s):  # transpose(vectorize=4, threads=256x1, unroll=1)
    s.reorder(['i1', 'i0'])
    s.split("i0", 4)
    s.split("i0.o", 256)
    s.split("i1", 2)
    s.reorder(['i1.o', 'i0.o.o', 'i1.i', 'i0.o.i', 'i0.i'])
    s.merge("i1.i", "i0.o.i")
    s.split("i1.i*i0.o.i", 256)
    s.merge("i1.o", "i0.o.o")
    s.parallelize("i1.o*i0.o.o", "blockIdx.x")
    s.parallelize("i1.i*i0.o.i.i", "threadIdx.x")
    s.parallelize("i0.i", "vectorize")
    # T2   loop[i1.o*i0.o.o{977}@blockIdx.x, i1.i*i0.o.i.o{2}, i1.i*i0.o.i.i{256}@threadIdx.x, i0.i{4}@vectorize]
    # T3   loop[i1.o*i0.o.o{977}@blockIdx.x, i1.i*i0.o.i.o{2}, i1.i*i0.o.i.i{256}@threadIdx.x, i0.i{4}@vectorize]
    # T4   loop[i1.o*i0.o.o{977}@blockIdx.x, i1.i*i0.o.i.o{2}, i1.i*i0.o.i.i{256}@threadIdx.x, i0.i{4}@vectorize]
    # T5   loop[i1.o*i0.o.o{977}@blockIdx.x, i1.i*i0.o.i.o{2}, i1.i*i0.o.i.i{256}@threadIdx.x, i0.i{4}@vectorize]
def move(s):  # read T0 before; 2048 elements each in shared memory
    s.reorder(['i0', 'i1'])
    s.merge("i0", "i1")
    s.split("i0*i1", 4)
    s.split("i0*i1.o", 512)
    s.split("i0*i1.o.i", 256)
    s.parallelize("i0*i1.o.o", "blockIdx.x")
    s.parallelize("i0*i1.o.i.o", "unroll")
    s.parallelize("i0*i1.o.i.i", "threadIdx.x")
    s.parallelize("i0*i1.i", "vectorize")
    # element 1024*(i_i % 2) + (i_i // 2) + 2*i_o_i_i + 512*i_o_i_o, computed at 4*i_i_j_o_i_i + 1024*i_i_j_o_i_o + j_i
