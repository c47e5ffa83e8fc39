// Attention of 16-bit elements on tensor cores: a warp takes 16 queries, a block 16 WARPS of them, and goes through the
// keys 64 at a time while the next ones arrive; scores and sums never leave registers. Given before: X, the elements; M, the
// mask's; MASKED, CAUSAL; D, the depth and the columns, a multiple of 16 up to 128; WARPS; STAGES of keys and values.

constexpr int KEYS = 64, PITCH = D + 8;  // 8 more, so that the rows of a matrix lie in different banks

struct Steps { i64 row, step; };

template<class B> __device__ __forceinline__ float masked(float s, B m) {
  if constexpr (is_bool<B>) return m ? s : -INF;
  else return s + to<float>(m);
}

// Rows `first` and on, D elements each, of which the last may lie beyond `rows`: zeros.
__device__ __forceinline__ void fetch(X (*tile)[PITCH], const X* p, i64 step, i64 first, i64 rows, bool packed) {
  for (int i = threadIdx.x; i < KEYS * (D / 8); i += 32 * WARPS) {
    const int r = i / (D / 8), c = i % (D / 8) * 8;
    const bool inside = first + r < rows;
    const X* from = inside ? p + (first + r) * step + c : p;
    if (packed) copy16(&tile[r][c], from, inside);
    else for (int e = 0; e < 8; ++e) tile[r][c + e] = inside ? from[e] : X{0};
  }
}

__device__ __forceinline__ u32 two(const X* p, bool inside, bool packed) {
  if (!inside) return 0;
  return packed ? *(const u32*)p : p[0].bits | (u32)p[1].bits << 16;
}

__device__ void attend(X* out, const X* q, const X* k, const X* v, const M* mask, i64 so, i64 sq, i64 sk, i64 sv, Steps sm,
    i64 queries, i64 keys, i64 first, float scale) {
  alignas(16) __shared__ X tiles[STAGES][2][KEYS][PITCH];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, matrix = lane / 8, line = lane % 8;
  const bool packed = ((u64)q | (u64)k | (u64)v) % 16 == 0 && (sq | sk | sv) % 8 == 0;
  const i64 row = first + threadIdx.x / 32 * 16;  // the warp's first query
  const i64 seen = CAUSAL && first + 16 * WARPS < keys ? first + 16 * WARPS : keys;
  const int count = (int)((seen + KEYS - 1) / KEYS);

  u32 query[D / 16][4];
#pragma unroll
  for (int d = 0; d < D / 16; ++d)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const i64 at = row + g + e % 2 * 8;
      query[d][e] = two(q + (at < queries ? at * sq : 0) + d * 16 + 2 * t + e / 2 * 8, at < queries, packed);
    }

  float sums[D / 8][4] = {}, top[2] = {-INF, -INF}, total[2] = {};
  const float unit = 1.4426950408889634f;  // of base 2
  fetch(tiles[0][0], k, sk, 0, keys, packed);
  fetch(tiles[0][1], v, sv, 0, keys, packed);
  queued();
  for (int j = 0; j < count; ++j) {
    const i64 key = (i64)j * KEYS;
    if (STAGES == 2 && j + 1 < count) {
      fetch(tiles[(j + 1) % STAGES][0], k, sk, key + KEYS, keys, packed);
      fetch(tiles[(j + 1) % STAGES][1], v, sv, key + KEYS, keys, packed);
    }
    queued();
    arrived<STAGES - 1>();
    __syncthreads();
    auto& wanted = tiles[j % STAGES][0];
    auto& values = tiles[j % STAGES][1];

    float s[KEYS / 8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
#pragma unroll
      for (int n = 0; n < KEYS / 16; ++n) {
        u32 r[4];
        load_matrices(r, &wanted[n * 16 + matrix / 2 * 8 + line][d * 16 + matrix % 2 * 8]);
        multiply(X{}, s[2 * n], query[d], r[0], r[1]);
        multiply(X{}, s[2 * n + 1], query[d], r[2], r[3]);
      }

    float best[2] = {-INF, -INF};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const i64 at = row + g + e / 2 * 8, column = key + n * 8 + 2 * t + e % 2;
        const bool inside = at < queries && column < keys && !(CAUSAL && column > at);
        s[n][e] *= scale;
        if constexpr (MASKED) {
          if (inside) s[n][e] = masked(s[n][e], mask[at * sm.row + column * sm.step]);
        }
        s[n][e] = inside ? s[n][e] * unit : -INF;
        best[e / 2] = fmaxf(best[e / 2], s[n][e]);
      }
    float shrunk[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {  // the four lanes that hold a row
      best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 1));
      best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 2));
      best[u] = fmaxf(best[u], top[u]);
      const float base = best[u] == -INF ? 0 : best[u];
      shrunk[u] = exp2f(top[u] - base);
      total[u] *= shrunk[u];
      top[u] = best[u];
      best[u] = base;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2f(s[n][e] - best[e / 2]);
        total[e / 2] += s[n][e];
      }
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n][e] *= shrunk[e / 2];

#pragma unroll
    for (int c = 0; c < KEYS / 16; ++c) {
      const u32 weights[4] = {pair_of(X{}, s[2 * c][0], s[2 * c][1]), pair_of(X{}, s[2 * c][2], s[2 * c][3]),
                              pair_of(X{}, s[2 * c + 1][0], s[2 * c + 1][1]), pair_of(X{}, s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        u32 r[4];
        load_matrices_turned(r, &values[c * 16 + matrix % 2 * 8 + line][n * 16 + matrix / 2 * 8]);
        multiply(X{}, sums[2 * n], weights, r[0], r[1]);
        multiply(X{}, sums[2 * n + 1], weights, r[2], r[3]);
      }
    }
    __syncthreads();  // before the next keys take their place
    if (STAGES == 1 && j + 1 < count) {
      fetch(tiles[0][0], k, sk, key + KEYS, keys, packed);
      fetch(tiles[0][1], v, sv, key + KEYS, keys, packed);
    }
  }

#pragma unroll
  for (int u = 0; u < 2; ++u) {
    total[u] += __shfl_xor_sync(~0u, total[u], 1);
    total[u] += __shfl_xor_sync(~0u, total[u], 2);
    const i64 at = row + g + u * 8;
    const float share = total[u] == 0 ? 0 : 1 / total[u];
    if (at < queries)
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        X* target = out + at * so + n * 8 + 2 * t;
        target[0] = to<X>(sums[n][2 * u] * share);
        target[1] = to<X>(sums[n][2 * u + 1] * share);
      }
  }
}
