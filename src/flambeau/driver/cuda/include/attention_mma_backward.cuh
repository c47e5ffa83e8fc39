// The gradient of attention of 16-bit elements on tensor cores, without scores in memory. A warp owns 16 rows and goes
// through tiles of OTHER rows while the next tile arrives. BY_KEYS false: it owns queries, goes through keys and values,
// and computes the query's gradient. BY_KEYS true: it owns keys, goes through queries and the output's gradient, and
// computes the gradients of keys and values. The weights are computed in both, so that no sum needs atomic additions and
// results repeat bit by bit. Given before: X, the elements; M, the mask's; MASKED, CAUSAL, BY_KEYS; D, the depth and the
// columns, a multiple of 16 up to 128; WARPS; OTHER.
//
// With s = scale q k^T, p = exp(s - logarithm of the query's sum), g the output's gradient, d = g v^T and
// level = sum over keys of p d = g . out: by_scores = p (d - level), by_q = scale by_scores k,
// by_k = scale by_scores^T q, by_v = p^T g.

constexpr int PITCH = D + 8, TILES = OTHER / 8;  // 8 more, so that the rows of a matrix lie in different banks
constexpr float LOG2_E = 1.4426950408889634f;

struct Steps { i64 row, step; };
struct Matrix { const X* at; i64 row; };  // its first element, and the elements from one row to the next

template<class B> __device__ __forceinline__ float masked(float s, B m) {
  if constexpr (is_bool<B>) return m ? s : -INF;
  else return s + to<float>(m);
}

// A thread brings 16 bytes of some rows of each tile to shared memory: of rows APART from each other.
constexpr int EACH = D / 8, APART = 32 * WARPS / EACH;

__device__ __forceinline__ void fetch(X* tile, Matrix x, i64 first, i64 count, bool packed) {
  const int column = threadIdx.x % EACH * 8;
  if (threadIdx.x / EACH >= APART) return;
  for (int row = threadIdx.x / EACH; row < OTHER; row += APART) {
    X* const target = tile + row * PITCH + column;
    const bool inside = first + row < count;
    const X* const from = x.at + (inside ? first + row : 0) * x.row + column;
    if (packed) copy16(shared_address(target), from, inside);
    else
      for (int e = 0; e < 8; ++e) target[e] = inside ? from[e] : X{0};
  }
}

// The warp's 16 rows from `row` on, as the left factor of products; rows beyond the last are the last.
__device__ __forceinline__ void take_rows(u32 (&a)[D / 16][4], Matrix x, i64 row, i64 count, bool packed) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i64 at = row + g + i * 8;
    const X* const p = x.at + (at < count ? at : count - 1) * x.row + 2 * t;
#pragma unroll
    for (int e = 0; e < D / 8; ++e)
      a[e / 2][i + e % 2 * 2] = packed ? *(const u32*)(p + e * 8) : p[e * 8].bits | (u32)p[e * 8 + 1].bits << 16;
  }
}

// sums = own tile^T
__device__ __forceinline__ void multiply_rows(float (&sums)[TILES][4], const u32 (&own)[D / 16][4], Shared tile) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
#pragma unroll
  for (int d = 0; d < D / 16; ++d)
#pragma unroll
    for (int n = 0; n < OTHER / 16; ++n) {
      u32 r[4];
      load_matrices(r, tile + (n * 16 * PITCH + d * 16) * (int)sizeof(X));
      multiply(X{}, sums[2 * n], own[d], r[0], r[1]);
      multiply(X{}, sums[2 * n + 1], own[d], r[2], r[3]);
    }
}

// sums += factors tile
__device__ __forceinline__ void add_columns(float (&sums)[D / 8][4], const float (&factors)[TILES][4], Shared tile) {
#pragma unroll
  for (int c = 0; c < OTHER / 16; ++c) {
    u32 a[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) a[e] = pair_of(X{}, factors[2 * c + e / 2][e % 2 * 2], factors[2 * c + e / 2][e % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      u32 r[4];
      load_matrices_turned(r, tile + (c * 16 * PITCH + n * 16) * (int)sizeof(X));
      multiply(X{}, sums[2 * n], a, r[0], r[1]);
      multiply(X{}, sums[2 * n + 1], a, r[2], r[3]);
    }
  }
}

__device__ __forceinline__ void store_rows(X* out, i64 step, const float (&sums)[D / 8][4], i64 row, i64 count, float scale) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i64 at = row + g + i * 8;
    if (at >= count) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *(u32*)(out + at * step + n * 8 + 2 * t) = pair_of(X{}, sums[n][i * 2] * scale, sums[n][i * 2 + 1] * scale);
  }
}

// Each query's sum of g out, from the warp's rows of g.
__device__ __forceinline__ void find_levels(float (&level)[2], const u32 (&g_rows)[D / 16][4], const u32 (&out_rows)[D / 16][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    level[i] = 0;
#pragma unroll
    for (int e = 0; e < D / 8; ++e) {
      const u32 a = g_rows[e / 2][i + e % 2 * 2], b = out_rows[e / 2][i + e % 2 * 2];
      level[i] += to<float>(X{(u16)a}) * to<float>(X{(u16)b}) + to<float>(X{(u16)(a >> 16)}) * to<float>(X{(u16)(b >> 16)});
    }
    level[i] += __shfl_xor_sync(~0u, level[i], 1);
    level[i] += __shfl_xor_sync(~0u, level[i], 2);
  }
}

// own, own_by: queries and g, or keys and values; other, other_by: the reverse. by_own: the gradient of `own`; by_values
// where BY_KEYS. logarithms and levels: of the queries; the levels are written where BY_KEYS is false, else read.
__device__ void attend_backward(X* by_own, X* by_values, Matrix own, Matrix own_by, Matrix other, Matrix other_by, Matrix out,
    const float* logarithms, float* levels, const M* mask, Steps sm, i64 owned, i64 others, i64 first, float scale) {
  alignas(16) __shared__ X tiles[2][2][OTHER][PITCH];
  alignas(16) __shared__ float rows[2][2][OTHER];  // where BY_KEYS: logarithms and levels of the tile's queries
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, matrix = lane / 8, line = lane % 8;
  const bool packed = ((u64)own.at | (u64)own_by.at | (u64)other.at | (u64)other_by.at | (u64)out.at) % 16 == 0 &&
      (own.row | own_by.row | other.row | other_by.row | out.row) % 8 == 0;
  const i64 row = first + threadIdx.x / 32 * 16;  // the warp's first row

  u32 left[D / 16][4], left_by[D / 16][4];
  take_rows(left, own, row, owned, packed);
  take_rows(left_by, own_by, row, owned, packed);
  float base[2], level[2];
  if constexpr (!BY_KEYS) {
    u32 out_rows[D / 16][4];
    take_rows(out_rows, out, row, owned, packed);
    find_levels(level, left_by, out_rows);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const i64 at = row + g + i * 8;
      if (t == 0 && at < owned) levels[at] = level[i];
      const float logarithm = logarithms[at < owned ? at : owned - 1];
      base[i] = logarithm == -INF ? INF : logarithm * LOG2_E;
    }
  }

  const i64 begin = CAUSAL && BY_KEYS ? first / OTHER * OTHER : 0;
  const i64 end = CAUSAL && !BY_KEYS && first + 16 * WARPS < others ? first + 16 * WARPS : others;
  const auto bring = [&](int stage, i64 from) {
    fetch(&tiles[stage][0][0][0], other, from, others, packed);
    fetch(&tiles[stage][1][0][0], other_by, from, others, packed);
    if constexpr (BY_KEYS) {
      for (int i = threadIdx.x; i < OTHER; i += 32 * WARPS) {
        const bool inside = from + i < others;
        copy4(shared_address(&rows[stage][0][i]), logarithms + (inside ? from + i : 0), inside);
        copy4(shared_address(&rows[stage][1][i]), levels + (inside ? from + i : 0), inside);
      }
    }
    queued();
  };
  const int row_of = (matrix / 2 * 8 + line) * PITCH + matrix % 2 * 8, column_of = (matrix % 2 * 8 + line) * PITCH + matrix / 2 * 8;
  const float unit = LOG2_E * scale;
  float sums[D / 8][4] = {}, sums_by[D / 8][4] = {};
  if (begin < end) bring(0, begin);
  for (i64 from = begin; from < end; from += OTHER) {
    const int stage = (int)((from - begin) / OTHER % 2);
    arrived<0>();
    __syncthreads();  // this tile is here, and nobody reads the one before it any more
    if (from + OTHER < end) bring(1 - stage, from + OTHER);
    if (CAUSAL && (BY_KEYS ? from + OTHER <= row : from >= row + 16)) continue;  // no key is seen from any query here
    const Shared tile = shared_address(&tiles[stage][0][0][0]), tile_by = shared_address(&tiles[stage][1][0][0]);
    float p[TILES][4], d[TILES][4];
    multiply_rows(p, left, tile + row_of * (int)sizeof(X));
    multiply_rows(d, left_by, tile_by + row_of * (int)sizeof(X));
    const bool all = !MASKED && (BY_KEYS || from + OTHER <= others) &&
        !(CAUSAL && (BY_KEYS ? from < row + 15 : from + OTHER - 1 > row));
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = n * 8 + 2 * t + e % 2;
        float b, l, s = p[n][e] * (MASKED ? scale : unit);
        if constexpr (BY_KEYS) {
          const float logarithm = rows[stage][0][column];
          b = logarithm == -INF ? INF : logarithm * LOG2_E;
          l = rows[stage][1][column];
        } else {
          b = base[e / 2];
          l = level[e / 2];
        }
        if (!all) {
          const i64 mine = row + g + e / 2 * 8, theirs = from + column;
          const i64 query = BY_KEYS ? theirs : mine, key = BY_KEYS ? mine : theirs;
          const bool inside = mine < owned && theirs < others;
          if constexpr (MASKED) {
            if (inside) s = masked(s, mask[query * sm.row + key * sm.step]);
            s *= LOG2_E;
          }
          if (!inside || (CAUSAL && key > query)) s = -INF;
        }
        p[n][e] = power_of_two(s - b);
        d[n][e] = p[n][e] * (d[n][e] - l);
      }
    if constexpr (BY_KEYS) add_columns(sums_by, p, tile_by + column_of * (int)sizeof(X));
    add_columns(sums, d, tile + column_of * (int)sizeof(X));
  }
  store_rows(by_own, D, sums, row, owned, scale);
  if constexpr (BY_KEYS) store_rows(by_values, D, sums_by, row, owned, 1);
}
