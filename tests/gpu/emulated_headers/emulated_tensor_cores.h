// What tensor_cores.cuh's functions do, lane by lane.
template<class X> static float element(u32 word, int at) { return widen(X{(u16)(word >> 16 * at)}); }

template<class X> static void multiply(X, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Words { u32 a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const int g = emulation::lane() / 4, t = emulation::lane() % 4;
  float sums[4] = {};
  for (int k = 0; k < 16; ++k) {
    const int from = k % 8 / 2, high = k / 8;
    const Words rows = __shfl_sync(~0u, mine, g * 4 + from);
    for (int e = 0; e < 2; ++e) {
      const Words column = __shfl_sync(~0u, mine, (2 * t + e) * 4 + from);
      const float b = element<X>(column.b[high], k % 2);
      sums[e] += element<X>(rows.a[2 * high], k % 2) * b;
      sums[2 + e] += element<X>(rows.a[2 * high + 1], k % 2) * b;
    }
  }
  for (int e = 0; e < 4; ++e) d[e] += sums[e];
}

template<class X> static u32 pair_of(X, float first, float second) {
  return to<X>(first).bits | (u32)to<X>(second).bits << 16;
}

typedef char* Shared;
static Shared shared_address(void* p) { return (Shared)p; }

static void load_words(u32 (&r)[4], Shared row, bool turned) {
  const int g = emulation::lane() / 4, t = emulation::lane() % 4;
  if ((u64)row % 16) abort();
  for (int m = 0; m < 4; ++m) {
    u32 word = 0;
    for (int e = 0; e < 2; ++e) {
      const int line = turned ? 2 * t + e : g, at = turned ? g : 2 * t + e;
      const u16* found = (const u16*)__shfl_sync(~0u, row, m * 8 + line);
      word |= (u32)found[at] << 16 * e;
    }
    r[m] = word;
  }
}
static void load_matrices(u32 (&r)[4], Shared row) { load_words(r, row, false); }
static void load_matrices_turned(u32 (&r)[4], Shared row) { load_words(r, row, true); }

static void copy16(Shared to, const void* from, bool inside) {
  if ((u64)to % 16 || (u64)from % 16) abort();
  if (inside) memcpy(to, from, 16); else memset(to, 0, 16);
}
static void copy4(Shared to, const void* from, bool inside) {
  if ((u64)to % 4 || (u64)from % 4) abort();
  if (inside) memcpy(to, from, 4); else memset(to, 0, 4);
}
static void queued() {}
template<int LEFT> static void arrived() {}
static float power_of_two(float x) { return exp2f(x); }
