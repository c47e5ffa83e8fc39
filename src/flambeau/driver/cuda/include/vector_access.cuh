// Elements that are read and written as vectors, if their addresses allow it.

template<int N> struct Size { static constexpr int value = N; };

// N elements at p, one after the other.
template<int N, class A> __device__ __forceinline__ Vector<A, N> taken(const A* p) {
  if (N > 1 && !misaligned<A, N>(p)) return *vectors<N>(p);
  Vector<A, N> r;
#pragma unroll
  for (int j = 0; j < N; ++j) r.v[j] = p[j];
  return r;
}
template<int N, class A> __device__ __forceinline__ void put(A* p, Vector<A, N> r) {
  if (N > 1 && !misaligned<A, N>(p)) { *vectors<N>(p) = r; return; }
#pragma unroll
  for (int j = 0; j < N; ++j) p[j] = r.v[j];
}

// N elements at p, `step` apart.
template<int N, class A> __device__ __forceinline__ Vector<A, N> apart(const A* p, i64 step) {
  Vector<A, N> r;
#pragma unroll
  for (int j = 0; j < N; ++j) r.v[j] = p[j * step];
  return r;
}
template<int N, class A> __device__ __forceinline__ void spread(A* p, i64 step, Vector<A, N> r) {
#pragma unroll
  for (int j = 0; j < N; ++j) p[j * step] = r.v[j];
}
