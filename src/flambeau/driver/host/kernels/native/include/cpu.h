// What prelude.cuh needs where a C++ compiler for CPUs compiles it, and functions of float that compilers vectorize:
// no branches, no tables, no calls. Each is a polynomial on a small interval. Their errors are at most 2 units in the
// last place; tests/native/test_functions.py compares them with double precision.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#undef NAN

static inline int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
static inline unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
static inline float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }
static inline float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static inline long long __double_as_longlong(double x) { long long r; memcpy(&r, &x, 8); return r; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }

// -- float16 -------------------------------------------------------------------------------------------------

static inline float half_to_float(unsigned short h) {
  const unsigned magnitude = (h & 0x7fffu) << 13;
  const unsigned finite = __float_as_uint(__uint_as_float(magnitude) * 0x1p112f);  // the exponents' biases differ by 112
  const unsigned other = magnitude | 0x7f800000u | (magnitude > 0x0f800000u ? 0x400000u : 0u);
  return __uint_as_float((magnitude >= 0x0f800000u ? other : finite) | (h & 0x8000u) << 16);
}
static inline unsigned short float_to_half(float x) {  // to nearest, ties to even
  const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
  const unsigned normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
  const unsigned small = __float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u;  // 0.5 has float16's smallest step
  const unsigned finite = a < 113u << 23 ? small : normal;
  const unsigned nan = 0x7e00u | (a >> 13 & 0x3ffu);
  return (unsigned short)(sign | (a > 0x7f800000u ? nan : a >= 0x477ff000u ? 0x7c00u : finite));
}

// -- functions of float -----------------------------------------------------------------------------------------

static inline float vector_rint(float x) { return x + 12582912.0f - 12582912.0f; }  // of numbers below 2^22
static inline float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

// Horner's scheme: horner(x, c, b, a) is c x^2 + b x + a. CPUs without fused multiplication and addition round twice.
#if defined(__FMA__) || !(defined(__x86_64__) || defined(__i386__))
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
static inline float fused(float a, float b, float c) { return a * b + c; }
#endif
static inline float horner(float x, float a) { return a; }
template<class... C> static inline float horner(float x, float a, float b, C... rest) {
  return horner(x, fused(a, x, b), rest...);
}

// exp(x) = 2^n exp(r) with |r| <= log(2) / 2. 2^n is multiplied in two steps: it may be subnormal or 2^128.
static inline float reduced(float x, float n) { return fused(n, 2.12194440e-4f, fused(n, -0.693359375f, x)); }
static inline float vector_expf(float x) {
  const float held = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  const float n = vector_rint(held * 1.44269504f), r = reduced(held, n);
  const float q = horner(r, 0.00138145394f, 0.00836874545f, 0.041668389f, 0.166665211f, 0.49999994f);
  const float y = fused(q, r * r, r) + 1.0f;
  const int k = (int)(x != x ? 0.0f : n), half = k >> 1;
  return y * power_of_two(half) * power_of_two(k - half);
}
static inline float vector_exp2f(float x) {
  const float held = x > 129.0f ? 129.0f : x < -151.0f ? -151.0f : x;
  const float n = vector_rint(held), r = held - n;
  const float y = horner(r, 0.000153532572f, 0.00133990031f, 0.00961843878f, 0.0555033199f, 0.240226477f, 0.693147182f, 1.0f);
  const int k = (int)(x != x ? 0.0f : n), half = k >> 1;
  return y * power_of_two(half) * power_of_two(k - half);
}
// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), computed with half of 2^n, which may be 2^128.
static inline float vector_expm1f(float x) {
  const float held = x > 89.0f ? 89.0f : x < -30.0f ? -30.0f : x;
  const float n = vector_rint(held * 1.44269504f), r = reduced(held, n);
  const float q = horner(r, 0.000198458802f, 0.00139406684f, 0.00833338965f, 0.0416663587f, 0.166666657f, 0.5f);
  const float p = fused(q, r * r, r), h = power_of_two((int)(x != x ? 0.0f : n) - 1);
  const float y = 2.0f * fused(h, p, h - 0.5f);
  return n == 0.0f ? (x == 0.0f ? x : p) : y;
}
// log(x) = e log(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
static inline float log_of_fraction(float f) {  // without f itself
  const float q = horner(f, 0.0674771667f, -0.116775118f, 0.118887015f, -0.124053411f, 0.142194524f, -0.166680053f,
                         0.200021237f, -0.250000089f, 0.333333135f);
  const float s = f * f;
  return fused(q * f, s, -0.5f * s);
}
struct Parts { float f, e; };
static inline Parts parts_of(float x) {  // x = 2^e (1 + f), of positive finite numbers
  const bool small = x < 0x1p-126f;
  const int bits = __float_as_int(small ? x * 0x1p23f : x) - 0x3f3504f3;
  const float m = __int_as_float((bits & 0x7fffff) + 0x3f3504f3);
  return {m - 1.0f, (float)(bits >> 23) - (small ? 23.0f : 0.0f)};
}
static inline float log_or_special(float x, float y) {
  const float other = x < 0.0f ? __int_as_float(0x7fc00000) : x == 0.0f ? -__builtin_inff() : x;
  return x > 0.0f && x < __builtin_inff() ? y : other;
}
static inline float vector_logf(float x) {
  const Parts p = parts_of(x);
  const float y = fused(p.e, 0.693359375f, fused(p.e, -2.12194440e-4f, log_of_fraction(p.f)) + p.f);
  return log_or_special(x, y);
}
static inline float vector_log2f(float x) {
  const Parts p = parts_of(x);
  const float tail = log_of_fraction(p.f);
  // 1.44269504 = 1 + 0.44269504, so that the large part is multiplied without an error
  return log_or_special(x, fused(tail, 0.442695041f, p.f * 0.442695041f) + tail + p.f + p.e);
}
static inline float vector_log1pf(float x) {
  const float u = 1.0f + x, lost = u < __builtin_inff() ? (x - (u - 1.0f)) / u : 0.0f;
  const Parts p = parts_of(u);
  const float y = fused(p.e, 0.693359375f, log_of_fraction(p.f) + fused(p.e, -2.12194440e-4f, lost) + p.f);
  return x == 0.0f ? x : u > 0.0f && u < __builtin_inff() ? y : log_or_special(u, y);
}
static inline float vector_tanhf(float x) {
  const float a = fabsf(x), s = x * x, t = vector_expm1f(2.0f * (a > 10.0f ? 10.0f : a));
  const float p = horner(s, 0.00212622574f, -0.00815955363f, 0.0216936804f, -0.053945519f, 0.133331969f, -0.333333313f);
  return x != x ? x : copysignf(a < 0.625f ? fused(a, s * p, a) : t / (t + 2.0f), x);
}
// erf(x) = x + x p(x^2), and beyond 0.92 1 - exp(-x - x q(x)).
static inline float vector_erff(float x) {
  const float a = fabsf(x), s = x * x, t = a > 4.0f ? 4.0f : a;
  const float p = horner(s, 8.31677462e-05f, -0.000813001243f, 0.00519990688f, -0.0268589407f, 0.112836875f,
                         -0.376126319f, 0.128379166f);
  const float q = horner(t, 1.1231341e-05f, -0.000322804204f, 0.00364246033f, -0.0237620659f, 0.106236883f,
                         0.635151327f, 0.12864849f);
  const float far = copysignf(1.0f - vector_expf(-fused(q, t, t)), x);
  return a < 0.92f ? fused(p, x, x) : x != x ? x : far;
}

#define expf vector_expf
#define exp2f vector_exp2f
#define expm1f vector_expm1f
#define logf vector_logf
#define log2f vector_log2f
#define log1pf vector_log1pf
#define tanhf vector_tanhf
#define erff vector_erff
static inline float erfinvf(float x) { return x; }  // never called: no kernel is built from it
static inline double erfinv(double x) { return x; }
