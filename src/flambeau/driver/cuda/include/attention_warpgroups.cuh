// Attention of 16-bit elements by warpgroups of Hopper. A block is one warpgroup that brings tiles to shared memory and
// GROUPS warpgroups that compute, each for 64 queries. These go through the keys KEYS at a time, from the last ones to the
// first: the scores of a tile are computed while the weights of the tile before are multiplied by its values, and while
// other warpgroups compute weights. There are as many blocks as multiprocessors; a block takes one item of work, ROWS
// queries of a sample, after the other, and brings the next one's tiles while it computes. Given before: X, the elements;
// CAUSAL; D, the depth and the columns, a multiple of 16 up to 128; GROUPS; KEYS; BRINGING and COMPUTING, registers of a
// thread.

constexpr int ROWS = 64 * GROUPS, PANELS = (D + 63) / 64, STAGES = 2;
constexpr int QUERY_BYTES = PANELS * ROWS * 128, KEY_BYTES = PANELS * KEYS * 128;

struct Steps { i64 row, step; };
struct Shape { i64 queries, keys, tiles, samples, step_of_out, step_of_q, step_of_k, step_of_v; };
struct Matrices { X* out; const X *q, *k, *v; };  // of a sample

// An item of work. Where causal, those of the last queries, with most to do, come first, for some samples at a time: so
// many that their keys and values stay in the cache.
struct Work {
  u32 sample;
  i64 first;  // query
  int count;  // of tiles of keys
  __device__ __forceinline__ Work(const Shape& shape, u32 number) {
    const i64 fitting = CAUSAL ? (16 << 20) / (shape.keys * D * 4) : 1;
    const u32 tiles = (u32)shape.tiles, together = fitting < 1 ? 1 : (u32)fitting;
    const u32 group = number / (together * tiles), rest = number - group * (together * tiles);
    const u32 left = (u32)shape.samples - group * together, size = left < together ? left : together;
    const u32 tile = rest / size;
    sample = group * together + rest - tile * size;
    first = (i64)(CAUSAL ? tiles - 1 - tile : tile) * ROWS;
    const i64 seen = CAUSAL && first + ROWS < shape.keys ? first + ROWS : shape.keys;
    count = (int)((seen + KEYS - 1) / KEYS);
  }
};

struct Places {  // in shared memory
  Shared queries, keys, values, barriers;
  u32* items;  // two, each the number of the next item of work
  __device__ __forceinline__ Shared has_item(int at) const { return barriers + 80 + 8 * at; }
  __device__ __forceinline__ Shared read_item(int at) const { return barriers + 96 + 8 * at; }
  __device__ __forceinline__ Shared has_queries() const { return barriers; }
  __device__ __forceinline__ Shared read_queries() const { return barriers + 8; }
  __device__ __forceinline__ Shared has_keys(int stage) const { return barriers + 16 + 8 * stage; }
  __device__ __forceinline__ Shared read_keys(int stage) const { return barriers + 32 + 8 * stage; }
  __device__ __forceinline__ Shared has_values(int stage) const { return barriers + 48 + 8 * stage; }
  __device__ __forceinline__ Shared read_values(int stage) const { return barriers + 64 + 8 * stage; }
};

// The items of a block: the first by its number, the others by a counter, which the last draw leaves zero.
struct Items {
  const Places& places;
  const u32 count;
  u32 number = blockIdx.x, taken = 0;
  __device__ __forceinline__ Items(const Places& places, const Shape& shape)
      : places(places), count((u32)(shape.tiles * shape.samples)) {}
  __device__ __forceinline__ void draw(u32* counter) const {  // the next item, for all threads
    const int at = taken % 2;
    const u32 drawn = atomicAdd(counter, 1u);
    if (drawn == count - 1) *counter = 0;
    await(places.read_item(at), 1 ^ taken / 2 % 2);
    places.items[at] = drawn + gridDim.x;
    arrive(places.has_item(at));
  }
  __device__ __forceinline__ void advance() {
    const int at = taken % 2;
    await(places.has_item(at), taken / 2 % 2);
    number = ((volatile u32*)places.items)[at];
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(places.read_item(at));
    ++taken;
  }
};

template<class Locate> __device__ __forceinline__ void bring_tiles(const Places& places, const Shape& shape, u32* counter,
                                                                   Locate locate) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8, mine = row * 128 + (chunk ^ row % 8) * 16;
  int keys = 0, values = 0;  // tiles begun
  u32 round = 1;  // of the queries
  for (Items items(places, shape); items.number < items.count; items.advance()) {
    const Work work(shape, items.number);
    const Matrices x = locate(work.sample);
    const bool packed = ((u64)x.q | (u64)x.k | (u64)x.v) % 16 == 0 &&
        (shape.step_of_q | shape.step_of_k | shape.step_of_v) % 8 == 0;
    const auto begun = [&](Shared barrier) {
      if (packed) arrive_after_copies(barrier);
      else arrive(barrier);
    };
    const auto left = [&](i64 end, i64 first) { return (int)(end - first < 1024 ? end - first : 1024); };
    const X* const k = x.k + row * shape.step_of_k + chunk * 8;
    const X* const v = x.v + row * shape.step_of_v + chunk * 8;
    const auto bring_keys = [&](int tile) {
      const int stage = keys % STAGES;
      await(places.read_keys(stage), 1 ^ keys / STAGES % 2);
      const i64 key = (i64)tile * KEYS;
      fetch<KEYS, D>(places.keys + stage * KEY_BYTES + mine, k + key * shape.step_of_k, shape.step_of_k, left(shape.keys, key), packed);
      begun(places.has_keys(stage));
      ++keys;
    };
    const auto bring_values = [&](int tile) {
      const int stage = values % STAGES;
      await(places.read_values(stage), 1 ^ values / STAGES % 2);
      const i64 key = (i64)tile * KEYS;
      fetch<KEYS, D>(places.values + stage * KEY_BYTES + mine, v + key * shape.step_of_v, shape.step_of_v, left(shape.keys, key), packed);
      begun(places.has_values(stage));
      ++values;
    };
    bring_keys(work.count - 1);
    await(places.read_queries(), round);
    fetch<ROWS, D>(places.queries + mine, x.q + (work.first + row) * shape.step_of_q + chunk * 8, shape.step_of_q,
                left(shape.queries, work.first), packed);
    begun(places.has_queries());
    round ^= 1;
    for (int tile = work.count - 2; tile >= 0; --tile) {
      bring_keys(tile);
      bring_values(tile + 1);
    }
    if (threadIdx.x == 0) items.draw(counter);
    bring_values(0);
  }
}

// Scores of the thread's queries `row` and `row + 8` and of keys from `key` on that do not count become -INF.
__device__ __forceinline__ void bounded(float (&s)[KEYS / 2], i64 row, i64 key, i64 keys) {
  const int left = (int)(keys - key < KEYS ? keys - key : KEYS), ahead = (int)(row - key < KEYS ? row - key : KEYS);
#pragma unroll
  for (int i = 0; i < KEYS / 2; ++i) {
    const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (column >= left || (CAUSAL && column > ahead + i / 2 % 2 * 8)) s[i] = -INF;
  }
}

// Scores become weights, which are powers of 2; `shrunk` is what sums before are to be multiplied by.
__device__ __forceinline__ void weigh(float (&s)[KEYS / 2], float (&top)[2], float (&total)[2], float (&shrunk)[2], float unit) {
  float best[2] = {top[0], top[1]}, base[2];
#pragma unroll
  for (int i = 0; i < KEYS / 2; ++i) best[i / 2 % 2] = fmaxf(best[i / 2 % 2], s[i]);
#pragma unroll
  for (int u = 0; u < 2; ++u) {  // the four lanes that hold a row
    best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 1));
    best[u] = fmaxf(best[u], __shfl_xor_sync(~0u, best[u], 2));
    base[u] = best[u] == -INF ? 0 : best[u] * unit;
    shrunk[u] = power_of_two(__fmaf_rn(top[u], unit, -base[u]));
    total[u] *= shrunk[u];
    top[u] = best[u];
  }
#pragma unroll
  for (int i = 0; i < KEYS / 2; ++i) {
    s[i] = power_of_two(__fmaf_rn(s[i], unit, -base[i / 2 % 2]));
    total[i / 2 % 2] += s[i];
  }
}

__device__ __forceinline__ void begin_scores(float (&s)[KEYS / 2], Tile queries, Tile keys) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d)
    begin_product(X{}, s, moved(queries, d / 4 * ROWS * 128 + d % 4 * 32), moved(keys, d / 4 * KEYS * 128 + d % 4 * 32), d > 0);
  end_products();
}

__device__ __forceinline__ void begin_sums(float (&sums)[D / 2], const u32 (&weights)[KEYS / 16][4], Tile values) {
#pragma unroll
  for (int c = 0; c < KEYS / 16; ++c) begin_product_turned(X{}, sums, weights[c], moved(values, c * 2048));
  end_products();
}

__device__ __forceinline__ void round_weights(u32 (&weights)[KEYS / 16][4], const float (&s)[KEYS / 2]) {
#pragma unroll
  for (int i = 0; i < KEYS / 4; ++i) weights[i / 4][i % 4] = pair_of(X{}, s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void store(X* out, float* logarithms, const Shape& shape, i64 row, const float (&sums)[D / 2],
                                      const float (&top)[2], const float (&total)[2], float unit) {
  const int t = threadIdx.x % 4;
  const bool paired = ((u64)out | shape.step_of_out * sizeof(X)) % 4 == 0;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    float all = total[u];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    const i64 at = row + u * 8;
    const float share = all == 0 ? 0 : 1 / all;
    if (at >= shape.queries) continue;
    if (t == 0) logarithms[at] = all == 0 ? -INF : (top[u] * unit + log2f(all)) * 0.6931471805599453f;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      X* const target = out + at * shape.step_of_out + n * 8 + 2 * t;
      const u32 both = pair_of(X{}, sums[4 * n + 2 * u] * share, sums[4 * n + 2 * u + 1] * share);
      if (paired) *(u32*)target = both;
      else { target[0] = X{(u16)both}; target[1] = X{(u16)(both >> 16)}; }
    }
  }
}

template<class Locate> __device__ __forceinline__ void compute(const Places& places, const Shape& shape, float* logarithms,
                                                               float scale, Locate locate) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const Tile queries = tile_at(places.queries + group * 8192, ROWS * 128);
  const float unit = 1.4426950408889634f * scale;
  const auto read = [&](Shared barrier) {  // by this warp
    __syncwarp();
    if (lane == 0) arrive(barrier);
  };
  int keys = 0, values = 0;  // tiles that have been used
  u32 round = 0;  // of the queries
  if (GROUPS > 1 && group == GROUPS - 1) give_turn<256>(1);
  for (Items items(places, shape); items.number < items.count; items.advance()) {
    const Work work(shape, items.number);
    const i64 row = work.first + group * 64 + threadIdx.x / 32 % 4 * 16;  // the warp's first query
    float s[KEYS / 2], sums[D / 2], top[2] = {-INF, -INF}, total[2] = {0, 0}, shrunk[2];
    u32 weights[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sums[i] = 0;
    const auto bound = [&](int tile) {
      const i64 key = (i64)tile * KEYS;
      if (key + KEYS > shape.keys || (CAUSAL && key + KEYS - 1 > row)) bounded(s, row + lane / 4, key, shape.keys);
    };
    const auto keys_tile = [&]() { return tile_at(places.keys + keys % STAGES * KEY_BYTES, KEYS * 128); };
    const auto values_tile = [&]() { return tile_at(places.values + values % STAGES * KEY_BYTES, KEYS * 128); };

    await(places.has_queries(), round);
    round ^= 1;
    await(places.has_keys(keys % STAGES), keys / STAGES % 2);
    fence_writes();
    fence_registers();
    begin_scores(s, queries, keys_tile());
    await_products<0>();
    hold(s);
    read(places.read_keys(keys++ % STAGES));
    bound(work.count - 1);
    weigh(s, top, total, shrunk, unit);
    round_weights(weights, s);
    for (int tile = work.count - 2; tile >= 0; --tile) {
      await(places.has_keys(keys % STAGES), keys / STAGES % 2);
      fence_writes();
      if (GROUPS > 1) await_turn<256>(1 + group);
      hold(s);
      hold(sums);
      hold(weights);
      fence_registers();
      begin_scores(s, queries, keys_tile());
      await(places.has_values(values % STAGES), values / STAGES % 2);
      fence_writes();
      begin_sums(sums, weights, values_tile());
      if (GROUPS > 1) give_turn<256>(1 + (group + 1) % GROUPS);
      await_products<1>();
      hold(s);
      read(places.read_keys(keys++ % STAGES));
      bound(tile);
      weigh(s, top, total, shrunk, unit);
      settle(total[0] + total[1], places.barriers);  // weights are computed while products of those before run
      await_products<0>();
      hold(sums);
      hold(weights);
      read(places.read_values(values++ % STAGES));
#pragma unroll
      for (int i = 0; i < D / 2; ++i) sums[i] *= shrunk[i / 2 % 2];
      round_weights(weights, s);
    }
    read(places.read_queries());
    await(places.has_values(values % STAGES), values / STAGES % 2);
    fence_writes();
    hold(sums);
    hold(weights);
    fence_registers();
    begin_sums(sums, weights, values_tile());
    await_products<0>();
    hold(sums);
    read(places.read_values(values++ % STAGES));
    store(locate(work.sample).out, logarithms + (i64)work.sample * shape.queries, shape, row + lane / 4, sums, top, total, unit);
  }
  if (GROUPS > 1 && group == 0) await_turn<256>(1);  // the last turn given
}

template<class Locate> __device__ __forceinline__ void attend(const Shape& shape, float* logarithms, float scale,
                                                              u32* counter, Locate locate) {
  alignas(8) __shared__ u64 barriers[14];
  __shared__ u32 items[2];
  const Shared start = shared_address(room), keys = start + QUERY_BYTES;
  const Places places = {start, keys, keys + STAGES * KEY_BYTES, shared_address(barriers), items};
  if (threadIdx.x == 0) {
    make_barrier(places.has_queries(), 128);
    make_barrier(places.read_queries(), 4 * GROUPS);
    for (int stage = 0; stage < STAGES; ++stage) {
      make_barrier(places.has_keys(stage), 128);
      make_barrier(places.read_keys(stage), 4 * GROUPS);
      make_barrier(places.has_values(stage), 128);
      make_barrier(places.read_values(stage), 4 * GROUPS);
      make_barrier(places.has_item(stage), 1);
      make_barrier(places.read_item(stage), 4 * GROUPS + 4);
    }
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<BRINGING>();
    bring_tiles(places, shape, counter, locate);
  } else {
    more_registers<COMPUTING>();
    compute(places, shape, logarithms, scale, locate);
  }
}
