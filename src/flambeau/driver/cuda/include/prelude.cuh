// What every kernel begins with: element types, conversions as PyTorch converts, complex numbers, arithmetic
// that wraps, and functions of one name for all dtypes. No headers: they would cost more than the compilation.
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;

struct half { u16 bits; };
struct bf16 { u16 bits; };
struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };
template<class F> struct alignas(2 * sizeof(F)) cx { F re, im; };
typedef cx<half> c32; typedef cx<float> c64; typedef cx<double> c128;

template<class A, class B> struct is_ { static const bool same = false; };
template<class A> struct is_<A, A> { static const bool same = true; };
template<class A, class B> constexpr bool same = is_<A, B>::same;
template<class A> constexpr bool real_float = same<A, float> || same<A, double>;
template<class A> constexpr bool is_complex = same<A, c32> || same<A, c64> || same<A, c128>;
template<class A> constexpr bool is_small = same<A, half> || same<A, bf16> || same<A, e4m3> || same<A, e5m2>;
template<class A> constexpr bool is_bool = same<A, bool>;
template<class A> constexpr bool is_integer = !real_float<A> && !is_complex<A> && !is_small<A> && !is_bool<A>;
template<class A> constexpr bool is_signed = A(-1) < A(0);
template<class A> struct part_ { typedef A type; };
template<class F> struct part_<cx<F>> { typedef F type; };
template<class A> using part = typename part_<A>::type;
template<bool C> struct pick_ { typedef double type; };
template<> struct pick_<true> { typedef c128 type; };

#define INF __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

// -- narrow floats ---------------------------------------------------------------------------------------

__device__ __forceinline__ float widen(half x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
template<int E, int M> __device__ float widen_byte(u8 x) {
  const int bias = (1 << (E - 1)) - 1, exponent = (x >> M) & ((1 << E) - 1), digits = x & ((1 << M) - 1);
  float r = exponent ? __int_as_float((exponent - bias + 127) << 23 | digits << (23 - M))
                     : (float)digits * __int_as_float((1 - bias - M + 127) << 23);
  if (E == 5 && exponent == 31) r = digits ? NAN : INF;
  if (E == 4 && exponent == 15 && digits == 7) r = NAN;
  return x & 128 ? -r : r;
}
__device__ __forceinline__ float widen(e4m3 x) { return widen_byte<4, 3>(x.bits); }
__device__ __forceinline__ float widen(e5m2 x) { return widen_byte<5, 2>(x.bits); }
__device__ __forceinline__ c64 widen(c32 x) { return {widen(x.re), widen(x.im)}; }
template<class A> __device__ __forceinline__ A widen(A x) { return x; }

template<int E, int M> __device__ u8 narrow_byte(float x) {  // to nearest, ties to even; e4m3 saturates
  const int bias = (1 << (E - 1)) - 1;
  const u32 b = __float_as_uint(x), sign = b >> 24 & 128;
  const float size = fabsf(x), largest = E == 4 ? 448.f : 57344.f;
  if (size != size) return sign | (E == 4 ? 0x7f : 0x7e);
  if (E == 4 && size > largest) return sign | 0x7e;
  const float smallest = __int_as_float((1 - bias + 127) << 23);
  if (size < smallest) return sign | (u8)(int)rintf(size * __int_as_float((bias - 1 + M + 127) << 23));
  const u32 magnitude = b & 0x7fffffff;
  const u32 rounded = magnitude + ((1u << (22 - M)) - 1) + (magnitude >> (23 - M) & 1);
  const u32 r = (rounded >> (23 - M)) - ((127 - bias) << M);
  return sign | (u8)(E == 5 && r > 0x7b ? 0x7c : r);
}
__device__ __forceinline__ u16 half_bits(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
__device__ __forceinline__ u16 bf16_bits(float x) {
  const u32 b = __float_as_uint(x);
  return x != x ? (b >> 16 & 0x8000) | 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// -- conversion -------------------------------------------------------------------------------------------

template<class A> __device__ __forceinline__ bool nonzero(A x) {
  if constexpr (is_complex<A>) return x.re != 0 || x.im != 0;
  else return x != 0;
}
template<class B, class A> __device__ __forceinline__ B from_wide(A x) {
  if constexpr (same<A, B>) return x;
  else if constexpr (is_bool<B>) return nonzero(x);
  else if constexpr (is_complex<B>) {
    if constexpr (is_complex<A>) return {from_wide<part<B>>(x.re), from_wide<part<B>>(x.im)};
    else return {from_wide<part<B>>(x), from_wide<part<B>>((part<A>)0)};
  }
  else if constexpr (is_complex<A>) return from_wide<B>(x.re);
  else if constexpr (same<B, half>) return {half_bits((float)x)};
  else if constexpr (same<B, bf16>) return {bf16_bits((float)x)};
  else if constexpr (same<B, e4m3>) return {narrow_byte<4, 3>((float)x)};
  else if constexpr (same<B, e5m2>) return {narrow_byte<5, 2>((float)x)};
  else if constexpr (real_float<A> && is_integer<B>) {
    if constexpr (same<B, u64>) return x < 0 ? (u64)(i64)x : (u64)x;
    else return (B)(i64)x;
  }
  else return (B)x;
}
template<class B, class A> __device__ __forceinline__ B to(A x) {
  if constexpr (same<A, B>) return x;
  else return from_wide<B>(widen(x));
}

// -- memory -----------------------------------------------------------------------------------------------

template<class A, int N> struct alignas(sizeof(A) * N) Vector {
  A v[N];
  __device__ __forceinline__ A& operator[](int i) { return v[i]; }
};
template<int N, class A> __device__ __forceinline__ Vector<A, N>* vectors(A* p) { return (Vector<A, N>*)p; }
template<int N, class A> __device__ __forceinline__ const Vector<A, N>* vectors(const A* p) { return (const Vector<A, N>*)p; }
template<class A, int N> __device__ __forceinline__ bool misaligned(const A* p) { return (u64)p % (sizeof(A) * N) != 0; }

// Merged dimensions, innermost first, and the strides of K operands (see driver/cuda/codegen/kernel_layout.py).
template<int D, int K> struct Walk {
  u32 size[D], magic[D], shift[D], stride[K][D];
  __device__ __forceinline__ void locate(u32 i, u32 (&o)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) o[k] = 0;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      u32 q = d == D - 1 ? 0 : (__umulhi(i, magic[d]) + i) >> shift[d];
      u32 r = d == D - 1 ? i : i - q * size[d];
#pragma unroll
      for (int k = 0; k < K; ++k) o[k] += r * stride[k][d];
      i = q;
    }
  }
};
template<int D, int K> struct WideWalk {
  i64 size[D], stride[K][D];
  __device__ __forceinline__ void locate(i64 i, i64 (&o)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) o[k] = 0;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      i64 q = d == D - 1 ? 0 : i / size[d];
      i64 r = d == D - 1 ? i : i - q * size[d];
#pragma unroll
      for (int k = 0; k < K; ++k) o[k] += r * stride[k][d];
      i = q;
    }
  }
};

template<class W, class I> __device__ __forceinline__ I place(const W& walk, I i) {
  I o[1];
  walk.locate(i, o);
  return o[0];
}

// -- arithmetic: integers wrap, booleans as NumPy has them --------------------------------------------------

template<class F> __device__ __forceinline__ cx<F> operator+(cx<F> a, cx<F> b) { return {a.re + b.re, a.im + b.im}; }
template<class F> __device__ __forceinline__ cx<F> operator-(cx<F> a, cx<F> b) { return {a.re - b.re, a.im - b.im}; }
template<class F> __device__ __forceinline__ cx<F> operator*(cx<F> a, cx<F> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template<class F> __device__ __forceinline__ cx<F> operator/(cx<F> a, cx<F> b) {  // Smith's way, NumPy's
  const F r = b.re < 0 ? -b.re : b.re, m = b.im < 0 ? -b.im : b.im;
  if (r >= m) {
    if (r == 0 && m == 0) return {a.re / r, a.im / r};
    const F q = b.im / b.re, s = F(1) / (b.re + b.im * q);
    return {(a.re + a.im * q) * s, (a.im - a.re * q) * s};
  }
  const F q = b.re / b.im, s = F(1) / (b.im + b.re * q);
  return {(a.re * q + a.im) * s, (a.im * q - a.re) * s};
}
template<class F> __device__ __forceinline__ bool operator==(cx<F> a, cx<F> b) { return a.re == b.re && a.im == b.im; }
template<class F> __device__ __forceinline__ bool operator!=(cx<F> a, cx<F> b) { return !(a == b); }

template<class A> __device__ __forceinline__ A add(A a, A b) {
  if constexpr (is_bool<A>) return a | b;
  else if constexpr (is_integer<A>) return (A)((u64)a + (u64)b);
  else return a + b;
}
template<class A> __device__ __forceinline__ A sub(A a, A b) {
  if constexpr (is_bool<A>) return a != b;
  else if constexpr (is_integer<A>) return (A)((u64)a - (u64)b);
  else return a - b;
}
template<class A> __device__ __forceinline__ A mul(A a, A b) {
  if constexpr (is_bool<A>) return a & b;
  else if constexpr (is_integer<A>) return (A)((u64)a * (u64)b);
  else return a * b;
}
template<class A> __device__ __forceinline__ A neg(A a) {
  if constexpr (is_complex<A>) return {-a.re, -a.im};
  else if constexpr (is_integer<A>) return (A)(0 - (u64)a);
  else return -a;
}
template<class A> __device__ __forceinline__ part<A> absolute(A a) {
  if constexpr (same<A, c64>) return hypotf(a.re, a.im);
  else if constexpr (same<A, c128>) return hypot(a.re, a.im);
  else if constexpr (same<A, float>) return fabsf(a);
  else if constexpr (same<A, double>) return fabs(a);
  else if constexpr (is_integer<A>) return a < A(0) ? neg(a) : a;
  else return a;
}
template<class A> __device__ __forceinline__ bool is_nan(A a) {
  if constexpr (is_complex<A>) return a.re != a.re || a.im != a.im;
  else if constexpr (real_float<A>) return a != a;
  else return false;
}
template<class A> __device__ __forceinline__ bool is_inf(A a) {
  if constexpr (is_complex<A>) return is_inf(a.re) || is_inf(a.im);
  else if constexpr (real_float<A>) return absolute(a) == INF;
  else return false;
}
template<class A> __device__ __forceinline__ bool is_finite(A a) { return !is_nan(a) & !is_inf(a); }
// The greater of two; NaN if either is. fmax_ yields to the number. Without branches, so that compilers vectorize it.
template<class A> __device__ __forceinline__ A greater(A a, A b) { return is_nan(b) | (a < b) ? b : a; }
template<class A> __device__ __forceinline__ A lesser(A a, A b) { return is_nan(b) | (a > b) ? b : a; }
template<class A> __device__ __forceinline__ A fmax_(A a, A b) { return is_nan(b) | (a >= b) ? a : b; }
template<class A> __device__ __forceinline__ A fmin_(A a, A b) { return is_nan(b) | (a <= b) ? a : b; }
template<class A> __device__ __forceinline__ A pick(bool c, A a, A b) { return c ? a : b; }

#define REAL(name, single, twice) \
  __device__ __forceinline__ float name(float x) { return single(x); } \
  __device__ __forceinline__ double name(double x) { return twice(x); }
#define REAL2(name, single, twice) \
  __device__ __forceinline__ float name(float x, float y) { return single(x, y); } \
  __device__ __forceinline__ double name(double x, double y) { return twice(x, y); }
REAL(sqrt_, sqrtf, sqrt) REAL(exp_, expf, exp) REAL(exp2_, exp2f, exp2) REAL(expm1_, expm1f, expm1)
REAL(log_, logf, log) REAL(log2_, log2f, log2) REAL(log10_, log10f, log10) REAL(log1p_, log1pf, log1p)
REAL(sin_, sinf, sin) REAL(cos_, cosf, cos) REAL(tan_, tanf, tan) REAL(asin_, asinf, asin) REAL(acos_, acosf, acos)
REAL(atan_, atanf, atan) REAL(sinh_, sinhf, sinh) REAL(cosh_, coshf, cosh) REAL(tanh_, tanhf, tanh)
REAL(asinh_, asinhf, asinh) REAL(acosh_, acoshf, acosh) REAL(atanh_, atanhf, atanh) REAL(erf_, erff, erf)
REAL(erfc_, erfcf, erfc) REAL(erfinv_, erfinvf, erfinv) REAL(lgamma_, lgammaf, lgamma)
REAL2(atan2_, atan2f, atan2) REAL2(hypot_, hypotf, hypot) REAL2(copysign_, copysignf, copysign)
REAL2(fmod_, fmodf, fmod) REAL2(power_, powf, pow)
#undef REAL
#undef REAL2
template<class A> __device__ __forceinline__ A floor_(A x) { if constexpr (real_float<A>) return floor(x); else return x; }
template<class A> __device__ __forceinline__ A ceil_(A x) { if constexpr (real_float<A>) return ceil(x); else return x; }
template<class A> __device__ __forceinline__ A trunc_(A x) { if constexpr (real_float<A>) return trunc(x); else return x; }
template<class A> __device__ __forceinline__ A round_(A x) { if constexpr (real_float<A>) return rint(x); else return x; }
template<class A> __device__ __forceinline__ bool sign_bit(A x) {
  if constexpr (same<A, float>) return __float_as_int(x) < 0;
  else if constexpr (same<A, double>) return __double_as_longlong(x) < 0;
  else return x < A(0);
}
template<class A> __device__ __forceinline__ A sign(A x) {
  if constexpr (is_bool<A>) return x;
  else if constexpr (is_complex<A>) { const auto s = absolute(x); return s == 0 ? A{0, 0} : A{x.re / s, x.im / s}; }
  else return A(x > A(0)) - A(x < A(0));
}
template<class A> __device__ A floor_divide(A a, A b) {
  if constexpr (real_float<A>) {
    if (b == 0) return a / b;
    const A mod = fmod_(a, b);
    A q = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) q -= 1;
    if (q == 0) return copysign_(A(0), a / b);
    A r = floor(q);
    return q - r > A(0.5) ? r + 1 : r;
  } else {
    if (b == 0) return (A)-1;
    const A q = a / b;
    return a % b != 0 && (a < A(0)) != (b < A(0)) ? q - 1 : q;
  }
}
template<class A> __device__ A remainder_(A a, A b) {
  if constexpr (real_float<A>) {
    const A left = fmod_(a, b);
    return left != 0 && (b < 0) != (left < 0) ? left + b : left;
  } else {
    if (b == 0) return (A)-1;
    const A left = a % b;
    return left != 0 && (left < A(0)) != (b < A(0)) ? left + b : left;
  }
}
template<class A> __device__ __forceinline__ A quotient_trunc(A a, A b) {
  if constexpr (real_float<A>) return trunc(a / b);
  else return b == 0 ? (A)-1 : a / b;
}
template<class A> __device__ __forceinline__ A fmod_any(A a, A b) {
  if constexpr (real_float<A>) return fmod_(a, b);
  else return b == 0 ? (A)-1 : (A)(a % b);
}
template<class A> __device__ A gcd_(A x, A y) {
  u64 a = (u64)(x < A(0) ? -(i64)x : (i64)x), b = (u64)(y < A(0) ? -(i64)y : (i64)y);
  while (b) { const u64 r = a % b; a = b; b = r; }
  return (A)a;
}
template<class A> __device__ A lcm_(A x, A y) {
  const A g = gcd_(x, y);
  return g == 0 ? A(0) : absolute(mul((A)(x / g), y));
}

// -- complex functions ---------------------------------------------------------------------------------------

template<class F> __device__ cx<F> exp_(cx<F> z) {
  const F e = exp_(z.re);
  if (z.im == 0) return {e, z.im};
  return {e * cos_(z.im), e * sin_(z.im)};
}
template<class F> __device__ cx<F> log_(cx<F> z) { return {log_(hypot_(z.re, z.im)), atan2_(z.im, z.re)}; }
template<class F> __device__ cx<F> scaled(cx<F> z, F s) { return {z.re * s, z.im * s}; }
template<class F> __device__ cx<F> exp2_(cx<F> z) { return exp_(scaled(z, F(0.693147180559945309417))); }
template<class F> __device__ cx<F> log2_(cx<F> z) { return scaled(log_(z), F(1.44269504088896340736)); }
template<class F> __device__ cx<F> log10_(cx<F> z) { return scaled(log_(z), F(0.434294481903251827651)); }
template<class F> __device__ cx<F> log1p_(cx<F> z) {
  return {F(0.5) * log1p_(z.re * (2 + z.re) + z.im * z.im), atan2_(z.im, z.re + 1)};
}
template<class F> __device__ cx<F> expm1_(cx<F> z) {
  const F h = sin_(z.im / 2);
  return {expm1_(z.re) * cos_(z.im) - 2 * h * h, exp_(z.re) * sin_(z.im)};
}
template<class F> __device__ cx<F> sqrt_(cx<F> z) {
  if (z.re == 0 && z.im == 0) return {0, z.im};
  const F s = sqrt_((absolute(z.re) + hypot_(z.re, z.im)) / 2), t = absolute(z.im) / (2 * s);
  return z.re >= 0 ? cx<F>{s, copysign_(t, z.im)} : cx<F>{t, copysign_(s, z.im)};
}
template<class F> __device__ cx<F> times_i(cx<F> z) { return {-z.im, z.re}; }
template<class F> __device__ cx<F> over_i(cx<F> z) { return {z.im, -z.re}; }
template<class F> __device__ cx<F> sinh_(cx<F> z) { return {sinh_(z.re) * cos_(z.im), cosh_(z.re) * sin_(z.im)}; }
template<class F> __device__ cx<F> cosh_(cx<F> z) { return {cosh_(z.re) * cos_(z.im), sinh_(z.re) * sin_(z.im)}; }
template<class F> __device__ cx<F> tanh_(cx<F> z) {
  const F t = tan_(z.im), b = 1 + t * t, s = sinh_(z.re), r = sqrt_(1 + s * s);
  if (absolute(z.re) > 20) return {copysign_(F(1), z.re), 4 * t / b * exp_(-2 * absolute(z.re))};
  const F d = 1 + b * s * s;
  return {b * r * s / d, t / d};
}
template<class F> __device__ cx<F> sin_(cx<F> z) { return over_i(sinh_(times_i(z))); }
template<class F> __device__ cx<F> cos_(cx<F> z) { return cosh_(times_i(z)); }
template<class F> __device__ cx<F> tan_(cx<F> z) { return over_i(tanh_(times_i(z))); }
template<class F> __device__ cx<F> asinh_(cx<F> z) {  // Kahan's way
  const cx<F> u = sqrt_(cx<F>{1 - z.im, z.re}), v = sqrt_(cx<F>{1 + z.im, -z.re});
  return {asinh_(u.im * v.re - u.re * v.im), atan2_(z.im, u.re * v.re - u.im * v.im)};
}
template<class F> __device__ cx<F> asin_(cx<F> z) { return over_i(asinh_(times_i(z))); }
template<class F> __device__ cx<F> acos_(cx<F> z) {
  const cx<F> u = sqrt_(cx<F>{1 - z.re, -z.im}), v = sqrt_(cx<F>{1 + z.re, z.im});
  return {2 * atan2_(u.re, v.re), asinh_(v.re * u.im - v.im * u.re)};
}
template<class F> __device__ cx<F> acosh_(cx<F> z) {
  const cx<F> u = sqrt_(cx<F>{z.re - 1, z.im}), v = sqrt_(cx<F>{z.re + 1, z.im});
  return {asinh_(u.re * v.re + u.im * v.im), 2 * atan2_(u.im, v.re)};
}
template<class F> __device__ cx<F> atanh_(cx<F> z) {
  const F y = z.im * z.im, a = 1 + z.re, b = 1 - z.re;
  return {F(0.25) * log1p_(4 * z.re / (b * b + y)), F(0.5) * atan2_(2 * z.im, b * a - y)};
}
template<class F> __device__ cx<F> atan_(cx<F> z) { return over_i(atanh_(times_i(z))); }
template<class F> __device__ cx<F> power_(cx<F> a, cx<F> b) {
  if (b.re == 0 && b.im == 0) return {1, 0};
  if (a.re == 0 && a.im == 0) return b.re > 0 ? cx<F>{0, 0} : cx<F>{(F)NAN, (F)NAN};
  return exp_(b * log_(a));
}

// -- functions that are more than one line ---------------------------------------------------------------------

template<class A> __device__ A integer_power(A base, A exponent) {
  if (exponent < A(0)) return base == A(1) ? A(1) : is_signed<A> && base == A(-1) ? (exponent % 2 ? base : A(1)) : A(0);
  u64 r = 1, b = (u64)base;
  for (u64 e = (u64)exponent; e; e >>= 1) { if (e & 1) r *= b; b *= b; }
  return (A)r;
}
template<class A> __device__ A known_power(A x, A e) {  // by a scalar: PyTorch's short cuts
  if constexpr (!is_complex<A>) {
    if (e == A(0.5)) return sqrt_(x);
    if (e == A(2)) return x * x;
    if (e == A(3)) return x * x * x;
    if (e == A(-0.5)) return 1 / sqrt_(x);
    if (e == A(-1)) return 1 / x;
    if (e == A(-2)) return 1 / (x * x);
  } else {
    if (e.im == 0 && e.re == 0.5) return sqrt_(x);
    if (e.im == 0 && e.re == 2) return x * x;
    if (e.im == 0 && e.re == 3) return x * x * x;
    if (e.im == 0 && e.re == -1) return A{1, 0} / x;
  }
  return power_(x, e);
}
template<class A> __device__ A pow_any(A x, A e, bool scalar) {
  if constexpr (is_bool<A>) return x | !e;
  else if constexpr (is_integer<A>) return integer_power(x, e);
  else return scalar ? known_power(x, e) : power_(x, e);
}
template<class A> __device__ A lerp_(A a, A b, A w) {
  const A gap = b - a;
  if constexpr (is_complex<A>) return absolute(w) < 0.5f ? a + w * gap : b - gap * (A{1, 0} - w);
  else return absolute(w) < A(0.5) ? a + w * gap : b - gap * (A(1) - w);
}
template<class A> __device__ A one() { if constexpr (is_complex<A>) return {1, 0}; else return A(1); }
template<class A> __device__ A sigmoid_(A x) { return one<A>() / (one<A>() + exp_(neg(x))); }
template<class A> __device__ A digamma_(A x) {  // by reflection, recurrence and the asymptotic series, in doubles
  double t = x, r = 0;
  if (t == 0) return (A)copysign(1.0 / 0.0, -t);
  if (t < 0) {
    if (t == floor(t)) return (A)NAN;
    r = -3.14159265358979323846 / tan(3.14159265358979323846 * (t - floor(t)));
    t = 1 - t;
  }
  while (t < 10) { r -= 1 / t; t += 1; }
  const double y = 1 / (t * t);
  return (A)(r + log(t) - 0.5 / t - y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132))))));
}
template<class A> __device__ A log_add(A a, A b) {
  if constexpr (is_complex<A>) {
    const A m = a.re >= b.re ? a : b;
    return m + log_(exp_(a - m) + exp_(b - m));
  } else {
    if (a == b) return a + A(0.693147180559945309417);
    const A d = a - b;
    return d > 0 ? a + log1p_(exp_(-d)) : d <= 0 ? b + log1p_(exp_(d)) : d;
  }
}
// Of running sums: a complex number that is NaN in one part is NaN in both, as in PyTorch.
template<class A> __device__ A log_join(A a, A b) {
  if constexpr (is_complex<A>) {
    if (is_nan(a) || is_nan(b)) return {(part<A>)NAN, (part<A>)NAN};
    const A least = a.re <= b.re ? a : b, most = a.re <= b.re ? b : a;
    if (is_inf(most.re) && most.re == least.re) return most.re < 0 ? least : log_(exp_(least) + exp_(most));
    return most + log1p_(exp_(least - most));
  } else return log_add(a, b);
}
template<class A> __device__ A log_add2(A a, A b) {
  if (a == b) return a + 1;
  const A d = a - b, e = A(1.44269504088896340736);
  return d > 0 ? a + e * log1p_(exp2_(-d)) : d <= 0 ? b + e * log1p_(exp2_(d)) : d;
}
template<class A> __device__ bool close(A a, A b, double rtol, double atol, i64 equal_nan) {
  bool same_ = a == b;
  if (equal_nan) same_ |= a != a && b != b;
  if (rtol == 0 && atol == 0) return same_;
  if constexpr (is_complex<A>) {
    const auto gap = absolute(a - b);
    return same_ || (is_finite(gap) && gap <= (decltype(gap))atol + absolute(scaled(b, (decltype(gap))rtol)));
  } else if constexpr (real_float<A>) {
    const A gap = absolute(a - b);
    return same_ || (is_finite(gap) && gap <= (A)atol + absolute((A)rtol * b));
  } else {
    const double gap = fabs((double)a - (double)b);
    return same_ || gap <= atol + fabs(rtol * (double)b);
  }
}
template<class A> __device__ A shift_left(A a, A b) {
  return b >= A(0) && b < A(sizeof(A) * 8) ? (A)((u64)a << b) : A(0);
}
template<class A> __device__ A shift_right(A a, A b) {
  const int bits = sizeof(A) * 8;
  if (is_signed<A>) return b >= A(0) && b < A(bits - 1) ? (A)(a >> b) : (A)(a >> (bits - 1));
  return b >= A(0) && (u64)b < bits ? (A)(a >> b) : A(0);
}
template<class A> __device__ A numbered(A x, double nan, double high, double low) {
  if constexpr (is_complex<A>) return {numbered(x.re, nan, high, low), numbered(x.im, nan, high, low)};
  else if constexpr (real_float<A>) return x != x ? (A)nan : x == INF ? (A)high : x == -INF ? (A)low : x;
  else return x;
}

template<class A> __device__ __forceinline__ A conjugate(A x) { if constexpr (is_complex<A>) return {x.re, -x.im}; else return x; }
template<class A> __device__ __forceinline__ A turned(A x) { if constexpr (is_bool<A>) return !x; else return (A)~x; }
template<class A> __device__ __forceinline__ A held(A x, A eps) { return x < eps ? eps : x > 1 - eps ? 1 - eps : x; }
template<class A> __device__ auto angle_(A x) {
  if constexpr (is_complex<A>) return atan2_(x.im, x.re);
  else return x != x ? x : x < 0 ? A(3.14159265358979323846) : A(0);
}
template<class A> __device__ A sinc_(A x) {
  if constexpr (is_complex<A>) {
    const A y = scaled(x, part<A>(3.14159265358979323846));
    return x == A{0, 0} ? A{1, 0} : sin_(y) / y;
  } else {
    const A y = x * A(3.14159265358979323846);
    return x == 0 ? A(1) : sin_(y) / y;
  }
}

// i steps: what linspace adds to an end.
template<class A> __device__ A line(A step, i64 i) {
  if constexpr (is_complex<A>) return {step.re * i, step.im * i};
  else return step * (A)i;
}

// -- states of reductions ---------------------------------------------------------------------------------------

template<class A> __device__ __forceinline__ A lowest() {
  if constexpr (real_float<A>) return -INF;
  else if constexpr (is_bool<A>) return false;
  else if constexpr (is_signed<A>) return (A)(1ull << (sizeof(A) * 8 - 1));
  else return 0;
}
template<class A> __device__ __forceinline__ A highest() {
  if constexpr (real_float<A>) return INF;
  else if constexpr (is_bool<A>) return true;
  else return (A)~(u64)lowest<A>();
}
template<class A> struct Counted { A v; i64 n; };
template<class A> __device__ __forceinline__ Counted<A> operator+(Counted<A> a, Counted<A> b) { return {add(a.v, b.v), a.n + b.n}; }
template<class A> __device__ __forceinline__ A over(A s, i64 n) {
  if constexpr (is_complex<A>) return {s.re / n, s.im / n};
  else return s / (A)n;
}
/* The value of the thread that is `d` lanes further on in the warp. */
template<class S> __device__ __forceinline__ S of_lane_below(S s, int d) {
  constexpr int N = (sizeof(S) + 3) / 4;
  union Words { u32 w[N]; S s; __device__ Words() {} } a;
  a.s = s;
#pragma unroll
  for (int k = 0; k < N; ++k) a.w[k] = __shfl_down_sync(~0u, a.w[k], d);
  return a.s;
}
template<class A> struct Range { A low, high; };
template<class A> struct Placed { A v; i64 at; };
constexpr i64 NOWHERE = 0x7fffffffffffffff;
template<class A> __device__ __forceinline__ Placed<A> first_greatest(Placed<A> a, Placed<A> b) {
  const bool u = is_nan(a.v), v = is_nan(b.v);
  const bool second = u != v ? v : u || a.v == b.v ? b.at < a.at : b.v > a.v;
  return second ? b : a;
}
template<class A> __device__ __forceinline__ Placed<A> first_least(Placed<A> a, Placed<A> b) {
  const bool u = is_nan(a.v), v = is_nan(b.v);
  const bool second = u != v ? v : u || a.v == b.v ? b.at < a.at : b.v < a.v;
  return second ? b : a;
}
/* The same for an element b that follows all elements of a: an equal one does not replace it. */
template<class A> __device__ __forceinline__ Placed<A> later_greatest(Placed<A> a, Placed<A> b) {
  return !(b.v <= a.v) && !is_nan(a.v) ? b : a;
}
template<class A> __device__ __forceinline__ Placed<A> later_least(Placed<A> a, Placed<A> b) {
  return !(b.v >= a.v) && !is_nan(a.v) ? b : a;
}
template<class A> using twice = typename pick_<is_complex<A>>::type;
template<class D> struct Moments { D mean; double m2, n; };
__device__ __forceinline__ double squared(double x) { return x * x; }
__device__ __forceinline__ double squared(c128 x) { return x.re * x.re + x.im * x.im; }
__device__ __forceinline__ double times(double x, double s) { return x * s; }
__device__ __forceinline__ c128 times(c128 x, double s) { return {x.re * s, x.im * s}; }
template<class D> __device__ __forceinline__ Moments<D> operator+(Moments<D> a, Moments<D> b) {
  if (a.n == 0) return b;
  if (b.n == 0) return a;
  const double n = a.n + b.n, share = b.n / n;
  const D gap = b.mean - a.mean;
  return {a.mean + times(gap, share), a.m2 + b.m2 + squared(gap) * a.n * share, n};
}
// Moments of numbers without a division for each: sums of distances from one of them, so that what cancels is at most n
// times what stays. Of numbers that have half the bits it is the first of all that are folded, and states are only added;
// of others it is the first that a thread sees, and sums are centered before they are joined.
template<class T> struct Deviations { twice<T> sum; double squares; };
template<class D> struct Centering { D first, sum; double squares; i64 n; };
template<> struct Deviations<double> : Centering<double> {};
template<> struct Deviations<c128> : Centering<c128> {};
template<class T> constexpr bool centering = sizeof(part<T>) == 8;

template<class T> __device__ __forceinline__ Deviations<T> deviation(T x, T first) {
  if constexpr (centering<T>) return {{x, T{}, 0, 1}};
  else {
    const twice<T> away = to<twice<T>>(x) - to<twice<T>>(first);
    return {away, squared(away)};
  }
}
template<class D> __device__ __forceinline__ Moments<D> moments_around(D first, D sum, double squares, i64 n) {
  if (n == 0) return {};
  const double share = 1 / (double)n, m2 = squares - squared(sum) * share;
  return {first + times(sum, share), m2 < 0 ? 0 : m2, (double)n};
}
template<class T> __device__ __forceinline__ Moments<twice<T>> moments(Deviations<T> s, T first, i64 n) {
  if constexpr (centering<T>) return moments_around(s.first, s.sum, s.squares, s.n);
  else return moments_around(to<twice<T>>(first), s.sum, s.squares, n);
}
template<class T> __device__ __forceinline__ Deviations<T> operator+(Deviations<T> a, Deviations<T> b) {
  if constexpr (!centering<T>) return {a.sum + b.sum, a.squares + b.squares};
  else {
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    if (b.n == 1) {
      const T gap = b.first - a.first;
      return {{a.first, a.sum + gap, a.squares + squared(gap), a.n + 1}};
    }
    const Moments<T> all = moments(a, a.first, a.n) + moments(b, b.first, b.n);
    return {{all.mean, T{}, all.m2, a.n + b.n}};
  }
}
template<class T> __device__ __forceinline__ twice<T> mean_of(Deviations<T> s, T first, i64 n) {
  return n == 0 ? to<twice<T>>((double)NAN) : moments(s, first, n).mean;
}
__device__ __forceinline__ double spread(double m2, double n, double correction) {
  const double freedom = n - correction;
  return m2 / (freedom > 0 ? freedom : 0.0);
}
__device__ __forceinline__ double norm_lift(double x, double p) {
  return p == 0 ? (double)(x != 0) : p == 1 || p == INF || p == -INF ? x : p == 2 ? x * x : pow(x, p);
}
__device__ __forceinline__ double norm_join(double a, double b, double p) {
  return p == INF ? greater(a, b) : p == -INF ? lesser(a, b) : a + b;
}
__device__ __forceinline__ double norm_lower(double s, double p) {
  return p == 2 ? sqrt(s) : p == 0 || p == 1 || p == INF || p == -INF ? s : pow(s, 1 / p);
}
template<class A> __device__ __forceinline__ part<A> real_part(A x) { if constexpr (is_complex<A>) return x.re; else return x; }
template<class A> struct LogSum { part<A> top; A sum; };
template<class A> __device__ __forceinline__ A weighed(A x, part<A> by) { if constexpr (is_complex<A>) return scaled(x, by); else return x * by; }
template<class A> __device__ __forceinline__ LogSum<A> operator+(LogSum<A> a, LogSum<A> b) {
  const part<A> m = greater(a.top, b.top);
  return {m, weighed(a.sum, a.top == m ? part<A>(1) : exp_(a.top - m)) + weighed(b.sum, b.top == m ? part<A>(1) : exp_(b.top - m))};
}
template<class A> __device__ __forceinline__ LogSum<A> log_lift(A x) {
  if constexpr (is_complex<A>) return {x.re, exp_(A{0, x.im})};
  else return {x, 1};
}
template<class A> __device__ __forceinline__ A log_lower(LogSum<A> s) {
  const A l = log_(s.sum);
  if constexpr (is_complex<A>) return {l.re + s.top, l.im};
  else return l + s.top;
}
