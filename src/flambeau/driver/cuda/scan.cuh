// What running folds share: states that move between lanes, vectors in and out of memory, and the look-back.

// A state as words, to be shuffled and to be read past the L1 cache.
template<class S> struct alignas(8) Slot {
  static const int N = (sizeof(S) + 3) / 4;
  u32 w[N];
  __device__ __forceinline__ Slot() {}
  __device__ __forceinline__ Slot(const S& s) { w[N - 1] = 0; memcpy(w, &s, sizeof(S)); }
  __device__ __forceinline__ S state() const { S s; memcpy(&s, w, sizeof(S)); return s; }
};
template<int L, class S> __device__ __forceinline__ S from_below(const S& s, int d) {
  Slot<S> x(s);
#pragma unroll
  for (int i = 0; i < x.N; ++i) x.w[i] = __shfl_up_sync(0xffffffff, x.w[i], d, L);
  return x.state();
}
template<int L, class S> __device__ __forceinline__ S from_lane(const S& s, int lane) {
  Slot<S> x(s);
#pragma unroll
  for (int i = 0; i < x.N; ++i) x.w[i] = __shfl_sync(0xffffffff, x.w[i], lane, L);
  return x.state();
}
// Of each lane of L the states of the lanes up to it, joined.
template<int L, class S, class J> __device__ __forceinline__ S over_lanes(S s, int lane, J join) {
#pragma unroll
  for (int d = 1; d < L; d *= 2) {
    const S o = from_below<L>(s, d);
    if (lane >= d) s = join(o, s);
  }
  return s;
}

// V elements from place j of a row of n, of which those beyond the end repeat the last one.
template<int V, class X> __device__ __forceinline__ void fetch(const X* row, i64 j, i64 n, i64 step, Vector<X, V>& x) {
  if (step == 1 && j + V <= n && !misaligned<X, V>(row + j)) x = *vectors<V>(row + j);
  else
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = row[(j + v < n ? j + v : n - 1) * step];
}
template<int V, class O> __device__ __forceinline__ void store(O* row, i64 j, i64 n, i64 step, const O (&x)[V]) {
  constexpr int M = V * sizeof(O) <= 16 ? V : sizeof(O) >= 16 ? 1 : 16 / sizeof(O);
  if (step == 1 && j + V <= n && !misaligned<O, M>(row + j))
#pragma unroll
    for (int v = 0; v < V; v += M) {
      Vector<O, M> y;
#pragma unroll
      for (int m = 0; m < M; ++m) y[m] = x[v + m];
      *vectors<M>(row + j + v) = y;
    }
  else
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (j + v < n) row[(j + v) * step] = x[v];
}

// What tiles tell each other: their own state, that of each 32 tiles, that of each 1024. Every sum of them is taken
// in one order, whoever comes first, so that the result has the same bits each time.
template<class S> struct Board {
  volatile u32* flags;
  Slot<S>* slots;
  __device__ __forceinline__ void publish(i64 at, const S& s) const {
    slots[at] = Slot<S>(s);
    __threadfence();
    flags[at] = 1;
  }
  __device__ __forceinline__ S read(i64 at) const {
    while (flags[at] == 0) {}
    __threadfence();
    Slot<S> x;
#pragma unroll
    for (int i = 0; i < x.N; ++i) x.w[i] = __ldcg(slots[at].w + i);
    return x.state();
  }
  // The states of places at, at + 1, ... (count of them, at most 32), joined; by a whole warp.
  template<class J> __device__ __forceinline__ S joined(i64 at, int count, int lane, J join) const {
    S s = read(at + (lane < count ? lane : 0));
    return from_lane<32>(over_lanes<32>(s, lane, join), count - 1);
  }
};
// By the first warp: publish the state `own` of tile t of a row whose places in the board begin at `at`; true if
// tiles stand before it, whose states joined are then `before`.
template<class S, class J>
__device__ __forceinline__ bool look_back(const Board<S>& board, i64 at, i64 t, i64 tiles, const S& own, S& before, J join) {
  const int lane = threadIdx.x % 32;
  const i64 ones = at, groups = ones + tiles, supers = groups + tiles / 32;
  if (lane == 0) board.publish(ones + t, own);
  const int in_group = t % 32, in_super = t / 32 % 32;
  S near = own, middle = own;
  if (in_group) near = board.joined(ones + t - in_group, in_group, lane, join);
  const S group = in_group ? join(near, own) : own;
  if (in_group == 31 && lane == 0) board.publish(groups + t / 32, group);
  if (in_super) middle = board.joined(groups + t / 1024 * 32, in_super, lane, join);
  if (t % 1024 == 1023 && lane == 0) board.publish(supers + t / 1024, join(middle, group));
  bool any = false;
  for (i64 s = 0; s < t / 1024; s += 32) {
    const i64 left = t / 1024 - s;
    const S far = board.joined(supers + s, left < 32 ? left : 32, lane, join);
    before = any ? join(before, far) : far;
    any = true;
  }
  if (in_super) { before = any ? join(before, middle) : middle; any = true; }
  if (in_group) { before = any ? join(before, near) : near; any = true; }
  return any;
}
