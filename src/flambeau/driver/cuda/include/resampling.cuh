// The taps of interpolation along one dim: which elements a place of the result reads, with which weights. Each is
// the arithmetic of the host's tables (ops/nn/interpolation.py), step for step. F: float, or double for doubles.

struct Axes { i32 from[3], to_[3]; double ratio[3]; };  // sizes of input and result, and how far a step in the result is

template<class F> __device__ __forceinline__ F near_weight(F a, F x) { return ((a + 2) * x - (a + 3)) * x * x + 1; }
template<class F> __device__ __forceinline__ F far_weight(F a, F x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; }
template<class F> __device__ __forceinline__ void cubic_weights(F t, F (&w)[4]) {
  const F a = F(-0.75);
  w[0] = far_weight(a, t + 1); w[1] = near_weight(a, t); w[2] = near_weight(a, 1 - t); w[3] = far_weight(a, 2 - t);
}
template<class F> __device__ __forceinline__ void cubic_slopes(F t, F (&w)[4]) {
  const F a = F(-0.75);
  const F near0 = (3 * (a + 2) * t - 2 * (a + 3)) * t, u = 1 - t, near1 = (3 * (a + 2) * u - 2 * (a + 3)) * u;
  const F p = t + 1, q = 2 - t;
  w[0] = (3 * a * p - 10 * a) * p + 8 * a; w[1] = near0; w[2] = -near1; w[3] = -((3 * a * q - 10 * a) * q + 8 * a);
}

__device__ __forceinline__ i32 clipped(i32 x, i32 most) { return x < 0 ? 0 : x > most ? most : x; }

template<class F, bool exact> struct Nearest {
  static const int reach = 1;
  i32 count, at;
  __device__ __forceinline__ Nearest(i32 o, const Axes& x, int d) : count(1) {
    const F ratio = (F)x.ratio[d];
    const i64 place = (i64)floor(exact ? ((F)o + F(0.5)) * ratio : (F)o * ratio);
    at = place < x.from[d] - 1 ? (i32)place : x.from[d] - 1;
  }
  __device__ __forceinline__ i32 index(int) const { return at; }
  __device__ __forceinline__ F weight(int) const { return F(1); }
  static __device__ __forceinline__ i32 lowest(i32 o, const Axes& x, int d) { return Nearest(o, x, d).at; }
  static __device__ __forceinline__ i32 highest(i32 o, const Axes& x, int d) { return Nearest(o, x, d).at; }
  static __device__ __forceinline__ double support(const Axes&, int) { return 1; }
};

template<class F, bool align> __device__ __forceinline__ F source_of(i32 o, const Axes& x, int d) {
  const F ratio = (F)x.ratio[d];
  return align ? (F)o * ratio : ratio * ((F)o + F(0.5)) - F(0.5);
}

template<class F, bool align> struct Linear {
  i32 count, low, high;
  F part;
  __device__ __forceinline__ Linear(i32 o, const Axes& x, int d) : count(2) {
    F place = source_of<F, align>(o, x, d);
    if (place < 0) place = 0;
    const i32 most = x.from[d] - 1;
    const i64 floored = (i64)floor(place);
    low = floored < most ? (i32)floored : most;
    high = low < most ? low + 1 : most;
    part = place - (F)low;
    part = part < 0 ? F(0) : part > 1 ? F(1) : part;
  }
  __device__ __forceinline__ i32 index(int t) const { return t ? high : low; }
  __device__ __forceinline__ F weight(int t) const { return t ? part : 1 - part; }
  static __device__ __forceinline__ i32 lowest(i32 o, const Axes& x, int d) { return Linear(o, x, d).low; }
  static __device__ __forceinline__ i32 highest(i32 o, const Axes& x, int d) { return Linear(o, x, d).high; }
  static __device__ __forceinline__ double support(const Axes&, int) { return 2; }
};

template<class F, bool align> struct Cubic {
  i32 count, low, most;
  F w[4];
  __device__ __forceinline__ Cubic(i32 o, const Axes& x, int d) : count(4), most(x.from[d] - 1) {
    const F place = source_of<F, align>(o, x, d), floored = floor(place);
    low = (i32)floored;
    cubic_weights(place - floored, w);
  }
  __device__ __forceinline__ i32 index(int t) const { return clipped(low - 1 + t, most); }
  __device__ __forceinline__ F weight(int t) const { return w[t]; }
  static __device__ __forceinline__ i32 lowest(i32 o, const Axes& x, int d) {
    return clipped((i32)floor(source_of<F, align>(o, x, d)) - 1, x.from[d] - 1);
  }
  static __device__ __forceinline__ i32 highest(i32 o, const Axes& x, int d) {
    return clipped((i32)floor(source_of<F, align>(o, x, d)) + 2, x.from[d] - 1);
  }
  static __device__ __forceinline__ double support(const Axes&, int) { return 3; }
};

// Antialiasing filters: half of the width, and the value at a distance from the centre.
struct Triangle {
  static constexpr int radius = 1;
  static __device__ __forceinline__ double at(double away) { return away < 1 ? 1 - away : 0; }
};
struct WidenedCubic {
  static constexpr int radius = 2;
  static __device__ __forceinline__ double at(double away) {
    const double a = -0.5;
    if (away < 1) return ((a + 2) * away - (a + 3)) * away * away + 1;
    return away < 2 ? (((away - 5) * away + 8) * away - 4) * a : 0;
  }
};
struct Lanczos {
  static constexpr int radius = 3;
  static __device__ __forceinline__ double sinc(double x) {
    const double angle = 3.141592653589793 * (x == 0 ? 1e-20 : x);
    return sin(angle) / angle;
  }
  static __device__ __forceinline__ double at(double away) { return away < 3 ? sinc(away) * sinc(away / 3) : 0; }
};

// Antialiased: a filter as wide as the step between places, its weights made to sum to 1.
template<class F, class Filter> struct Widened {
  i32 count, first;
  double centre, step, total;
  static __device__ __forceinline__ double support(const Axes& x, int d) {
    return Filter::radius * (x.ratio[d] > 1 ? x.ratio[d] : 1);
  }
  static __device__ __forceinline__ i32 lowest(i32 o, const Axes& x, int d) {
    const i64 at = (i64)(x.ratio[d] * ((double)o + 0.5) - support(x, d) + 0.5);
    return at > 0 ? (i32)at : 0;
  }
  static __device__ __forceinline__ i32 highest(i32 o, const Axes& x, int d) {
    const i64 end = (i64)(x.ratio[d] * ((double)o + 0.5) + support(x, d) + 0.5);
    return (end < x.from[d] ? (i32)end : x.from[d]) - 1;
  }
  __device__ Widened(i32 o, const Axes& x, int d) {
    centre = x.ratio[d] * ((double)o + 0.5);
    step = 1.0 / (x.ratio[d] > 1 ? x.ratio[d] : 1);
    first = lowest(o, x, d);
    count = highest(o, x, d) + 1 - first;
    total = 0;
    for (i32 t = 0; t < count; ++t) total += shape(t);
  }
  __device__ __forceinline__ double shape(i32 t) const {
    return Filter::at(fabs(((double)(first + t) - centre + 0.5) * step));
  }
  __device__ __forceinline__ i32 index(int t) const { return first + t; }
  __device__ __forceinline__ F weight(int t) const { return (F)(shape(t) / total); }
};

// The places of the result that read element i along dim d: `first` to before `end`.
struct Readers { i32 first, end; };
template<class Taps> __device__ __forceinline__ Readers readers_of(i32 i, const Axes& x, int d) {
  const double ratio = x.ratio[d], far = Taps::support(x, d);
  const i32 most = x.to_[d];
  double low = ratio > 0 ? floor((i - far) / ratio) - 2 : 0, high = ratio > 0 ? ceil((i + far) / ratio) + 3 : most;
  if (i == x.from[d] - 1) high = most;
  i32 first = low > 0 ? (low < most ? (i32)low : most) : 0, end = high < most ? (high > 0 ? (i32)high : 0) : most;
  while (first < end && Taps::highest(first, x, d) < i) ++first;
  while (end > first && Taps::lowest(end - 1, x, d) > i) --end;
  return {first, end};
}

// What place o of the result has of element i along dim d. False where it does not read it.
template<class Taps, class F> __device__ __forceinline__ bool share_of(i32 o, i32 i, const Axes& x, int d, F& share) {
  const Taps taps(o, x, d);
  bool read = false;
  share = 0;
  for (int t = 0; t < taps.count; ++t)
    if (taps.index(t) == i) { share += taps.weight(t); read = true; }
  return read;
}
