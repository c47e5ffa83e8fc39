// CUDA C++ on a CPU: what a kernel's source asks of nvcc, and `emulate`, which runs it. Each thread of a block is a
// fiber that runs until it must wait; blocks run one after the other, in their order. A barrier that never opens, a
// vector access that is not aligned and an index out of a static array stop the run. See tests/gpu/emulated.py.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>
#include <utility>

// Two of immintrin.h, which is three fourths of what every compilation would read.
typedef short emulated_halves __attribute__((vector_size(16)));
typedef float emulated_floats __attribute__((vector_size(16)));
static inline float _cvtsh_ss(unsigned short x) { return __builtin_ia32_vcvtph2ps((emulated_halves){(short)x})[0]; }
static inline unsigned short _cvtss_sh(float x, int) {
  return __builtin_ia32_vcvtps2ph((emulated_floats){x}, 0)[0];
}

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#undef NAN
#define __logf fast_logf
#define __expf fast_expf
#define __sincosf fast_sincosf

namespace emulation {
struct Place { unsigned x, y, z; };
}
static emulation::Place threadIdx, blockIdx, blockDim, gridDim;

// -- threads as fibers ---------------------------------------------------------------------------------------

namespace emulation {
constexpr int MOST = 1024;
constexpr size_t STACK = 256 << 10;

struct Barrier { int waiting; long opened; };
struct Warp { Barrier barrier; unsigned alive, mask; alignas(16) char slots[32][32]; };
struct Fiber { void* stack_pointer; char* stack; bool done; };

inline Fiber fibers[MOST];  // of all programs of a process: stacks of each would add up to more than a fork may copy
static Warp warps[MOST / 32];
static Barrier block;
static void* scheduler;
static int current, alive;
static long progress;
static void (*body)();

extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static void yield() { emulation_switch(&fibers[current].stack_pointer, scheduler); }

static void open(Barrier& b) { b.waiting = 0; ++b.opened; ++progress; }

static void wait(Barrier& b, int expected) {
  const long before = b.opened;
  if (++b.waiting == expected) return open(b);
  while (b.opened == before) yield();
}

static void finish() {
  Warp& warp = warps[current / 32];
  warp.alive &= ~(1u << current % 32);
  --alive;
  ++progress;
  fibers[current].done = true;
  if (alive && block.waiting == alive) open(block);
  if (warp.barrier.waiting && warp.barrier.waiting == __builtin_popcount(warp.mask & warp.alive)) open(warp.barrier);
}

static void entry() {
  body();
  finish();
  yield();
}

static void warp_wait(unsigned mask) {
  Warp& warp = warps[current / 32];
  if (warp.barrier.waiting && warp.mask != mask) { fprintf(stderr, "lanes of a warp wait with several masks\n"); abort(); }
  warp.mask = mask;
  wait(warp.barrier, __builtin_popcount(mask & warp.alive));
}

static Place place_of(unsigned t) {
  return {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
}

// One block; threads take turns forwards, backwards or in a shuffled order. False: some wait for ever.
static bool run_block(int threads, int order) {
  static int turns[MOST];
  memset(warps, 0, sizeof warps);
  block = {};
  alive = threads;
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    if (!f.stack) f.stack = (char*)aligned_alloc(64, STACK);
    void** top = (void**)(f.stack + STACK - 64);
    *top = (void*)entry;
    for (int i = 1; i <= 6; ++i) top[-i] = 0;
    f.stack_pointer = top - 6;
    f.done = false;
    warps[t / 32].alive |= 1u << t % 32;
    turns[t] = order == 1 ? threads - 1 - t : t;
  }
  while (alive) {
    const long before = progress;
    if (order == 2)
      for (int t = threads - 1; t > 0; --t) std::swap(turns[t], turns[rand() % (t + 1)]);
    for (int i = 0; i < threads; ++i) {
      current = turns[i];
      if (fibers[current].done) continue;
      threadIdx = place_of(current);
      emulation_switch(&scheduler, fibers[current].stack_pointer);
    }
    if (progress == before) return false;
  }
  return true;
}

template<class T> static T exchanged(unsigned mask, T value, int source) {
  Warp& warp = warps[current / 32];
  static_assert(sizeof(T) <= 32, "a slot");
  memcpy(warp.slots[current % 32], &value, sizeof value);
  warp_wait(mask);
  T found;
  memcpy(&found, warp.slots[source], sizeof found);
  warp_wait(mask);
  return found;
}
static int lane() { return current % 32; }
static int within(int at, int width) { return (lane() & ~(width - 1)) + at; }
}  // namespace emulation

// -- what CUDA has -------------------------------------------------------------------------------------------

static inline void __syncthreads() { emulation::wait(emulation::block, emulation::alive); }
static inline int __syncthreads_or(int p) {
  static int any;
  if (p) any = 1;
  __syncthreads();
  const int found = any;
  __syncthreads();
  any = 0;
  __syncthreads();
  return found;
}
static inline int __syncthreads_count(int p) {
  static int count;
  if (p) ++count;
  __syncthreads();
  const int found = count;
  __syncthreads();
  count = 0;
  __syncthreads();
  return found;
}
static inline void __syncwarp(unsigned mask = ~0u) { emulation::warp_wait(mask); }
static inline void __threadfence() {}
static inline void __threadfence_system() {}
template<class T> static T __shfl_sync(unsigned m, T v, int from, int width = 32) {
  return emulation::exchanged(m, v, emulation::within(from & (width - 1), width));
}
template<class T> static T __shfl_xor_sync(unsigned m, T v, int d, int width = 32) {
  const int at = (emulation::lane() & (width - 1)) ^ d;
  return emulation::exchanged(m, v, at < width ? emulation::within(at, width) : emulation::lane());
}
template<class T> static T __shfl_up_sync(unsigned m, T v, int d, int width = 32) {
  const int at = (emulation::lane() & (width - 1)) - d;
  return emulation::exchanged(m, v, at >= 0 ? emulation::within(at, width) : emulation::lane());
}
template<class T> static T __shfl_down_sync(unsigned m, T v, int d, int width = 32) {
  const int at = (emulation::lane() & (width - 1)) + d;
  return emulation::exchanged(m, v, at < width ? emulation::within(at, width) : emulation::lane());
}
static inline unsigned __ballot_sync(unsigned m, int p) {
  unsigned found = 0;
  for (int i = 0; i < 32; ++i) {
    const int bit = __shfl_sync(m, p ? 1 : 0, i);
    if (m >> i & 1 && emulation::warps[emulation::current / 32].alive >> i & 1 && bit) found |= 1u << i;
  }
  return found;
}
static inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, !p) == 0; }

template<class T, class U> static T atomicAdd(T* at, U v) { const T old = *at; *at = old + v; return old; }
template<class T> static T atomicCAS(T* at, T was, T v) { const T old = *at; if (old == was) *at = v; return old; }
template<class T, class U> static T atomicMax(T* at, U v) { const T old = *at; if (old < (T)v) *at = v; return old; }
template<class T, class U> static T atomicMin(T* at, U v) { const T old = *at; if ((T)v < old) *at = v; return old; }
template<class T, class U> static T atomicOr(T* at, U v) { const T old = *at; *at = old | v; return old; }
template<class T> static T __ldcg(const T* p) { return *p; }
template<class T> static T __ldg(const T* p) { return *p; }

static inline int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
static inline unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
static inline float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }
static inline float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static inline long long __double_as_longlong(double x) { long long r; memcpy(&r, &x, 8); return r; }
static inline double __longlong_as_double(long long x) { double r; memcpy(&r, &x, 8); return r; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __logf(float x) { return logf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double erfinv(double) { abort(); }
static inline float erfinvf(float) { abort(); }
static inline void __sincosf(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
static inline void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
template<class A, class B> static auto max(A a, B b) { return a < b ? b : a; }
template<class A, class B> static auto min(A a, B b) { return b < a ? b : a; }
static inline long long clock64() { static long long now; return now += 100; }
