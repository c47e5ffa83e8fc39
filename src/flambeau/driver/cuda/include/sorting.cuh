// Order-preserving keys, the radix sort's kernels, and the sort of short rows in shared memory.
// K is the type of a raw key, order(K) its order; D digits of 8 bits; see driver/cuda/index/sorting.py.

// -- order: NaN is the largest, -0 equals 0 --------------------------------------------------------------------

template<class U, u32 bits> struct RankedBits {
  static __device__ __forceinline__ U sign() { return U(1) << (bits - 1); }
  static __device__ __forceinline__ U all() { return U(~U(0)) >> (sizeof(U) * 8 - bits); }
  static __device__ __forceinline__ U signed_(U raw) { return raw ^ sign(); }
  static __device__ __forceinline__ U floating(U raw, U largest) {  // `largest`: the bits of the largest magnitude
    const U size = raw & (sign() - 1);
    if (size > largest) return all();
    return raw & sign() ? (size ? ~raw & all() : sign()) : raw | sign();
  }
};
template<class E, class K> __device__ __forceinline__ K rank_of(K raw) {
  typedef RankedBits<K, sizeof(E) * 8> R;
  if constexpr (same<E, float>) return R::floating(raw, (K)0x7f800000u);
  else if constexpr (same<E, double>) return R::floating(raw, (K)0x7ff0000000000000ull);
  else if constexpr (same<E, half>) return R::floating(raw, (K)0x7c00u);
  else if constexpr (same<E, bf16>) return R::floating(raw, (K)0x7f80u);
  else if constexpr (same<E, e4m3>) return R::floating(raw, (K)0x7eu);
  else if constexpr (same<E, e5m2>) return R::floating(raw, (K)0x7cu);
  else if constexpr (is_bool<E>) return raw != 0;
  else if constexpr (is_signed<E>) return R::signed_(raw);
  else return raw;
}
template<class E, class K> __device__ __forceinline__ bool is_nan_order(K rank) {
  return (real_float<E> || is_small<E>) && rank == RankedBits<K, sizeof(E) * 8>::all();
}
template<class E, class K, bool descending> __device__ __forceinline__ K order_of(K raw) {
  const K rank = rank_of<E, K>(raw);
  return descending ? ~rank & RankedBits<K, sizeof(E) * 8>::all() : rank;
}

template<class K, class E> __device__ __forceinline__ K raw_of(E v) {
  if constexpr (same<E, float>) return __float_as_uint(v);
  else if constexpr (same<E, double>) return (K)__double_as_longlong(v);
  else if constexpr (is_small<E>) return v.bits;
  else if constexpr (sizeof(E) == 1) return (u8)v;
  else if constexpr (sizeof(E) == 2) return (u16)v;
  else if constexpr (sizeof(E) == 4) return (u32)v;
  else return (K)v;
}
// Whether two raw values are unequal, as numbers: NaN is unequal to itself.
template<class E, class K> __device__ __forceinline__ bool unequal(K a, K b) {
  const K rank = rank_of<E, K>(a);
  return rank != rank_of<E, K>(b) || is_nan_order<E>(rank);
}

// -- radix sort ------------------------------------------------------------------------------------------------
// Least significant digit first, one sweep per digit: a block takes a tile, ranks its keys by digit, learns by
// looking back what the tiles before it hold of each digit, and moves its keys in runs.

template<int D> struct Digits { i64 length; i32 shift[D]; i32 by_row[D]; };
struct Digit { i64 length; i32 shift; i32 by_row; };

__device__ __forceinline__ u32 row_digit(u32 value, i64 length, int shift) { return value / (u32)length >> shift & 255; }

template<class K, int D, class Order> __device__ void count_digits(const K* keys, u32* counts, const Digits<D>& digits, i64 n, Order order) {
  const int COPIES = D > 4 ? 2 : 4, AT_ONCE = 4;  // lanes that add to one counter wait for each other: each has copies
  __shared__ u32 found[D * 256 * COPIES];
  for (int i = threadIdx.x; i < D * 256 * COPIES; i += blockDim.x) found[i] = 0;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  u32* const mine = found + lane % COPIES;
  for (i64 start = blockIdx.x * (i64)blockDim.x * AT_ONCE; start < n; start += (i64)gridDim.x * blockDim.x * AT_ONCE) {
    K ranks[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const i64 i = start + j * blockDim.x + threadIdx.x;
      ranks[j] = i < n ? order(keys[i]) : K(0);
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const i64 i = start + j * blockDim.x + threadIdx.x;
      const bool here = i < n;
      const u32 all = __ballot_sync(~0u, here);
#pragma unroll
      for (int d = 0; d < D; ++d) {
        const u32 digit = digits.by_row[d] ? row_digit((u32)i, digits.length, digits.shift[d]) : (u32)(ranks[j] >> digits.shift[d]) & 255;
        const u32 leading = __shfl_sync(~0u, digit, 0);  // by every lane, before what lanes decide for themselves
        if (__all_sync(~0u, !here || digit == leading)) {  // one addition where a warp agrees
          if (lane == 0 && here) atomicAdd(mine + (d * 256 + digit) * COPIES, (u32)__popc(all));
        } else if (here) atomicAdd(mine + (d * 256 + digit) * COPIES, 1u);
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < D * 256; i += blockDim.x) {
    u32 sum = 0;
    for (int c = 0; c < COPIES; ++c) sum += found[i * COPIES + c];
    if (sum) atomicAdd(counts + i, sum);
  }
}

__device__ __forceinline__ u32 sum_before(u32 x, u32* warps) {  // exclusive scan over the block's first 256 threads
  u32 sum = x;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) { const u32 other = __shfl_up_sync(~0u, sum, step); if (lane >= step) sum += other; }
  if (lane == 31 && warp < 8) warps[warp] = sum;
  __syncthreads();
  u32 before = 0;
  for (int w = 0; w < warp && w < 8; ++w) before += warps[w];
  __syncthreads();
  return before + sum - x;
}

// What the pass of a digit does: from buffers 0 or 1, whether the places are still those of the source.
struct Move { u8 skipped, source, first, unused[5]; };

// Counts of each digit become where its keys begin; each digit learns what the passes before it did.
__device__ void plan_moves(u32* counts, Move* moves, i64 digits, i64 n) {
  __shared__ u32 sums[8];
  __shared__ bool alike;
  Move move = {0, 0, 1};
  for (i64 d = 0; d < digits; ++d) {
    u32* mine = counts + d * 256 + threadIdx.x;
    const u32 count = *mine;
    if (threadIdx.x == 0) alike = false;
    __syncthreads();
    if (count == n) alike = true;
    *mine = sum_before(count, sums);
    move.skipped = alike;
    if (threadIdx.x == 0) moves[d] = move;
    if (!alike) { move.source ^= 1; move.first = 0; }
    __syncthreads();
  }
  if (threadIdx.x == 0) moves[digits] = move;
}

const int SWEEPERS = 512, SWEEP_WARPS = SWEEPERS / 32;

template<class K, class S, int ITEMS, bool PLACES, class Order>
__device__ void sweep(const K* keys, const u32* values, K* keys_out, u32* values_out, const u32* bases, S* status, u32* counter,
                      Digit how, i64 first, i64 n, Order order) {
  const int TILE = SWEEPERS * ITEMS;
  const S COUNTED = S(1) << (sizeof(S) * 8 - 2), SUMMED = S(2) << (sizeof(S) * 8 - 2), VALUE = COUNTED - 1;
  __shared__ union { u32 warps[SWEEP_WARPS][256]; K keys[TILE]; u32 values[TILE]; } shared;
  __shared__ u8 digits[TILE];
  __shared__ u32 starts[256], moved[256], sums[8], tile_;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  if (t == 0) tile_ = atomicAdd(counter, 1u);
  for (int i = t; i < SWEEP_WARPS * 256; i += SWEEPERS) (&shared.warps[0][0])[i] = 0;
  __syncthreads();
  const u32 tile = tile_;
  const i64 start = (i64)tile * TILE;
  const int here = n - start < TILE ? (int)(n - start) : TILE;
  K mine[ITEMS];
  u32 place[ITEMS];  // rank within the warp's digit, with the digit in the high byte; later the place in the tile
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int at = warp * 32 * ITEMS + j * 32 + lane;
    mine[j] = at < here ? keys[start + at] : K(0);
  }
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int at = warp * 32 * ITEMS + j * 32 + lane;
    u32 digit = 255;
    if (at < here) {
      if (how.by_row) digit = row_digit(first ? (u32)(start + at) : values[start + at], how.length, how.shift);
      else digit = (u32)(order(mine[j]) >> how.shift) & 255;
    }
    u32 alike = ~0u;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const u32 set = __ballot_sync(~0u, digit >> b & 1);
      alike &= digit >> b & 1 ? set : ~set;
    }
    const u32 before = __popc(alike & ((1u << lane) - 1));
    const u32 seen = shared.warps[warp][digit];
    __syncwarp();
    if (before == 0) shared.warps[warp][digit] = seen + __popc(alike);
    __syncwarp();
    place[j] = digit << 24 | (seen + before);
  }
  __syncthreads();
  u32 count = 0;
  if (t < 256) {
#pragma unroll
    for (int w = 0; w < SWEEP_WARPS; ++w) { const u32 c = shared.warps[w][t]; shared.warps[w][t] = count; count += c; }
  }
  const u32 all = count;
  if (t == 255) count -= TILE - here;  // what only fills the last tile up
  volatile S* mark = status + (i64)tile * 256 + t;
  if (t < 256) *mark = tile == 0 ? SUMMED | count : COUNTED | count;
  const u32 begin = sum_before(t < 256 ? all : 0, sums);
  if (t < 256) {
    starts[t] = begin;
    S before = 0;
    for (i64 k = (i64)tile - 1; k >= 0; --k) {
      volatile S* other = status + k * 256 + t;
      S found = *other;
      while (!(found >> (sizeof(S) * 8 - 2))) found = *other;
      before += found & VALUE;
      if (found & SUMMED) break;
    }
    if (tile) *mark = SUMMED | (before + count);
    moved[t] = bases[t] + (u32)before - begin;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const u32 digit = place[j] >> 24;
    const u32 at = starts[digit] + shared.warps[warp][digit] + (place[j] & 0xffffff);
    place[j] = at;
    digits[at] = (u8)digit;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) shared.keys[place[j]] = mine[j];
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int at = j * SWEEPERS + t;
    if (at < here) keys_out[moved[digits[at]] + at] = shared.keys[at];
  }
  if constexpr (!PLACES) return;
  u32 carried[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int at = warp * 32 * ITEMS + j * 32 + lane;
    carried[j] = at >= here ? 0 : first ? (u32)(start + at) : values[start + at];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) shared.values[place[j]] = carried[j];
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int at = j * SWEEPERS + t;
    if (at < here) values_out[moved[digits[at]] + at] = shared.values[at];
  }
}

// -- short rows: a bitonic sort in shared memory of (order, place), which no two elements share ---------------------

struct Wide { u64 key; u32 at; };
template<class K> struct Item;
template<> struct Item<u32> { typedef u64 type; };
template<> struct Item<u64> { typedef Wide type; };
__device__ __forceinline__ bool after(u64 a, u64 b) { return a > b; }
__device__ __forceinline__ bool after(Wide a, Wide b) { return a.key > b.key || (a.key == b.key && a.at > b.at); }
__device__ __forceinline__ u64 item(u32 key, u32 at) { return (u64)key << 32 | at; }
__device__ __forceinline__ Wide item(u64 key, u32 at) { return {key, at}; }
__device__ __forceinline__ u32 place_of(u64 x) { return (u32)x; }
__device__ __forceinline__ u32 place_of(Wide x) { return x.at; }

__device__ __forceinline__ u64 exchanged(u64 x, int lanes) { return __shfl_xor_sync(~0u, x, lanes); }
__device__ __forceinline__ Wide exchanged(Wide x, int lanes) {
  return {__shfl_xor_sync(~0u, x.key, lanes), __shfl_xor_sync(~0u, x.at, lanes)};
}
const int HELD = 8;  // consecutive items of a thread, in registers
__device__ __forceinline__ int spread(int i) { return i + i / HELD; }  // keeps threads' items in different banks

template<class T> __device__ __forceinline__ void arrange(T& a, T& b, bool up) {
  if (after(a, b) == up) { const T c = a; a = b; b = c; }
}
// Bitonic sort of rows of `padded` items, of which each thread holds HELD: short steps within a thread, longer ones
// within a warp, the longest through `shared`.
template<class T> __device__ void sort_rows(T (&mine)[HELD], T* shared, int padded) {
  const int base = threadIdx.x * HELD;
#pragma unroll
  for (int size = 2; size < HELD; size *= 2)
#pragma unroll
    for (int step = size / 2; step; step /= 2)
#pragma unroll
      for (int j = 0; j < HELD; ++j)
        if (!(j & step)) arrange(mine[j], mine[j + step], (j & size) == 0);
  for (int size = HELD; size <= padded; size *= 2) {
    const bool up = (base & size & (padded - 1)) == 0;
    for (int step = size / 2; step >= HELD; step /= 2) {
      const bool smaller = ((base & step) == 0) == up;
      T other[HELD];
      if (step < 32 * HELD) {
#pragma unroll
        for (int j = 0; j < HELD; ++j) other[j] = exchanged(mine[j], step / HELD);
      } else {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < HELD; ++j) shared[spread(base + j)] = mine[j];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < HELD; ++j) other[j] = shared[spread((base ^ step) + j)];
      }
#pragma unroll
      for (int j = 0; j < HELD; ++j)
        if (after(mine[j], other[j]) == smaller) mine[j] = other[j];
    }
#pragma unroll
    for (int step = HELD / 2; step; step /= 2)
#pragma unroll
      for (int j = 0; j < HELD; ++j)
        if (!(j & step)) arrange(mine[j], mine[j + step], up);
  }
}

// -- the least items of a row, in order ------------------------------------------------------------------------------
// A block reads part after part of a row into registers. Each thread has a least item; the `kept`-th of these bounds
// what is wanted, and only the threads whose least item is within the bound have any of it: `kept` of them at most.

const int CHOOSERS = 256, POOL = CHOOSERS * HELD;
__device__ __forceinline__ void unwanted(u64& x) { x = ~0ull; }
__device__ __forceinline__ void unwanted(Wide& x) { x = {~0ull, ~0u}; }

template<class T> struct Choice { T pool[POOL + POOL / HELD], leasts[CHOOSERS + CHOOSERS / HELD]; int count; };

// Sorts items in shared memory, HELD to each thread that calls: those of a warp, or of the block. Called, not repeated:
// what the caller holds in registers leaves no room for these.
template<class T> __device__ __noinline__ void sort_shared(T* items, bool by_warp) {
  T mine[HELD];
#pragma unroll
  for (int j = 0; j < HELD; ++j) mine[j] = items[spread(threadIdx.x * HELD + j)];
  sort_rows(mine, items, by_warp ? 32 * HELD : POOL);
  if (!by_warp) __syncthreads();
#pragma unroll
  for (int j = 0; j < HELD; ++j) items[spread(threadIdx.x * HELD + j)] = mine[j];
}

// Sorts the first `size` items of the pool, which has room for more.
template<class T> __device__ __forceinline__ void sort_pool(T* pool, int size) {
  const bool few = size <= 32 * HELD;
  for (int at = size + threadIdx.x; at < (few ? 32 * HELD : POOL); at += CHOOSERS) unwanted(pool[spread(at)]);
  __syncthreads();
  if (!few || threadIdx.x < 32) sort_shared(pool, few);
  __syncthreads();
}

// The `kept` least items of those from `start` to before `end`, to the pool; returns how many there are.
// visit(at, f): calls f with this thread's ITEMS of the part that begins at `at`, unwanted ones beyond the end. Few
// threads have items within the bound: they read them again, so that none are held while the least ones are sorted.
template<int ITEMS, class T, class Visit>
__device__ __forceinline__ int choose(Choice<T>& choice, int kept, i64 start, i64 end, const Visit& visit) {
  const int t = threadIdx.x;
  int have = 0;
  for (; start < end; start += CHOOSERS * ITEMS) {
    T none, least, bound;
    unwanted(none);
    least = bound = none;
    visit(start, [&](T x) { if (after(least, x)) least = x; });
    if (have == kept) bound = choice.pool[spread(kept - 1)];
    if (!__syncthreads_or(after(bound, least))) continue;
    choice.leasts[spread(t)] = least;
    if (t == 0) choice.count = 0;
    __syncthreads();
    if (t < 32) sort_shared(choice.leasts, true);
    __syncthreads();
    if (after(bound, choice.leasts[spread(kept - 1)])) bound = choice.leasts[spread(kept - 1)];
    if (!after(least, bound) && after(none, least)) {
      visit(start, [&](T x) {
        if (after(x, bound) || !after(none, x)) return;
        const int at = have + atomicAdd(&choice.count, 1);
        if (at < POOL) choice.pool[spread(at)] = x;  // always, but if another stream writes to the row
      });
    }
    __syncthreads();
    const int all = min(have + choice.count, POOL);
    sort_pool(choice.pool, all);
    have = all < kept ? all : kept;
  }
  return have;
}

// -- the element of a rank in a row ----------------------------------------------------------------------------------
// Radix selection by a block of at least 256 threads: digit after digit, from the highest, it counts by their next digit
// those elements whose order begins with the digits found so far.

__device__ __forceinline__ u32 key_of(u64 x) { return (u32)(x >> 32); }
__device__ __forceinline__ u64 key_of(Wide x) { return x.key; }

// How many of the `length` elements of a sorted row come before NaN. order_at(i): the order of element i.
template<class E, class Order> __device__ __forceinline__ i64 count_numbers(i64 length, const Order& order_at) {
  if constexpr (!(real_float<E> || is_small<E>)) return length;
  i64 numbers = 0, beyond = length;
  while (numbers < beyond) {
    const i64 middle = (numbers + beyond) / 2;
    if (is_nan_order<E>(order_at(middle))) beyond = middle; else numbers = middle + 1;
  }
  return numbers;
}

struct Ranking { u32 counts[256], sums[8], digit, before, count, nans; i64 place; };

// The place of the element with `rank` in the order of the row, equal elements in the order of their places.
// order(i): the order of element i, of BITS bits.
template<class K, int BITS, class Order>
__device__ i64 place_of_rank(Ranking& shared, i64 length, i64 rank, const Order& order) {
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  K found = 0, known = 0;  // the digits found, and a mask of them
  u32 left = (u32)rank, equal = 0;
  for (int shift = (BITS - 1) / 8 * 8; shift >= 0 && equal != 1; shift -= 8) {
    if (t < 256) shared.counts[t] = 0;
    __syncthreads();
    for (i64 i = t; i < length; i += blockDim.x) {
      const K key = order(i);
      if ((key & known) == found) atomicAdd(shared.counts + ((u32)(key >> shift) & 255), 1u);
    }
    __syncthreads();
    const u32 count = t < 256 ? shared.counts[t] : 0, before = sum_before(count, shared.sums);
    if (before <= left && left - before < count) { shared.digit = t; shared.before = before; shared.count = count; }
    __syncthreads();
    found |= K(shared.digit) << shift;
    known |= K(255) << shift;
    left -= shared.before;
    equal = shared.count;
  }
  for (i64 start = 0;; start += blockDim.x) {
    const i64 i = start + t;
    const bool here = i < length && (order(i) & known) == found;
    const u32 all = __syncthreads_count(here);
    if (left >= all && start + blockDim.x < length) { left -= all; continue; }
    const u32 lanes = __ballot_sync(~0u, here);
    if (lane == 0) shared.counts[warp] = __popc(lanes);
    __syncthreads();
    u32 before = __popc(lanes & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) before += shared.counts[w];
    if (here && before == left) shared.place = i;
    __syncthreads();
    return shared.place;
  }
}

// -- search ----------------------------------------------------------------------------------------------------

template<class A> __device__ __forceinline__ bool sorts_before(A a, A b) {  // NaN after every number
  if constexpr (real_float<A>) return a < b || (b != b && a == a);
  else return a < b;
}
