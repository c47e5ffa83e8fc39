// Rows that threads hold in registers, as numbers, read once. Given before: `number`, what makes a C of an element X;
// OPS operands; G threads to a row, each with K vectors of V elements; INNER: a row's threads are neighbours, else they
// stand 32 apart and neighbours belong to neighbouring rows; Around, Along: the layouts of rows and within them.

constexpr int ROWS = INNER ? (G < 128 ? 128 / G : 1) : 32, THREADS = ROWS * G;

struct Row {
  int at;        // this thread among the row's
  i64 n;         // elements; of a row that does not exist none
  Index o[OPS];  // where it begins in each operand
};

__device__ __forceinline__ Row my_row(const Around& around, i64 rows, i64 n) {
  const i64 row = (i64)blockIdx.x * ROWS + (INNER ? threadIdx.x / G : threadIdx.x % 32);
  Row r;
  r.at = INNER ? threadIdx.x % G : threadIdx.x / 32;
  r.n = row < rows ? n : 0;
#pragma unroll
  for (int k = 0; k < OPS; ++k) r.o[k] = 0;
  if (row < rows) around.locate((Index)row, r.o);
  return r;
}

// The k-th vector of this thread begins at element j and at places p; false beyond the row's end.
__device__ __forceinline__ bool reach(const Row& r, const Along& along, int k, Index& j, Index (&p)[OPS]) {
  j = (Index)(k * G + r.at) * V;
  if (j >= r.n) return false;
  along.locate(j, p);
#pragma unroll
  for (int i = 0; i < OPS; ++i) p[i] += r.o[i];
  return true;
}

// V elements at p, `step` apart.
template<class A> __device__ __forceinline__ Vector<A, V> taken(const A* p, Index step) {
  if (V > 1 && step == 1 && !misaligned<A, V>(p)) return *vectors<V>(p);
  Vector<A, V> r;
#pragma unroll
  for (int v = 0; v < V; ++v) r[v] = p[v * step];
  return r;
}
template<class A> __device__ __forceinline__ void put(A* p, Vector<A, V> r) {
  if (V > 1 && !misaligned<A, V>(p)) { *vectors<V>(p) = r; return; }
#pragma unroll
  for (int v = 0; v < V; ++v) p[v] = r[v];
}

__device__ __forceinline__ void hold(C (&held)[K][V], const X* x, const Row& r, const Along& along) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Index j, p[OPS];
    if (!reach(r, along, k, j, p)) continue;
    Vector<X, V> e = taken(x + p[1], 1);
#pragma unroll
    for (int v = 0; v < V; ++v) held[k][v] = number(e[v]);
  }
}

// Of each element two numbers: what is held, and what operand AT has beside it.
struct Two { C x, y; };
template<int AT, class A> __device__ __forceinline__ void hold_beside(Two (&two)[K][V], C (&held)[K][V], const A* q,
                                                                      const Row& r, const Along& along) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Index j, p[OPS];
    if (!reach(r, along, k, j, p)) continue;
    Vector<A, V> e = taken(q + p[AT], along.stride[AT][0]);
#pragma unroll
    for (int v = 0; v < V; ++v) two[k][v] = {held[k][v], to<C>(e[v])};
  }
}

// `lift` of every number that this thread holds, joined, and then over the row's threads. `join` commutes, so that
// all of them have the same bits.
template<class E, class L, class J> __device__ __forceinline__ C over_row(E (&held)[K][V], const Row& r, C s, L lift, J join) {
#pragma unroll
  for (int k = 0; k < K; ++k)
    if ((i64)(k * G + r.at) * V < r.n)
#pragma unroll
      for (int v = 0; v < V; ++v) s = join(s, lift(held[k][v]));
  if constexpr (INNER) {
#pragma unroll
    for (int d = (G < 32 ? G : 32) / 2; d; d /= 2) s = join(s, __shfl_xor_sync(~0u, s, d));
    if constexpr (G > 32) {
      __shared__ C parts[THREADS / 32];
      __syncthreads();  // those of an earlier fold have been read
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
      __syncthreads();
      s = parts[threadIdx.x / G * (G / 32) + threadIdx.x % (G / 32)];
#pragma unroll
      for (int d = G / 64; d; d /= 2) s = join(s, __shfl_xor_sync(~0u, s, d));
    }
  } else if constexpr (G > 1) {
    __shared__ C parts[G][32];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    __syncthreads();
    parts[y][x] = s;
#pragma unroll
    for (int half_ = G / 2; half_; half_ /= 2) {
      __syncthreads();
      if (y < half_) parts[y][x] = s = join(s, parts[y + half_][x]);
    }
    __syncthreads();
    s = parts[0][x];
  }
  return s;
}
