// Philox's words to numbers: cuRAND's arithmetic, PyTorch's dealing of draws to elements and its transforms, with the
// fast functions that it calls. The multiply-adds that its compiler fuses are written as such.

struct Words { u32 w[4]; };
__device__ __forceinline__ Words philox(u64 seed, u64 counter, u64 subsequence) {
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = (u32)subsequence, c3 = (u32)(subsequence >> 32);
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    const u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(b >> 32) ^ c1 ^ k0; c1 = (u32)b;
    c2 = (u32)(a >> 32) ^ c3 ^ k1; c3 = (u32)a;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The random words of the elements i, i + 1, ...: four adjacent elements share a draw of the thread i / 4 of `threads`,
// and those beyond the last thread take the next draw of the first threads.
__device__ __forceinline__ Words drawn_quad(u64 seed, u64 offset, u64 threads, u64 quad) {
  const u64 turn = quad < threads ? 0 : quad >> 32 ? quad / threads : (u32)quad / (u32)threads;
  return philox(seed, (offset >> 2) + turn, quad - turn * threads);
}
static __device__ __noinline__ u32 drawn_word(u64 seed, u64 offset, u64 threads, u64 i) {
  const Words w = drawn_quad(seed, offset, threads, i >> 2);
  return i & 2 ? (i & 1 ? w.w[3] : w.w[2]) : (i & 1 ? w.w[1] : w.w[0]);
}
template<int N> __device__ __forceinline__ Vector<u32, N> drawn_words(u64 seed, u64 offset, u64 threads, u64 i) {
  Vector<u32, N> r;
  if (N % 4 == 0 && i % 4 == 0) {
#pragma unroll
    for (int q = 0; q < N / 4; ++q) {
      const Words w = drawn_quad(seed, offset, threads, (i >> 2) + q);
#pragma unroll
      for (int k = 0; k < 4; ++k) r.v[4 * q + k] = w.w[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) r.v[k] = drawn_word(seed, offset, threads, i + k);
  }
  return r;
}

template<class A> struct drawn_ { typedef float type; static const int each = 4; };
template<> struct drawn_<double> { typedef double type; static const int each = 2; };

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// Thread t of T takes elements t, t + T, ... in order, N of them from each draw of four words.
template<int N, class F, class Draw, class Put>
__device__ __forceinline__ void deal(u64 seed, u64 offset, i64 n, Draw draw, Put put) {
  const i64 threads = (i64)gridDim.x * blockDim.x, t = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  u64 turn = offset >> 2;
  for (i64 first = t; first < n; first += threads * N, ++turn) {
    F v[N];
    draw(philox(seed, turn, t), v);
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (first + j * threads < n) put(first + j * threads, v[j]);
  }
}

__device__ __forceinline__ double long_bits(u32 low, u32 high) { return (double)(low ^ (u64)high << 21); }

// Uniform in (0, 1].
__device__ __forceinline__ float unit_of(u32 w) { return fused((float)w, 0x1p-32f, 0x1p-33f); }
__device__ __forceinline__ double unit_of(double bits) { return fused(bits, 0x1p-53, 0x1p-54); }
__device__ __forceinline__ void unit(const Words& x, float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = unit_of(x.w[j]);
}
__device__ __forceinline__ void unit(const Words& x, double (&v)[2]) {
  v[0] = unit_of(long_bits(x.w[0], x.w[1]));
  v[1] = unit_of(long_bits(x.w[2], x.w[3]));
}

// Normal, by Box and Muller.
__device__ __forceinline__ void bell(const Words& x, float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const float turn = 0x1p-32f * 6.2831855f, radius = sqrtf(-2.0f * logf(unit_of(x.w[j])));
    __sincosf(fused((float)x.w[j + 1], turn, turn / 2), &v[j], &v[j + 1]);
    v[j] *= radius;
    v[j + 1] *= radius;
  }
}
__device__ __forceinline__ void bell(const Words& x, double (&v)[2]) {
  const double radius = sqrt(-2.0 * log(unit_of(long_bits(x.w[0], x.w[1]))));
  sincospi(fused(long_bits(x.w[2], x.w[3]), 0x1p-52, 0x1p-53), &v[0], &v[1]);
  v[0] *= radius;
  v[1] *= radius;
}

__device__ __forceinline__ float fast_log(float x) { return __logf(x); }
__device__ __forceinline__ double fast_log(double x) { return log(x); }
__device__ __forceinline__ float fast_log1p(float x) { return __logf(1.0f + x); }
__device__ __forceinline__ double fast_log1p(double x) { return log1p(x); }
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }

template<class Out, class F> __device__ __forceinline__ Out uniform(F u, double from, double below) {
  const Out low = to<Out>(from), high = to<Out>(below);
  const F range = widen(to<Out>(widen(high) - widen(low)));
  const Out value = to<Out>(fused(u, range, (F)widen(low)));
  return widen(value) == widen(high) ? low : value;  // (0, 1] becomes [0, 1) after rounding
}
template<class F> __device__ __forceinline__ F normal(F x, double mean, double std) { return fused(x, (F)std, (F)mean); }
template<class F> __device__ __forceinline__ F exponential(F u, double rate) {
  const F half_eps = same<F, double> ? F(0x1p-53) : F(0x1p-24);  // the log of 1 would be 0, which is excluded
  const F l = u >= F(1) - half_eps ? -half_eps : fast_log(u);
  return F(-1) / (F)rate * l;
}
__device__ __forceinline__ float cauchy(float u, double median, double sigma) {
  const float eps = 0x1p-23f;  // the fast tangent overflows beyond
  u = u > 1 - eps ? 1 - eps : u;
  u = u < eps ? eps : u;
  return fused((float)sigma, __tanf(3.14159265358979323846f * (u - 0.5f)), (float)median);
}
__device__ __forceinline__ double cauchy(double u, double median, double sigma) {
  return fused(sigma, tan(3.14159265358979323846 * (u - 0.5)), median);
}
template<class F> __device__ __forceinline__ F geometric(F u, double p) { return ceil(fast_log(u) / fast_log1p(-(F)p)); }

// words % span + low; a span of 0 is the whole range.
__device__ __forceinline__ i64 into_range(u32 w, i64 low, u64 span) {
  const u64 v = span - 1 < 0xffffffffull ? (u64)(w % (u32)span) : w;
  return (i64)(v + (u64)low);
}
__device__ __forceinline__ i64 into_range(u64 w, i64 low, u64 span) { return (i64)((span ? w % span : w) + (u64)low); }
