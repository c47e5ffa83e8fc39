// A tile of COUNT rows and D columns, by one warpgroup, to its place `to` for this thread, which brings 16 bytes of every
// 16th row of each panel, from `from` in its first row; of rows from `left` on zeros. `packed`: by copies in the background.
template<int COUNT, int D, class X> __device__ __forceinline__ void fetch(Shared to, const X* from, i64 step, int left, bool packed) {
  constexpr int PANELS = (D + 63) / 64;
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
#pragma unroll
  for (int p = 0; p < PANELS; ++p) {
    if (D % 64 && p == PANELS - 1 && chunk >= D % 64 / 8) break;
    const X* at = from + p * 64;
    const Shared target = to + p * COUNT * 128;
    if (packed) {
#pragma unroll
      for (int i = 0; i < COUNT / 16; ++i) {
        const bool inside = row + i * 16 < left;
        copy16(target + i * 2048, inside ? at : from, inside);
        at += 16 * step;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT / 16; ++i) {
        u32 words[4] = {};
        if (row + i * 16 < left)
          for (int e = 0; e < 4; ++e) words[e] = at[2 * e].bits | (u32)at[2 * e + 1].bits << 16;
        store16(target + i * 2048, words);
        at += 16 * step;
      }
    }
  }
}
