// What warpgroups.cuh's functions do, lane by lane. Products are computed at once.
alignas(1024) static char room[227 << 10];

struct Tile { Shared start; int panels; };
static Tile tile_at(Shared start, int panels) { return {start, panels}; }
static Tile moved(Tile tile, int bytes) { return {tile.start + bytes, tile.panels}; }

// The element `bytes` from the start of a tile, where the address says how the 16 bytes of a row are permuted.
template<class X> static float element_of(const Tile& tile, int bytes) {
  const long at = tile.start - room + bytes;
  return widen(*(const X*)(room + (at ^ (at >> 7 & 7) << 4)));
}

template<class X, int N> static void begin_product(X, float (&d)[N], const Tile& a, const Tile& b, bool add) {
  const int g = emulation::lane() / 4, t = emulation::lane() % 4, warp = emulation::current / 32 % 4;
  for (int i = 0; i < N; ++i) {
    const int row = 16 * warp + g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += element_of<X>(a, row * 128 + k * 2) * element_of<X>(b, column * 128 + k * 2);
    d[i] = add ? d[i] + sum : sum;
  }
}

template<class X, int N> static void begin_product_turned(X, float (&d)[N], const u32 (&a)[4], const Tile& b) {
  struct Words { u32 a[4]; } mine = {{a[0], a[1], a[2], a[3]}};
  const int g = emulation::lane() / 4, t = emulation::lane() % 4;
  float rows[2][16];
  for (int k = 0; k < 16; ++k) {
    const Words words = __shfl_sync(~0u, mine, g * 4 + k % 8 / 2);
    for (int u = 0; u < 2; ++u) rows[u][k] = element<X>(words.a[k / 8 * 2 + u], k % 2);
  }
  for (int i = 0; i < N; ++i) {
    const int column = i / 4 * 8 + 2 * t + i % 2;
    for (int k = 0; k < 16; ++k)
      d[i] += rows[i / 2 % 2][k] * element_of<X>(b, column / 64 * b.panels + k * 128 + column % 64 * 2);
  }
}

static void fence_registers() {}
static void end_products() {}
template<int LEFT> static void await_products() { __syncwarp(); }  // of aligned lanes
template<class A> static void hold(A&) {}
static void settle(float, Shared) {}
static void fence_writes() {}
static void store16(Shared to, const u32 (&x)[4]) {
  if ((u64)to % 16) abort();
  memcpy(to, x, 16);
}

struct EmulatedBarrier { u16 count, left; u32 round; };
static void make_barrier(Shared barrier, int count) { *(EmulatedBarrier*)barrier = {(u16)count, (u16)count, 0}; }
static void arrive(Shared barrier) {
  EmulatedBarrier& b = *(EmulatedBarrier*)barrier;
  ++emulation::progress;
  if (--b.left == 0) { b.left = b.count; ++b.round; }
}
static void arrive_after_copies(Shared barrier) { arrive(barrier); }
static void await(Shared barrier, u32 round) {
  while (((EmulatedBarrier*)barrier)->round % 2 == round % 2) emulation::yield();
}
static emulation::Barrier turns[16];
template<int COUNT> static void await_turn(int id) { emulation::wait(turns[id], COUNT); }
template<int COUNT> static void give_turn(int id) {
  ++emulation::progress;
  if (++turns[id].waiting == COUNT) emulation::open(turns[id]);
}
template<int N> static void fewer_registers() {}
template<int N> static void more_registers() {}
