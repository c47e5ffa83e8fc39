// Instructions of compute capability 9.0 (sm_90a): products of a warpgroup, which is four warps, and barriers in shared
// memory. Needs tensor_cores.cuh.
//
// Tiles in shared memory consist of panels of 64 columns, which are 128 bytes, and begin at multiples of 1024 bytes. The
// 16 bytes number c of row r of a panel lie at 128 r + 16 (c ^ r % 8), so that the rows of a matrix are in different banks.

extern __shared__ __align__(1024) char room[];  // as much as the launch asks for

typedef u64 Tile;  // what the instructions know of a tile
// panels: bytes from a panel to the next. Eight rows are 1024 bytes.
__device__ __forceinline__ Tile tile_at(Shared start, int panels) {
  return (u64)(start >> 4) | (u64)(panels >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ Tile moved(Tile tile, int bytes) { return tile + (bytes >> 4); }

// Both begin a product in the background, of 64 rows and as many columns as d has. The thread of lane 4 g + t in warp w has
// of d rows 16 w + g (first two) and 16 w + g + 8, at columns 8 n + 2 t and 8 n + 2 t + 1, in d[4 n] to d[4 n + 3].
// d = a b^T, or d += a b^T: of 16 columns of two tiles. `turned`: d += a b, of a as `multiply` takes it and 16 rows of a tile.
#define WARPGROUP_PRODUCTS(X, TYPES, N, REGISTERS, SUMS, I0, I1, I2, I3, I4)                                            \
  __device__ __forceinline__ void begin_product(X, float (&d)[N / 2], Tile a, Tile b, bool add) {                       \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #I2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES     \
        " {" REGISTERS "}, %" #I0 ", %" #I1 ", p, 1, 1, 0, 0;}" : SUMS : "l"(a), "l"(b), "r"((int)add) : "memory");     \
  }                                                                                                                     \
  __device__ __forceinline__ void begin_product_turned(X, float (&d)[N / 2], const u32 (&a)[4], Tile b) {               \
    asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {"       \
        REGISTERS "}, {%" #I0 ",%" #I1 ",%" #I2 ",%" #I3 "}, %" #I4 ", p, 1, 1, 1;}"                                    \
        : SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");                                        \
  }
#define SUMS8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),            \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define REGISTERS8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define REGISTERS16 REGISTERS8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define SUMS16 SUMS8(0), SUMS8(8)
#define REGISTERS24 REGISTERS16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define SUMS24 SUMS16, SUMS8(16)
#define REGISTERS32 REGISTERS24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define SUMS32 SUMS24, SUMS8(24)
#define REGISTERS40 REGISTERS32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define SUMS40 SUMS32, SUMS8(32)
#define REGISTERS48 REGISTERS40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define SUMS48 SUMS40, SUMS8(40)
#define REGISTERS56 REGISTERS48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define SUMS56 SUMS48, SUMS8(48)
#define REGISTERS64 REGISTERS56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS64 SUMS56, SUMS8(56)
WARPGROUP_PRODUCTS(half, "f16.f16", 16, REGISTERS8, SUMS8(0), 8, 9, 10, 11, 12)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 16, REGISTERS8, SUMS8(0), 8, 9, 10, 11, 12)
WARPGROUP_PRODUCTS(half, "f16.f16", 32, REGISTERS16, SUMS16, 16, 17, 18, 19, 20)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 32, REGISTERS16, SUMS16, 16, 17, 18, 19, 20)
WARPGROUP_PRODUCTS(half, "f16.f16", 48, REGISTERS24, SUMS24, 24, 25, 26, 27, 28)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 48, REGISTERS24, SUMS24, 24, 25, 26, 27, 28)
WARPGROUP_PRODUCTS(half, "f16.f16", 64, REGISTERS32, SUMS32, 32, 33, 34, 35, 36)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 64, REGISTERS32, SUMS32, 32, 33, 34, 35, 36)
WARPGROUP_PRODUCTS(half, "f16.f16", 80, REGISTERS40, SUMS40, 40, 41, 42, 43, 44)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 80, REGISTERS40, SUMS40, 40, 41, 42, 43, 44)
WARPGROUP_PRODUCTS(half, "f16.f16", 96, REGISTERS48, SUMS48, 48, 49, 50, 51, 52)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 96, REGISTERS48, SUMS48, 48, 49, 50, 51, 52)
WARPGROUP_PRODUCTS(half, "f16.f16", 112, REGISTERS56, SUMS56, 56, 57, 58, 59, 60)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 112, REGISTERS56, SUMS56, 56, 57, 58, 59, 60)
WARPGROUP_PRODUCTS(half, "f16.f16", 128, REGISTERS64, SUMS64, 64, 65, 66, 67, 68)
WARPGROUP_PRODUCTS(bf16, "bf16.bf16", 128, REGISTERS64, SUMS64, 64, 65, 66, 67, 68)

// Before products: what this thread wrote to their registers is there.
__device__ __forceinline__ void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products since the last call are a group.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int LEFT> __device__ __forceinline__ void await_products() {  // all groups but the last LEFT
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// The compiler must not move uses of these registers to before this, or give them to others.
template<int N> __device__ __forceinline__ void hold(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}
template<int N> __device__ __forceinline__ void hold(u32 (&x)[N][4]) {
#pragma unroll
  for (int i = 0; i < 4 * N; ++i) asm volatile("" : "+r"(x[i / 4][i % 4]) :: "memory");
}

// What x, which is not negative, is computed from is computed before what follows: the assembler moves all else behind waits.
__device__ __forceinline__ void settle(float x, Shared unused) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}" :: "f"(x), "r"(unused) : "memory");
}

// Between the writing of shared memory by threads and products that read it.
__device__ __forceinline__ void fence_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void store16(Shared to, const u32 (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" :: "r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// A barrier of 8 bytes opens when `count` threads have arrived, and closes again; `round`, 0 or 1, is that of its last bit.
__device__ __forceinline__ void make_barrier(Shared barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(Shared barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_after_copies(Shared barrier) {  // when this thread's copies have come
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void await(Shared barrier, u32 round) {  // until it has opened in this round
  u32 open;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(open) : "r"(barrier), "r"(round) : "memory");
  } while (!open);
}
// Barrier `id`, 1 to 15, opens when COUNT threads have called one of these; only callers of the first wait.
template<int COUNT> __device__ __forceinline__ void await_turn(int id) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "n"(COUNT) : "memory");
}
template<int COUNT> __device__ __forceinline__ void give_turn(int id) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "n"(COUNT) : "memory");
}

// Registers of each thread of this warpgroup from here on.
template<int N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template<int N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
