// Attention of 16-bit elements on tensor cores: a warp takes R blocks of 16 queries, so that what it reads of keys and
// values serves them all, and goes through the keys KEYS at a time while the next ones arrive; scores and sums never leave
// registers. Given before: X, the elements; M, the mask's; MASKED, CAUSAL, FOLDED; D, the depth and the columns, a
// multiple of 16 up to 128; WARPS; R; KEYS.

constexpr int ROWS = 16 * R, PITCH = D + 8;  // 8 more, so that the rows of a matrix lie in different banks

struct Steps { i64 row, step; };

template<class B> __device__ __forceinline__ float masked(float s, B m) {
  if constexpr (is_bool<B>) return m ? s : -INF;
  else return s + to<float>(m);
}

// A thread brings 16 bytes of some rows of each tile to shared memory: of rows APART from each other.
constexpr int EACH = D / 8, APART = 32 * WARPS / EACH, COUNT = (KEYS + APART - 1) / APART;

// To a tile's place `to` of this thread, from `from` in the first row that it brings; of rows from `left` on zeros.
__device__ __forceinline__ void fetch(X* to, const X* from, i64 step, int left, bool packed) {
  const int row = threadIdx.x / EACH;
  if (128 % EACH && row >= APART) return;
  if (packed) {
    const Shared target = shared_address(to);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (KEYS % APART && row + i * APART >= KEYS) break;
      const bool inside = row + i * APART < left;
      copy16(target + i * APART * PITCH * (int)sizeof(X), inside ? from + i * APART * step : from, inside);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < COUNT && row + i * APART < KEYS; ++i)
      for (int e = 0; e < 8; ++e)
        to[i * APART * PITCH + e] = row + i * APART < left ? from[i * APART * step + e] : X{0};
  }
}

// Scores of the warp's queries from `row` on and of keys from `key` on that do not count become -INF; masks are applied.
__device__ __forceinline__ void bounded(float (&s)[R][KEYS / 8][4], i64 row, i64 key, i64 queries, i64 keys, const M* mask,
                                         Steps sm) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int left = (int)(keys - key < KEYS ? keys - key : KEYS);
#pragma unroll
  for (int b = 0; b < R; ++b)
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const i64 at = row + b * 16 + g + e / 2 * 8;
        const int column = n * 8 + 2 * t + e % 2;
        const bool inside = column < left && !(CAUSAL && key + column > at);
        if constexpr (MASKED) {
          if (inside && at < queries) s[b][n][e] = masked(s[b][n][e], mask[at * sm.row + (key + column) * sm.step]);
        }
        if (!inside) s[b][n][e] = -INF;
      }
}

__device__ void attend(X* out, float* logarithms, const X* q, const X* k, const X* v, const M* mask, i64 so, i64 sq, i64 sk, i64 sv, Steps sm,
    i64 queries, i64 keys, i64 first, float scale) {
  alignas(16) __shared__ X tiles[2][2][KEYS][PITCH];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, matrix = lane / 8, line = lane % 8;
  const bool packed = ((u64)q | (u64)k | (u64)v) % 16 == 0 && (sq | sk | sv) % 8 == 0;
  const i64 row = first + threadIdx.x / 32 * ROWS;  // the warp's first query
  const i64 seen = CAUSAL && first + ROWS * WARPS < keys ? first + ROWS * WARPS : keys;
  const int count = (int)((seen + KEYS - 1) / KEYS);

  u32 query[R][D / 16][4];
#pragma unroll
  for (int i = 0; i < 2 * R; ++i) {  // rows beyond the last are the last: what becomes of them is not stored
    const i64 at = row + i / 2 * 16 + g + i % 2 * 8;
    const X* const p = q + (at < queries ? at : queries - 1) * sq + 2 * t;
    if (packed) {
#pragma unroll
      for (int e = 0; e < D / 8; ++e) query[i / 2][e / 2][i % 2 + e % 2 * 2] = *(const u32*)(p + e * 8);
    } else {
#pragma unroll
      for (int e = 0; e < D / 8; ++e) query[i / 2][e / 2][i % 2 + e % 2 * 2] = p[e * 8].bits | (u32)p[e * 8 + 1].bits << 16;
    }
  }

  float sums[R][D / 8][4] = {}, top[R][2], total[R][2] = {};
#pragma unroll
  for (int b = 0; b < R; ++b) top[b][0] = top[b][1] = -INF;
  // Weights are powers of 2. Where scores are multiplied by a positive number alone (FOLDED), that is done with the
  // subtraction.
  const float unit = 1.4426950408889634f * scale, factor = FOLDED ? unit : 1;
  X* const mine = &tiles[0][0][threadIdx.x / EACH][threadIdx.x % EACH * 8];
  k += threadIdx.x / EACH * sk + threadIdx.x % EACH * 8;
  v += threadIdx.x / EACH * sv + threadIdx.x % EACH * 8;
  const auto bring = [&](int stage, i64 key) {  // keys and values from `key` on, which are the next ones
    const int left = (int)(keys - key < KEYS ? keys - key : KEYS);
    fetch(mine + stage * (2 * KEYS * PITCH), k, sk, left, packed);
    fetch(mine + stage * (2 * KEYS * PITCH) + KEYS * PITCH, v, sv, left, packed);
    k += KEYS * sk;
    v += KEYS * sv;
    queued();
  };
  bring(0, 0);
  const int key_of = (matrix / 2 * 8 + line) * PITCH + matrix % 2 * 8, value_of = (matrix % 2 * 8 + line) * PITCH + matrix / 2 * 8;
  const Shared wanted_ = shared_address(&tiles[0][0][0][0]) + key_of * (int)sizeof(X);
  const Shared values_ = shared_address(&tiles[0][1][0][0]) + value_of * (int)sizeof(X);
  for (int j = 0; j < count; ++j) {
    const i64 key = (i64)j * KEYS;
    arrived<0>();
    __syncthreads();  // these keys are here, and nobody reads those before them any more
    if (j + 1 < count) bring((j + 1) % 2, key + KEYS);
    const int stage = j % 2 * (int)sizeof tiles[0];
    const Shared wanted = wanted_ + stage, values = values_ + stage;
    if (!CAUSAL || key < row + ROWS) {  // else no query of this warp may look at any of them
      float s[R][KEYS / 8][4] = {};
#pragma unroll
      for (int d = 0; d < D / 16; ++d)
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
          u32 r[4];
          load_matrices(r, wanted + (n * 16 * PITCH + d * 16) * (int)sizeof(X));
#pragma unroll
          for (int b = 0; b < R; ++b) {
            multiply(X{}, s[b][2 * n], query[b][d], r[0], r[1]);
            multiply(X{}, s[b][2 * n + 1], query[b][d], r[2], r[3]);
          }
        }
      if constexpr (!FOLDED) {
#pragma unroll
        for (int i = 0; i < R * KEYS / 2; ++i) s[i / (KEYS / 2)][i % (KEYS / 2) / 4][i % 4] *= MASKED ? scale : unit;
      }
      if (MASKED || key + KEYS > keys || (CAUSAL && key + KEYS - 1 > row)) bounded(s, row, key, queries, keys, mask, sm);
      if constexpr (MASKED) {
#pragma unroll
        for (int i = 0; i < R * KEYS / 2; ++i) s[i / (KEYS / 2)][i % (KEYS / 2) / 4][i % 4] *= 1.4426950408889634f;
      }

#pragma unroll
      for (int b = 0; b < R; ++b) {
        float best[2] = {top[b][0], top[b][1]}, base[2], shrunk[2];
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) best[e / 2] = fmaxf(best[e / 2], s[b][n][e]);
#pragma unroll
        for (int u = 0; u < 2; ++u) {  // the four lanes that hold a row
          best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 1));
          best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 2));
          base[u] = best[u] == -INF ? 0 : best[u] * factor;
          shrunk[u] = power_of_two(__fmaf_rn(top[b][u], factor, -base[u]));
          total[b][u] *= shrunk[u];
          top[b][u] = best[u];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            s[b][n][e] = power_of_two(__fmaf_rn(s[b][n][e], factor, -base[e / 2]));
            total[b][e / 2] += s[b][n][e];
          }
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[b][n][e] *= shrunk[e / 2];
      }

#pragma unroll
      for (int c = 0; c < KEYS / 16; ++c) {
        u32 weights[R][4];
#pragma unroll
        for (int b = 0; b < R; ++b)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            weights[b][e] = pair_of(X{}, s[b][2 * c + e / 2][e % 2 * 2], s[b][2 * c + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          u32 r[4];
          load_matrices_turned(r, values + (c * 16 * PITCH + n * 16) * (int)sizeof(X));
#pragma unroll
          for (int b = 0; b < R; ++b) {
            multiply(X{}, sums[b][2 * n], weights[b], r[0], r[1]);
            multiply(X{}, sums[b][2 * n + 1], weights[b], r[2], r[3]);
          }
        }
      }
    }
  }

  const bool paired = ((u64)out | so * sizeof(X)) % 4 == 0;
#pragma unroll
  for (int i = 0; i < 2 * R; ++i) {
    float& all = total[i / 2][i % 2];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    const i64 at = row + i / 2 * 16 + g + i % 2 * 8;
    const float share = all == 0 ? 0 : 1 / all;
    if (at < queries && t == 0)
      logarithms[at] = all == 0 ? -INF : (top[i / 2][i % 2] * factor + log2f(all)) * 0.6931471805599453f;
    if (at < queries)
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        X* const target = out + at * so + n * 8 + 2 * t;
        const u32 both = pair_of(X{}, sums[i / 2][n][i % 2 * 2] * share, sums[i / 2][n][i % 2 * 2 + 1] * share);
        if (paired) *(u32*)target = both;
        else { target[0] = X{(u16)both}; target[1] = X{(u16)(both >> 16)}; }
      }
  }
}
