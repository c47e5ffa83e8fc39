// The gradient of attention of 16-bit elements by warpgroups of Hopper: what attention_mma_backward.cuh says, without masks.
// A block is one warpgroup that brings tiles to shared memory and GROUPS warpgroups that each own 64 rows. Given before: X,
// the elements; CAUSAL, BY_KEYS; D, the depth and the columns, a multiple of 16 up to 128; GROUPS; OTHER; BRINGING and
// COMPUTING, registers of a thread.

constexpr int ROWS = 64 * GROUPS, PANELS = (D + 63) / 64, STAGES = 2;
constexpr int OWN_BYTES = PANELS * ROWS * 128, OTHER_BYTES = PANELS * OTHER * 128;
constexpr float LOG2_E = 1.4426950408889634f;

struct Steps { i64 row, step; };
struct Matrix { const X* at; i64 row; };  // its first element, and the elements from one row to the next

struct Places {  // in shared memory
  Shared own, other, barriers;
  float* rows;  // of each stage logarithms and levels of the tile's queries, where BY_KEYS
  __device__ __forceinline__ Shared tile(int stage, int which) const { return other + (2 * stage + which) * OTHER_BYTES; }
  __device__ __forceinline__ float* row(int stage, int which) const { return rows + (2 * stage + which) * OTHER; }
  __device__ __forceinline__ Shared has_own() const { return barriers; }
  __device__ __forceinline__ Shared has(int stage) const { return barriers + 8 + 8 * stage; }
  __device__ __forceinline__ Shared read(int stage) const { return barriers + 24 + 8 * stage; }
};

__device__ __forceinline__ int left_of(i64 end, i64 first) { return (int)(end - first < 1024 ? end - first : 1024); }

// The first rows of both matrices from `first` on.
template<int COUNT> __device__ __forceinline__ void fetch_both(Shared to, int apart, Matrix x, Matrix y, i64 first, i64 count, bool packed) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8, mine = row * 128 + (chunk ^ row % 8) * 16;
  fetch<COUNT, D>(to + mine, x.at + (first + row) * x.row + chunk * 8, x.row, left_of(count, first), packed);
  fetch<COUNT, D>(to + apart + mine, y.at + (first + row) * y.row + chunk * 8, y.row, left_of(count, first), packed);
}

__device__ __forceinline__ void bring_tiles(const Places& places, Matrix own, Matrix own_by, Matrix other, Matrix other_by,
    const float* logarithms, const float* levels, i64 owned, i64 others, i64 first, i64 begin, i64 end) {
  const bool packed = ((u64)own.at | (u64)own_by.at | (u64)other.at | (u64)other_by.at) % 16 == 0 &&
      (own.row | own_by.row | other.row | other_by.row) % 8 == 0;
  const auto begun = [&](Shared barrier) {
    if (packed) arrive_after_copies(barrier);
    else arrive(barrier);
  };
  fetch_both<ROWS>(places.own, OWN_BYTES, own, own_by, first, owned, packed);
  begun(places.has_own());
  int tile = 0;
  for (i64 from = begin; from < end; from += OTHER, ++tile) {
    const int stage = tile % STAGES, i = threadIdx.x;
    await(places.read(stage), 1 ^ tile / STAGES % 2);
    fetch_both<OTHER>(places.tile(stage, 0), OTHER_BYTES, other, other_by, from, others, packed);
    if (BY_KEYS && i < OTHER) {
      const bool inside = from + i < others;
      const i64 at = inside ? from + i : 0;
      if (packed) {
        copy4(shared_address(places.row(stage, 0) + i), logarithms + at, inside);
        copy4(shared_address(places.row(stage, 1) + i), levels + at, inside);
      } else {
        places.row(stage, 0)[i] = inside ? logarithms[at] : 0;
        places.row(stage, 1)[i] = inside ? levels[at] : 0;
      }
    }
    begun(places.has(stage));
  }
}

// A query's sum of g out; the four lanes that call this for one query share the work.
__device__ __forceinline__ float level_of(Matrix g, Matrix out, i64 at) {
  const X *p = g.at + at * g.row, *q = out.at + at * out.row;
  const bool packed = ((u64)p | (u64)q) % 16 == 0;
  float level = 0;
#pragma unroll
  for (int c = threadIdx.x % 4; c < D / 8; c += 4) {
    Vector<X, 8> a, b;
    if (packed) {
      a = *vectors<8>(p + c * 8);
      b = *vectors<8>(q + c * 8);
    } else
      for (int e = 0; e < 8; ++e) { a[e] = p[c * 8 + e]; b[e] = q[c * 8 + e]; }
#pragma unroll
    for (int e = 0; e < 8; ++e) level += to<float>(a[e]) * to<float>(b[e]);
  }
  level += __shfl_xor_sync(~0u, level, 1);
  return level + __shfl_xor_sync(~0u, level, 2);
}

__device__ __forceinline__ void begin_rows(float (&sums)[OTHER / 2], Tile own, Tile tile) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d)
    begin_product(X{}, sums, moved(own, d / 4 * ROWS * 128 + d % 4 * 32), moved(tile, d / 4 * OTHER * 128 + d % 4 * 32), d > 0);
}

__device__ __forceinline__ void begin_columns(float (&sums)[D / 2], const u32 (&factors)[OTHER / 16][4], Tile tile) {
#pragma unroll
  for (int c = 0; c < OTHER / 16; ++c) begin_product_turned(X{}, sums, factors[c], moved(tile, c * 2048));
}

__device__ __forceinline__ void round_factors(u32 (&factors)[OTHER / 16][4], const float (&s)[OTHER / 2]) {
#pragma unroll
  for (int i = 0; i < OTHER / 4; ++i) factors[i / 4][i % 4] = pair_of(X{}, s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void store_rows(X* out, const float (&sums)[D / 2], i64 row, i64 count, float scale) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const i64 at = row + u * 8;
    if (at >= count) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *(u32*)(out + at * D + n * 8 + threadIdx.x % 4 * 2) = pair_of(X{}, sums[4 * n + 2 * u] * scale, sums[4 * n + 2 * u + 1] * scale);
  }
}

__device__ __forceinline__ float base_of(float logarithm) { return logarithm == -INF ? INF : logarithm * LOG2_E; }

// s becomes the weights, d the gradient of the scores. row: the thread's first row; first: the warp's.
__device__ __forceinline__ void differentiate(float (&s)[OTHER / 2], float (&d)[OTHER / 2], const Places& places, int stage,
    const float (&base)[2], const float (&level)[2], i64 first, i64 row, i64 from, i64 others, float unit) {
  const bool all = (BY_KEYS || from + OTHER <= others) && !(CAUSAL && (BY_KEYS ? from < first + 15 : from + OTHER - 1 > first));
  if (!all) {
    const int left = left_of(others, from);
    const int ahead = (int)(row - from < -1024 ? -1024 : row - from > 1024 ? 1024 : row - from);
#pragma unroll
    for (int i = 0; i < OTHER / 2; ++i) {
      const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, mine = ahead + i / 2 % 2 * 8;
      if (column >= left || (CAUSAL && (BY_KEYS ? column < mine : column > mine))) s[i] = -INF;
    }
  }
#pragma unroll
  for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = n * 8 + threadIdx.x % 4 * 2 + e;
      float b, l;
      if constexpr (BY_KEYS) {
        b = base_of(places.row(stage, 0)[column]);
        l = places.row(stage, 1)[column];
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int i = n * 4 + u * 2 + e;
        s[i] = power_of_two(__fmaf_rn(s[i], unit, BY_KEYS ? -b : -base[u]));
        d[i] = s[i] * (d[i] - (BY_KEYS ? l : level[u]));
      }
    }
}

__device__ __forceinline__ void compute(const Places& places, X* by_own, X* by_values, Matrix own_by, Matrix out,
    const float* logarithms, float* levels, i64 owned, i64 others, i64 first, i64 begin, i64 end, float scale) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const i64 mine = first + group * 64, warp = mine + threadIdx.x / 32 % 4 * 16, row = warp + lane / 4;
  const Tile own = tile_at(places.own + group * 8192, ROWS * 128), own_with = moved(own, OWN_BYTES);
  const float unit = LOG2_E * scale;
  const auto read = [&](int tile) {  // by this warp
    __syncwarp();
    if (lane == 0) arrive(places.read(tile % STAGES));
  };
  const auto pass = [&](int tile) {  // once it is there: before, `read` may still count who has read the last one there
    await(places.has(tile % STAGES), tile / STAGES % 2);
    read(tile);
  };
  float base[2] = {}, level[2] = {};
  if constexpr (!BY_KEYS) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const i64 query = row + u * 8, at = query < owned ? query : owned - 1;
      level[u] = level_of(own_by, out, at);
      if (lane % 4 == 0 && query < owned) levels[query] = level[u];
      base[u] = base_of(logarithms[at]);
    }
  }
  // Where causal, this warpgroup's first query sees keys up to its own, and only queries from its first key on see it.
  const i64 stop = CAUSAL && !BY_KEYS && mine + 64 < end ? mine + 64 : end;
  int tile = 0;
  i64 from = begin;
  if constexpr (CAUSAL && BY_KEYS)
    for (; from < end && from + OTHER <= mine; from += OTHER) pass(tile++);
  float sums[D / 2], sums_by[D / 2], s[OTHER / 2], d[OTHER / 2];
  u32 weights[OTHER / 16][4], slopes[OTHER / 16][4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) {
    sums[i] = 0;
    if constexpr (BY_KEYS) sums_by[i] = 0;
  }
  const auto held = [&]() {
    hold(sums);
    hold(slopes);
    if constexpr (BY_KEYS) {
      hold(sums_by);
      hold(weights);
    }
  };
  await(places.has_own(), 0);
  for (; from < stop; from += OTHER, ++tile) {
    const int stage = tile % STAGES;
    const Tile other = tile_at(places.tile(stage, 0), OTHER * 128), other_by = moved(other, OTHER_BYTES);
    await(places.has(stage), tile / STAGES % 2);
    fence_writes();
    hold(s);
    hold(d);
    fence_registers();
    begin_rows(s, own, other);
    begin_rows(d, own_with, other_by);
    end_products();
    await_products<0>();
    hold(s);
    hold(d);
    differentiate(s, d, places, stage, base, level, warp, row, from, others, unit);
    if constexpr (BY_KEYS) round_factors(weights, s);
    round_factors(slopes, d);
    held();
    fence_registers();
    if constexpr (BY_KEYS) begin_columns(sums_by, weights, other_by);
    begin_columns(sums, slopes, other);
    end_products();
    await_products<0>();
    held();
    read(tile);
  }
  for (; from < end; from += OTHER) pass(tile++);
  store_rows(by_own, sums, row, owned, scale);
  if constexpr (BY_KEYS) store_rows(by_values, sums_by, row, owned, 1);
}

__device__ __forceinline__ void attend_backward(X* by_own, X* by_values, Matrix own, Matrix own_by, Matrix other, Matrix other_by,
    Matrix out, const float* logarithms, float* levels, const M* /* none */, Steps, i64 owned, i64 others, i64 first, float scale) {
  alignas(8) __shared__ u64 barriers[5];
  alignas(16) __shared__ float rows[STAGES * 2 * OTHER];
  const Shared start = shared_address(room);
  const Places places = {start, start + 2 * OWN_BYTES, shared_address(barriers), rows};
  if (threadIdx.x == 0) {
    make_barrier(places.has_own(), 128);
    for (int stage = 0; stage < STAGES; ++stage) {
      make_barrier(places.has(stage), 128);
      make_barrier(places.read(stage), 4 * GROUPS);
    }
  }
  __syncthreads();
  const i64 begin = CAUSAL && BY_KEYS ? first / OTHER * OTHER : 0;
  const i64 end = CAUSAL && !BY_KEYS && first + ROWS < others ? first + ROWS : others;
  if (threadIdx.x < 128) {
    fewer_registers<BRINGING>();
    bring_tiles(places, own, own_by, other, other_by, logarithms, levels, owned, others, first, begin, end);
  } else {
    more_registers<COMPUTING>();
    compute(places, by_own, by_values, own_by, out, logarithms, levels, owned, others, first, begin, end, scale);
  }
}
