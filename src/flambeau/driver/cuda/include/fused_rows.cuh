// A reduction of a row by D threads in the order of the reduction template (codegen/reduction.py). After vector_access.cuh.

// The reduction of row x of the block; y is the thread of the row. `load` reads elements of inputs, `value` computes one
// element from them. All threads of the row get the result.
template<class R, int W, int D, int V, class L, class F>
__device__ __forceinline__ typename R::Out reduce_row(bool exists, bool aligned, i64 n, int x, int y, const L& load, const F& value) {
  typedef typename R::State State;
  State s[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) s[u] = R::start();
  if (exists) {
    i64 at = 0;
    if (V > 1 && aligned) {
      i64 v = y;
      const i64 last = n / V;
      for (; v + D < last; v += 2 * D) {
        const auto e = load(Size<V>{}, v * V), f = load(Size<V>{}, (v + D) * V);
#pragma unroll
        for (int j = 0; j < V; ++j) s[j & 1] = R::join(s[j & 1], R::lift(value(e, j, v * V + j), v * V + j));
#pragma unroll
        for (int j = 0; j < V; ++j)
          s[2 + (j & 1)] = R::join(s[2 + (j & 1)], R::lift(value(f, j, (v + D) * V + j), (v + D) * V + j));
      }
      for (; v < last; v += D) {
        const auto e = load(Size<V>{}, v * V);
#pragma unroll
        for (int j = 0; j < V; ++j) s[j & 3] = R::join(s[j & 3], R::lift(value(e, j, v * V + j), v * V + j));
      }
      at = last * V;
    }
    i64 i = at + y;
    for (; i + 3 * D < n; i += 4 * D) {
      const auto e = load(Size<1>{}, i), f = load(Size<1>{}, i + D), g = load(Size<1>{}, i + 2 * D),
                 h = load(Size<1>{}, i + 3 * D);
      s[0] = R::join(s[0], R::lift(value(e, 0, i), i));
      s[1] = R::join(s[1], R::lift(value(f, 0, i + D), i + D));
      s[2] = R::join(s[2], R::lift(value(g, 0, i + 2 * D), i + 2 * D));
      s[3] = R::join(s[3], R::lift(value(h, 0, i + 3 * D), i + 3 * D));
    }
    for (; i < n; i += D) s[0] = R::join(s[0], R::lift(value(load(Size<1>{}, i), 0, i), i));
  }
  State r = R::join(R::join(s[0], s[1]), R::join(s[2], s[3]));
  if (D > 1) {
    __shared__ State shared[W * D];
    shared[y * W + x] = r;
#pragma unroll
    for (int half = D / 2; half; half /= 2) {
      __syncthreads();
      if (y < half) shared[y * W + x] = r = R::join(r, shared[(y + half) * W + x]);
    }
    __syncthreads();
    r = shared[x];
  }
  return R::lower(r, n);
}
