def schedule(s):  # transpose(vectorize=1, threads=512x1, unroll=1)
    s.reorder(['i1', 'i0'])
    s.split("i0", 1)
    s.split("i0.o", 128)
    s.split("i1", 64)
    s.reorder(['i1.o', 'i0.o.o', 'i1.i', 'i0.o.i', 'i0.i'])
    s.merge("i1.i", "i0.o.i")
    s.split("i1.i*i0.o.i", 512)
    s.merge("i1.o", "i0.o.o")
    s.parallelize("i1.o*i0.o.o", "blockIdx.x")
    s.parallelize("i1.i*i0.o.i.i", "threadIdx.x")
    s.parallelize("i0.i", "vectorize")
    # T2   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
    # T3   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
    # T4   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
    # T5   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
    # T6   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
    # T7   loop[i1.o*i0.o.o{4096}@blockIdx.x, i1.i*i0.o.i.o{16}, i1.i*i0.o.i.i{512}@threadIdx.x, i0.i{1}@vectorize]
def move(s):  # read T0 before; 8192 elements each in shared memory
    s.reorder(['i0', 'i1'])
    s.split("i1", 8)
    s.split("i1.o", 8)
    s.split("i0", 128)
    s.reorder(['i1.o.o', 'i0.o', 'i0.i', 'i1.o.i', 'i1.i'])
    s.merge("i0.i", "i1.o.i")
    s.split("i0.i*i1.o.i", 512)
    s.merge("i1.o.o", "i0.o")
    s.parallelize("i1.o.o*i0.o", "blockIdx.x")
    s.parallelize("i0.i*i1.o.i.o", "unroll")
    s.parallelize("i0.i*i1.o.i.i", "threadIdx.x")
    s.parallelize("i1.i", "vectorize")
    # element ((4*(j_i_i_o_i_i % 8) + (j_i_i_o_i_i // 8) + 64*j_i_i_o_i_o) % 128) + 128*i_i + 1024*(j_i_i_o_i_i % 8), computed at 2*((((i_i_j_o_i_i % 128) // 2) + 2*(i_i_j_o_i_o // 2)) % 64) + (i_i_j_o_i_i % 2) + 128*(i_i_j_o_i_i // 128) + 512*i_i_j_o_i_o
