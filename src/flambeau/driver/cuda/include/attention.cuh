// Attention by plain multiply-adds: a block takes 64 queries and a part of the values' columns, goes through the keys
// BN at a time, and keeps each query's greatest score and sum of exponentials as it goes. Given before: X, the elements;
// C, what is computed in; M, the mask's elements; MASKED, CAUSAL; BN keys; W groups of 64 columns.

constexpr int BM = 64, DEEP = 16, NC = BN / 16, PAD = 4;

struct Steps { i64 row, step; };
struct Shape { i64 queries, keys, depth, columns, tiles, parts; };

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ float most(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double most(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ C factor(C x) {  // an operand of a product: rounded to 10 bits of mantissa if TF32 is on
  if constexpr (TF32) {
    const u32 b = __float_as_uint((float)x);
    return (b & 0x7f800000) == 0x7f800000 ? x : (C)__uint_as_float((b + 0x1000) & 0xffffe000);
  }
  return x;
}
template<class B> __device__ __forceinline__ C masked(C s, B m) {
  if constexpr (is_bool<B>) return m ? s : (C)-INF;
  else return s + to<C>(m);
}
template<class J> __device__ __forceinline__ C over_keys(C s, J join) {  // over the 16 threads of the same queries
#pragma unroll
  for (int d = 8; d; d /= 2) s = join(s, __shfl_xor_sync(~0u, s, d));
  return s;
}

// 64 rows (or BN) of a matrix, DEEP columns of them from `k` on, turned: tile[column][row].
template<int R> __device__ __forceinline__ void load_turned(C (&tile)[DEEP][R + PAD], const X* p, Steps s, i64 first, i64 rows, i64 k, i64 depth) {
  const int x = threadIdx.x % DEEP, y = threadIdx.x / DEEP;
#pragma unroll
  for (int u = 0; u < R / 16; ++u) {
    const i64 row = first + y + u * 16;
    tile[x][y + u * 16] = row < rows && k + x < depth ? factor(to<C>(p[row * s.row + (k + x) * s.step])) : C(0);
  }
}

__device__ void attend(X* out, C* logarithms, const X* q, const X* k, const X* v, const M* mask, Steps so, Steps sq, Steps sk, Steps sv,
    Steps sm, Shape shape, i64 first, i64 part, C scale) {
  alignas(32) __shared__ C left[DEEP][BM + PAD];
  alignas(32) __shared__ C right[DEEP][BN + PAD];
  alignas(32) __shared__ C weights[BN][BM + PAD];
  alignas(32) __shared__ C values[DEEP][W * 64 + PAD];
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  C sums[4][W * 4] = {}, top[4], total[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) { top[u] = (C)-INF; total[u] = 0; }
  const i64 most_keys = CAUSAL && first + BM < shape.keys ? first + BM : shape.keys;
  for (i64 key = 0; key < most_keys; key += BN) {
    C s[4][NC] = {};
    for (i64 d = 0; d < shape.depth; d += DEEP) {
      __syncthreads();
      load_turned<BM>(left, q, sq, first, shape.queries, d, shape.depth);
      load_turned<BN>(right, k, sk, key, shape.keys, d, shape.depth);
      __syncthreads();
#pragma unroll
      for (int e = 0; e < DEEP; ++e) {
        Vector<C, 4> a = *vectors<4>(&left[e][y * 4]);
        Vector<C, NC> b = *vectors<NC>(&right[e][x * NC]);
#pragma unroll
        for (int u = 0; u < 4; ++u)
#pragma unroll
          for (int c = 0; c < NC; ++c) s[u][c] = fused(a[u], b[c], s[u][c]);
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const i64 row = first + y * 4 + u;
      C best = (C)-INF;
#pragma unroll
      for (int c = 0; c < NC; ++c) {
        const i64 column = key + x * NC + c;
        s[u][c] = s[u][c] * scale;
        const bool inside = row < shape.queries && column < shape.keys;
        if constexpr (MASKED) {
          if (inside) s[u][c] = masked(s[u][c], mask[row * sm.row + column * sm.step]);
        }
        if (!inside || (CAUSAL && column > row)) s[u][c] = (C)-INF;
        best = most(best, s[u][c]);
      }
      best = most(top[u], over_keys(best, [](C a, C b) { return most(a, b); }));
      const C base = best == (C)-INF ? C(0) : best, shrunk = exp_(top[u] - base);
      C sum = 0;
#pragma unroll
      for (int c = 0; c < NC; ++c) { s[u][c] = exp_(s[u][c] - base); sum += s[u][c]; }
      total[u] = total[u] * shrunk + over_keys(sum, [](C a, C b) { return a + b; });
      top[u] = best;
#pragma unroll
      for (int w = 0; w < W * 4; ++w) sums[u][w] = sums[u][w] * shrunk;
    }
    __syncthreads();  // the weights of the keys before have been read
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      Vector<C, 4> p;
#pragma unroll
      for (int u = 0; u < 4; ++u) p[u] = factor(s[u][c]);
      *vectors<4>(&weights[x * NC + c][y * 4]) = p;
    }
    for (int j = 0; j < BN && key + j < most_keys; j += DEEP) {
      __syncthreads();
      for (int i = threadIdx.x; i < DEEP * W * 64; i += 256) {
        const i64 row = key + j + i / (W * 64), column = part * W * 64 + i % (W * 64);
        values[i / (W * 64)][i % (W * 64)] =
            row < shape.keys && column < shape.columns ? factor(to<C>(v[row * sv.row + column * sv.step])) : C(0);
      }
      __syncthreads();
#pragma unroll
      for (int e = 0; e < DEEP; ++e) {
        Vector<C, 4> a = *vectors<4>(&weights[j + e][y * 4]);
#pragma unroll
        for (int w = 0; w < W; ++w) {
          Vector<C, 4> b = *vectors<4>(&values[e][w * 64 + x * 4]);
#pragma unroll
          for (int u = 0; u < 4; ++u)
#pragma unroll
            for (int c = 0; c < 4; ++c) sums[u][w * 4 + c] = fused(a[u], b[c], sums[u][w * 4 + c]);
        }
      }
    }
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const i64 row = first + y * 4 + u;
    if (part == 0 && x == 0 && row < shape.queries) logarithms[row] = total[u] == 0 ? (C)-INF : top[u] + log_(total[u]);
  }
#pragma unroll
  for (int u = 0; u < 4; ++u)
#pragma unroll
    for (int w = 0; w < W * 4; ++w) {
      const i64 row = first + y * 4 + u, column = part * W * 64 + w / 4 * 64 + x * 4 + w % 4;
      if (row < shape.queries && column < shape.columns)
        out[row * so.row + column * so.step] = to<X>(total[u] == 0 ? C(0) : sums[u][w] / total[u]);
    }
}
