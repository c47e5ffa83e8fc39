// The largest or smallest elements of rows, in order. Of equal elements the first ones count; NaN is the largest.

template<bool LARGEST, class T> static inline bool precedes(T a, T b) {
  if (LARGEST) return (a > b) | ((a != a) & (b == b));
  return (a < b) | ((a == a) & (b != b));
}

struct TopPlan { i64 rows, n, count; };

// Keeps the best elements in order. Most of a row is no better than the last of them, which is tested STEP at a time.
template<bool LARGEST, class T> static void top_of_row(i64 n, i64 count, const T* x, T* values, i64* places) {
  constexpr i64 STEP = 16;
  i64 kept = 0;
  const auto insert = [&](T value, i64 place) {
    i64 at = kept < count ? kept++ : count - 1;
    for (; at > 0 && precedes<LARGEST>(value, values[at - 1]); --at) {
      values[at] = values[at - 1];
      places[at] = places[at - 1];
    }
    values[at] = value;
    places[at] = place;
  };
  i64 i = 0;
  for (; i < count; ++i) insert(x[i], i);
  for (; i + STEP <= n; i += STEP) {
    const T last = values[count - 1];
    int better = 0;
    for (i64 j = 0; j < STEP; ++j) better |= precedes<LARGEST>(x[i + j], last);
    if (!better) continue;
    for (i64 j = i; j < i + STEP; ++j)
      if (precedes<LARGEST>(x[j], values[count - 1])) insert(x[j], j);
  }
  for (; i < n; ++i)
    if (precedes<LARGEST>(x[i], values[count - 1])) insert(x[i], i);
}
template<bool LARGEST, class T> static void top_of_rows(const TopPlan& plan, const i64* words) {
  T* values = (T*)words[0];
  i64* places = (i64*)words[1];
  const T* x = (const T*)words[2];
  for (i64 r = 0; r < plan.rows; ++r, x += plan.n, values += plan.count, places += plan.count)
    top_of_row<LARGEST>(plan.n, plan.count, x, values, places);
}
#define EXPORT_TOP(T) \
  EXPORT void largest_##T(const TopPlan* plan, const i64* words) { top_of_rows<true, T>(*plan, words); } \
  EXPORT void smallest_##T(const TopPlan* plan, const i64* words) { top_of_rows<false, T>(*plan, words); }
EXPORT_TOP(float) EXPORT_TOP(double) EXPORT_TOP(i32) EXPORT_TOP(i64) EXPORT_TOP(i16) EXPORT_TOP(i8) EXPORT_TOP(u8)
