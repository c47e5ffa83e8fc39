// The taps of grid_sample: which elements a place of the grid reads, with which weights, and how these change with the
// place. Each is the arithmetic of the host bodies (ops/nn/sampling.py), step for step. Spatial dims are the last D of three.

enum { ZEROS, BORDER, REFLECTION };

template<class F, bool align> __device__ __forceinline__ F unscaled(F at, i32 n) {
  return align ? (at + 1) / F(2) * F(n - 1) : ((at + 1) * F(n) - 1) / F(2);
}
template<class F, bool align> __device__ __forceinline__ F reflected(F at, i32 n) {
  const F low = align ? F(0) : F(-0.5), span = align ? F(n - 1) : F(n);
  if (span == 0) return 0;
  const F away = fabs(at - low), turns = floor(away / span), extra = fmod_(away, span);
  return fmod_(turns, F(2)) == 0 ? extra + low : span - extra + low;
}
template<class F, int padding, bool align> __device__ __forceinline__ F padded_place(F at, i32 n) {
  if constexpr (padding == ZEROS) return at;
  if constexpr (padding == REFLECTION) at = reflected<F, align>(at, n);
  if (at != at) return 0;
  return at < 0 ? F(0) : at > F(n - 1) ? F(n - 1) : at;
}
// The derivative of padded_place: 0 where it is held at an end, -1 where it runs backwards.
template<class F, int padding, bool align> __device__ __forceinline__ F padded_turn(F at, i32 n) {
  F turn = 1;
  if constexpr (padding == ZEROS) return turn;
  if constexpr (padding == REFLECTION) {
    const F low = align ? F(0) : F(-0.5), span = align ? F(n - 1) : F(n);
    if (span == 0) return 0;
    const F away = at - low;
    if ((away < 0) != (fmod_(floor(fabs(away) / span), F(2)) != 0)) turn = -1;
    at = reflected<F, align>(at, n);
  }
  return at > 0 && at < F(n - 1) ? turn : F(0);
}

// K taps: each one's offset in a channel's plane (-1 outside), its weight, its weight's slopes by the place.
template<class F, int K> struct Taps {
  i64 at[K];
  F weight[K], slope[K][3];
};
template<class F, int D> __device__ __forceinline__ i64 offset_of(const F (&place)[3], const Lattice& w, const View& x) {
  i64 at = 0;
#pragma unroll
  for (int d = 3 - D; d < 3; ++d) {
    if (!(place[d] >= 0 && place[d] <= F(w.size[d] - 1))) return -1;
    at += (i64)place[d] * x.step[2 + d];
  }
  return at;
}

template<class F, int D, int padding, bool align>
__device__ __forceinline__ void find_taps(const F (&place)[3], const Lattice& w, const View& x, Taps<F, 1>& taps) {
  F at[3];
#pragma unroll
  for (int d = 3 - D; d < 3; ++d) {
    at[d] = rint(padded_place<F, padding, align>(place[d], w.size[d]));
    taps.slope[0][d] = 0;
  }
  taps.at[0] = offset_of<F, D>(at, w, x);
  taps.weight[0] = 1;
}

template<class F, int D, int padding, bool align, int K>
__device__ __forceinline__ void find_corners(const F (&place)[3], const Lattice& w, const View& x, Taps<F, K>& taps) {
  F at[3], low[3];
#pragma unroll
  for (int d = 3 - D; d < 3; ++d) {
    at[d] = padded_place<F, padding, align>(place[d], w.size[d]);
    low[d] = floor(at[d]);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    F corner[3], part[3];
#pragma unroll
    for (int d = 3 - D; d < 3; ++d) {
      const bool up = k >> (2 - d) & 1;
      corner[d] = low[d] + (up ? 1 : 0);
      part[d] = up ? at[d] - low[d] : low[d] + 1 - at[d];
    }
    F weight = 1;
#pragma unroll
    for (int d = 3 - D; d < 3; ++d) {
      weight = weight * part[d];
      F slope = k >> (2 - d) & 1 ? F(1) : F(-1);
#pragma unroll
      for (int e = 3 - D; e < 3; ++e) if (e != d) slope = slope * part[e];
      taps.slope[k][d] = slope;
    }
    taps.at[k] = offset_of<F, D>(corner, w, x);
    taps.weight[k] = weight;
  }
}
template<class F, int D, int padding, bool align>
__device__ __forceinline__ void find_taps(const F (&place)[3], const Lattice& w, const View& x, Taps<F, 4>& taps) {
  find_corners<F, D, padding, align>(place, w, x, taps);
}
template<class F, int D, int padding, bool align>
__device__ __forceinline__ void find_taps(const F (&place)[3], const Lattice& w, const View& x, Taps<F, 8>& taps) {
  find_corners<F, D, padding, align>(place, w, x, taps);
}

template<class F, int D, int padding, bool align>  // bicubic, of two dims: its taps are padded one by one
__device__ __forceinline__ void find_taps(const F (&place)[3], const Lattice& w, const View& x, Taps<F, 16>& taps) {
  const F y = floor(place[1]), v = floor(place[2]);
  F wy[4], wx[4], sy[4], sx[4];
  cubic_weights(place[1] - y, wy); cubic_weights(place[2] - v, wx);
  cubic_slopes(place[1] - y, sy); cubic_slopes(place[2] - v, sx);
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int i = k / 4, j = k % 4;
    const F tap[3] = {0, padded_place<F, padding, align>(y + (i - 1), w.size[1]),
                      padded_place<F, padding, align>(v + (j - 1), w.size[2])};
    taps.at[k] = offset_of<F, D>(tap, w, x);
    taps.weight[k] = wy[i] * wx[j];
    taps.slope[k][1] = sy[i] * wx[j];
    taps.slope[k][2] = wy[i] * sx[j];
  }
}

// Where place o of the grid points. Its last dim begins with the last spatial one.
template<class F, int D, bool align, class E, class I>
__device__ __forceinline__ void find_place(const E* grid, const View& g, const Place<I>& o, const Lattice& w, F (&place)[3]) {
  grid += o.plane * g.step[0] + g.at(o.at[0], o.at[1], o.at[2]);
#pragma unroll
  for (int d = 3 - D; d < 3; ++d) place[d] = unscaled<F, align>((F)widen(grid[(2 - d) * g.step[1]]), w.size[d]);
}
