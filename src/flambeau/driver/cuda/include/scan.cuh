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
// in one order, whoever comes first, so that the result has the same bits each time. All is zero before. A state of
// up to three words travels with its flag in one access of 16 bytes; a longer one follows it behind a fence.
template<class S> struct Board {
  static const bool small = Slot<S>::N <= 3;
  volatile u32* flags;
  char* states;  // 32 bytes a place
  __device__ __forceinline__ void publish(i64 at, const S& s) const {
    const Slot<S> x(s);
    if constexpr (small) {
      const u32 b = x.N > 1 ? x.w[1 % x.N] : 0, c = x.N > 2 ? x.w[2 % x.N] : 0;
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
                   :: "l"(states + at * 32), "r"(1), "r"(x.w[0]), "r"(b), "r"(c) : "memory");
    } else {
      *(Slot<S>*)(states + at * 32) = x;
      __threadfence();
      flags[at] = 1;
    }
  }
  __device__ __forceinline__ S read(i64 at) const {
    Slot<S> x;
    if constexpr (small) {
      u32 flag, w[3];
      do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(flag), "=r"(w[0]), "=r"(w[1]), "=r"(w[2]) : "l"(states + at * 32) : "memory");
      } while (flag == 0);
#pragma unroll
      for (int i = 0; i < x.N; ++i) x.w[i] = w[i];
    } else {
      while (flags[at] == 0) {}
      __threadfence();
#pragma unroll
      for (int i = 0; i < x.N; ++i) x.w[i] = __ldcg((u32*)(states + at * 32) + i);
    }
    return x.state();
  }
  // The states of places at, at + 1, ... (count of them, at most 32), joined; by a whole warp.
  template<class J> __device__ __forceinline__ S joined(i64 at, int count, int lane, J join) const {
    S s = read(at + (lane < count ? lane : 0));
    return from_lane<32>(over_lanes<32>(s, lane, join), count - 1);
  }
};
// By the whole block: publish the state `own` of tile t of a row whose places in the board begin at `at`; true if
// tiles stand before it, whose states joined are then `before`. Three warps look at the three levels at once.
template<class S, class J>
__device__ __forceinline__ bool look_back(const Board<S>& board, i64 at, i64 t, i64 tiles, const S& own, S& before, J join) {
  __shared__ Slot<S> near_, group_, middle_, far_;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 ones = at, groups = ones + tiles, supers = groups + tiles / 32;
  const int in_group = t % 32, in_super = t / 32 % 32;
  if (warp == 0) {
    if (lane == 0) board.publish(ones + t, own);
    S near = own;
    if (in_group) near = board.joined(ones + t - in_group, in_group, lane, join);
    const S group = in_group ? join(near, own) : own;
    if (lane == 0) {
      if (in_group == 31) board.publish(groups + t / 32, group);
      near_ = Slot<S>(near);
      group_ = Slot<S>(group);
    }
  } else if (warp == 1 && in_super) {
    const S middle = board.joined(groups + t / 1024 * 32, in_super, lane, join);
    if (lane == 0) middle_ = Slot<S>(middle);
  } else if (warp == 2 && t >= 1024) {
    S far = own;
    for (i64 s = 0; s < t / 1024; s += 32) {
      const i64 left = t / 1024 - s;
      const S next = board.joined(supers + s, left < 32 ? left : 32, lane, join);
      far = s ? join(far, next) : next;
    }
    if (lane == 0) far_ = Slot<S>(far);
  }
  __syncthreads();
  if (t % 1024 == 1023 && threadIdx.x == 0) board.publish(supers + t / 1024, join(middle_.state(), group_.state()));
  bool any = t >= 1024;
  if (any) before = far_.state();
  if (in_super) { before = any ? join(before, middle_.state()) : middle_.state(); any = true; }
  if (in_group) { before = any ? join(before, near_.state()) : near_.state(); any = true; }
  return any;
}
