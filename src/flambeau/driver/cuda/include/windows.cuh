// Windows over up to three spatial dims (the first are of size 1 where there are fewer): see driver/cuda/codegen/sliding_windows.py.

struct Lattice { i32 size[3], count[3], kernel[3], stride[3], pad[3], dilation[3]; };

// An operand (N, C, three spatial dims): the step of each, in elements. `even`: all N * C planes are one step apart.
struct View {
  i64 step[5], channels, even;
  template<class I> __device__ __forceinline__ i64 plane(I p) const {
    if (even) return p * step[1];
    const I sample = p / (I)channels;
    return sample * step[0] + (p - sample * (I)channels) * step[1];
  }
  __device__ __forceinline__ i64 at(i32 a, i32 b, i32 c) const { return a * step[2] + b * step[3] + c * step[4]; }
};

template<class I> struct Place { I plane; i32 at[3]; };
template<class I> __device__ __forceinline__ Place<I> place_of(I i, const i32 (&n)[3]) {
  Place<I> r;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const I rest = n[d] == 1 ? i : i / (I)n[d];  // a division costs more than all else of a small window
    r.at[d] = (i32)(i - rest * (I)n[d]);
    i = rest;
  }
  r.plane = i;
  return r;
}
template<class I> __device__ __forceinline__ I thread_number() { return (I)blockIdx.x * blockDim.x + threadIdx.x; }

// What window o holds along dim d: `taps` elements from `first` on, `step` apart.
struct Span { i32 first, step, taps; };
template<bool adaptive> __device__ __forceinline__ Span span_of(const Lattice& w, int d, i32 o) {
  if constexpr (adaptive) {
    const i32 first = (i32)((i64)o * w.size[d] / w.count[d]);
    const i32 end = (i32)(((i64)(o + 1) * w.size[d] + w.count[d] - 1) / w.count[d]);
    return {first, 1, end - first};
  } else {
    const i32 step = w.dilation[d], start = o * w.stride[d] - w.pad[d], room = w.size[d] - start;
    const i32 skipped = start < 0 ? (step - 1 - start) / step : 0;
    const i32 within = room <= 0 ? 0 : step == 1 ? room : (room + step - 1) / step;
    const i32 stop = w.kernel[d] < within ? w.kernel[d] : within;
    return {start + skipped * step, step, stop > skipped ? stop - skipped : 0};
  }
}

// Which windows can hold element i along dim d: `first` to before `end`. `holds` says whether one does.
struct Holders { i32 first, end; };
template<bool adaptive> __device__ __forceinline__ Holders holders_of(const Lattice& w, int d, i32 i) {
  if constexpr (adaptive) {
    return {(i32)((i64)i * w.count[d] / w.size[d]), (i32)(((i64)(i + 1) * w.count[d] + w.size[d] - 1) / w.size[d])};
  } else {
    const i32 last = i + w.pad[d], begin = last - (w.kernel[d] - 1) * w.dilation[d], end = last / w.stride[d] + 1;
    return {begin <= 0 ? 0 : (begin + w.stride[d] - 1) / w.stride[d], end < w.count[d] ? end : w.count[d]};
  }
}
template<bool adaptive> __device__ __forceinline__ bool holds(const Lattice& w, int d, i32 o, i32 i) {
  return adaptive || (i + w.pad[d] - o * w.stride[d]) % w.dilation[d] == 0;
}

// How many elements a mean over window o divides by along dim d: with `include`, the padding's too.
template<bool adaptive> __device__ __forceinline__ i32 share_of(const Lattice& w, int d, i32 o, bool include) {
  if constexpr (adaptive) return span_of<true>(w, d, o).taps;
  else {
    i32 start = o * w.stride[d] - w.pad[d], end = start + w.kernel[d];
    const i32 most = w.size[d] + (include ? w.pad[d] : 0);
    if (end > most) end = most;
    if (!include && start < 0) start = 0;
    return end - start;
  }
}
