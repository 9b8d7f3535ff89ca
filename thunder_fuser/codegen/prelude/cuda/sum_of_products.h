// provides: sum_of_products
// needs: block convert dependent device half memory_vec mma shared types vec words
// For the thread (i, j) of a block of 16 * BY: the sum over k < length of w[begin + i, k] * x[j, k].
// At most 8 rows of x: the threads with j >= 8 share the work, and repeat the results of others. The
// warps take 64 elements of k in turn. A lane loads 8 neighbours along k at once, of two rows of w and
// one of x; the order of k is free, as long as both have the same. A w of 8 bits becomes T in registers.
// The first loads of w come before the wait for earlier kernels, which do not write w.
template <typename T, typename W, int N> DEVICE Vec<u32, 4> in_pairs(Vec<u32, N> words) {
  if constexpr (N == 4) {
    return words;
  } else {
    const Vec<W, 8> narrow = from_word<Vec<W, 8>>(words);
    Vec<u32, 4> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs.v[i] = convert<T>(narrow.v[2 * i]).bits |
                   static_cast<u32>(convert<T>(narrow.v[2 * i + 1]).bits) << 16;
    return pairs;
  }
}
template <bool WHOLE, int STEPS, int STRIDE, typename W, typename T>
DEVICE void add_products(Vec<float, 4>& sums, const u32* top, const u32* low, const u32* x,
                         int begin, int words, bool first) {
  constexpr int N = 2 * sizeof(W);  // words of 8 numbers of w
  Vec<u32, N> a[2 * STEPS][2];
  Vec<u32, 4> b[2 * STEPS];
#pragma unroll
  for (int i = 0; i < 2 * STEPS; ++i) {
    const int k = begin + i / 2 * STRIDE + i % 2 * 16;
    const bool holds = WHOLE || k < words;
    a[i][0] = ldv_if<N>(holds, top, k * N / 4);
    a[i][1] = ldv_if<N>(holds, low, k * N / 4);
  }
  if (first) after_earlier_kernels();
#pragma unroll
  for (int i = 0; i < 2 * STEPS; ++i) {
    const int k = begin + i / 2 * STRIDE + i % 2 * 16;
    b[i] = ldv_if<4>(WHOLE || k < words, x, k);
  }
  sync_warp();  // else ptxas puts products between the loads, and these wait for them
#pragma unroll
  for (int i = 0; i < 2 * STEPS; ++i) {
    const Vec<u32, 4> high = in_pairs<T, W>(a[i][0]), deep = in_pairs<T, W>(a[i][1]);
#pragma unroll
    for (int k = 0; k < 4; k += 2)
      mma(sums, Vec<u32, 4>{{high.v[k], deep.v[k], high.v[k + 1], deep.v[k + 1]}},
          Vec<u32, 2>{{b[i].v[k], b[i].v[k + 1]}}, T{});
  }
}
template <class Op, int BX, int BY, int STEPS, typename W, typename T>
DEVICE float sum_of_products(const W* w, i64 w_first, i64 w_stride, i64 w_rows, i64 begin,
                             const T* x, i64 x_first, i64 x_stride, i64 x_rows, i64 length,
                             Shared<float> parts) {
  static_assert(BX == 16, "a warp has 16 rows of w");
  constexpr int WARPS = BX * BY / 32;
  constexpr int STRIDE = WARPS * 32;  // of a step, in words of two elements
  constexpr int PITCH = 20;           // of a row of 16 sums, so that a warp writes to 32 banks
  const int thread = static_cast<int>(threadIdx.y) * BX + static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const i64 row = begin + g < w_rows ? begin + g : w_rows - 1;
  const i64 next = begin + g + 8 < w_rows ? begin + g + 8 : w_rows - 1;
  const i64 of_x = g < x_rows ? g : x_rows - 1;
  const u32* top = reinterpret_cast<const u32*>(w + w_first + row * w_stride);
  const u32* low = top + static_cast<int>((next - row) * w_stride * static_cast<int>(sizeof(W)) / 4);
  const u32* from = reinterpret_cast<const u32*>(x + x_first + of_x * x_stride);
  Vec<float, 4> sums{};
  const int words = static_cast<int>(length / 2);
  int k = warp * 32;
  bool first = true;
  for (; k + (STEPS - 1) * STRIDE + 32 <= words; k += STEPS * STRIDE, first = false)
    add_products<true, STEPS, STRIDE, W, T>(sums, top, low, from, k + 4 * q, words, first);
  if (k < words) add_products<false, STEPS, STRIDE, W, T>(sums, top, low, from, k + 4 * q, words, first);
  // At the end, so that its blocks are spread evenly. A warp may have had nothing to wait for.
  after_earlier_kernels();
  next_kernel_may_start();
  sync_threads();  // the parts may still be read by the sum before this one
#pragma unroll
  for (int i = 0; i < 4; ++i) parts.put((warp * 8 + 2 * q + i % 2) * PITCH + g + i / 2 * 8, sums.v[i]);
  sync_threads();
  const int mine = static_cast<int>(threadIdx.y) % 8 * PITCH + static_cast<int>(threadIdx.x);
  float sum = parts.get(mine);
#pragma unroll
  for (int other = 1; other < WARPS; ++other)
    sum = Op::apply(sum, parts.get(other * 8 * PITCH + mine));
  return sum;
}
