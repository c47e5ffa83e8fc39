// softmax, normalization of rows and their gradients: rows of contiguous elements, in two or three passes over a row in
// the cache. S is the type in memory, T that of the computation.

static_assert(LANES == 64, "sums of rows");

// A sum in a fixed order: 64 lanes, joined by halves; of less than 8 elements one after the other, as NumPy does, so that
// the same rows of huge numbers overflow. `value(i)` is an element.
template<class T, class F> static inline T lane_sum(i64 n, F value) {
  if (n < 8) {
    T sum = T(0);
    for (i64 i = 0; i < n; ++i) sum += value(i);
    return sum;
  }
  T lane[LANES] = {};
  i64 i = 0;
  for (; i + LANES <= n; i += LANES) {
    INDEPENDENT for (i64 j = 0; j < LANES; ++j) lane[j] += value(i + j);
  }
  for (i64 j = 0; i + j < n; ++j) lane[j] += value(i + j);
  for (i64 half = LANES / 2; half; half /= 2)
    for (i64 j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}
template<class T> static inline T lane_most(i64 n, const T* x) {
  T lane[LANES];
  for (i64 j = 0; j < LANES; ++j) lane[j] = (T)-INF;
  i64 i = 0;
  for (; i + LANES <= n; i += LANES) {
    INDEPENDENT for (i64 j = 0; j < LANES; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  for (i64 j = 0; i + j < n; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  for (i64 half = LANES / 2; half; half /= 2)
    for (i64 j = 0; j < half; ++j) lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
  return lane[0];
}

template<class S, class T> static inline const T* row_of(const void* base, i64 row, i64 n, T* buffer) {
  const S* x = (const S*)base + row * n;
  if constexpr (same<S, T>) return x;
  else { convert<S, T>(n, x, buffer); return buffer; }
}
template<class S, class T> static inline T* target_of(void* base, i64 row, i64 n, T* buffer) {
  if constexpr (same<S, T>) return (T*)base + row * n;
  else return buffer;
}
template<class S, class T> static inline void finish_row(const T* from, void* base, i64 row, i64 n) {
  if constexpr (!same<S, T>) convert<T, S>(n, from, (S*)base + row * n);
}

template<class S, class T> static inline void to_memory(i64 n, const T* from, void* out) {
  if constexpr (same<S, T>) memcpy(out, from, n * sizeof(T));
  else convert<T, S>(n, from, out);
}

// words: addresses of outputs and inputs, which the kernel names; buffers: room for 8 rows of T.
#define ROWS(name) \
  template<class S, class T> static void name(const i64* words, i64 rows, i64 n, double eps, i64 given, T* buffers)

ROWS(softmax) {
  for (i64 r = 0; r < rows; ++r) {
    const T* x = row_of<S, T>((const void*)words[1], r, n, buffers);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + n);
    const T most = lane_most(n, x);
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = exp_(x[i] - most);
    const T sum = lane_sum<T>(n, [=](i64 i) { return y[i]; });
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] /= sum;
    finish_row<S, T>(y, (void*)words[0], r, n);
  }
}
ROWS(log_softmax) {
  for (i64 r = 0; r < rows; ++r) {
    const T* x = row_of<S, T>((const void*)words[1], r, n, buffers);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + n);
    T* grown = buffers + 2 * n;
    const T most = lane_most(n, x);
    INDEPENDENT for (i64 i = 0; i < n; ++i) { const T less = x[i] - most; y[i] = less; grown[i] = exp_(less); }
    const T log_sum = log_(lane_sum<T>(n, [=](i64 i) { return grown[i]; }));
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] -= log_sum;
    finish_row<S, T>(y, (void*)words[0], r, n);
  }
}
ROWS(softmax_backward) {
  for (i64 r = 0; r < rows; ++r) {
    const T* grad = row_of<S, T>((const void*)words[1], r, n, buffers);
    const T* out = row_of<S, T>((const void*)words[2], r, n, buffers + n);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + 2 * n);
    const T sum = lane_sum<T>(n, [=](i64 i) { return grad[i] * out[i]; });
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = grad[i] * out[i] - out[i] * sum;
    finish_row<S, T>(y, (void*)words[0], r, n);
  }
}
ROWS(log_softmax_backward) {
  for (i64 r = 0; r < rows; ++r) {
    const T* grad = row_of<S, T>((const void*)words[1], r, n, buffers);
    const T* out = row_of<S, T>((const void*)words[2], r, n, buffers + n);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + 2 * n);
    const T sum = lane_sum<T>(n, [=](i64 i) { return grad[i]; });
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = grad[i] - exp_(out[i]) * sum;
    finish_row<S, T>(y, (void*)words[0], r, n);
  }
}

template<class T> struct RowMoments { T mean, scale; };
template<bool CENTERED, class T> static inline RowMoments<T> moments_of_row(i64 n, const T* x, double eps) {
  const T mean = CENTERED ? lane_sum<T>(n, [=](i64 i) { return x[i]; }) / (T)n : T(0);
  const T square = lane_sum<T>(n, [=](i64 i) { const T away = x[i] - mean; return away * away; }) / (T)n;
  return {mean, T(1) / sqrt_(square + (T)eps)};
}
// given: 1 weight, 2 bias. words: out, x, then those.
template<bool CENTERED, class S, class T>
static void normalize_rows(const i64* words, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  const T* weight = given & 1 ? row_of<S, T>((const void*)words[2], 0, n, buffers + 2 * n) : 0;
  const T* bias = given & 2 ? row_of<S, T>((const void*)words[2 + (given & 1)], 0, n, buffers + 3 * n) : 0;
  for (i64 r = 0; r < rows; ++r) {
    const T* x = row_of<S, T>((const void*)words[1], r, n, buffers);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + n);
    const RowMoments<T> m = moments_of_row<CENTERED>(n, x, eps);
    if (weight && bias) {
      INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.scale * weight[i] + bias[i];
    } else if (weight) {
      INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.scale * weight[i];
    } else {
      INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.scale;
      if (bias) INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] += bias[i];
    }
    finish_row<S, T>(y, (void*)words[0], r, n);
  }
}
// words: gradients of x and, if given, of weight and bias; then grad, x and the weight.
template<bool CENTERED, class S, class T>
static void normalize_rows_backward(const i64* words, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  const i64 outs = 1 + (given & 1) + (given >> 1 & 1);
  const T* weight = given & 1 ? row_of<S, T>((const void*)words[outs + 2], 0, n, buffers + 5 * n) : 0;
  T* by_weight = buffers + 3 * n;
  T* by_bias = buffers + 4 * n;
  for (i64 i = 0; i < n; ++i) by_weight[i] = by_bias[i] = T(0);
  T *all_weight = buffers + 6 * n, *all_bias = buffers + 7 * n;
  for (i64 i = 0; i < n; ++i) all_weight[i] = all_bias[i] = T(0);
  for (i64 r = 0; r < rows; ++r) {
    const T* grad = row_of<S, T>((const void*)words[outs], r, n, buffers);
    const T* x = row_of<S, T>((const void*)words[outs + 1], r, n, buffers + n);
    T* y = target_of<S, T>((void*)words[0], r, n, buffers + 2 * n);
    const RowMoments<T> m = moments_of_row<CENTERED>(n, x, eps);
    const auto scaled = [=](i64 i) { return weight ? grad[i] * weight[i] : grad[i]; };
    const auto away = [=](i64 i) { return (x[i] - m.mean) * m.scale; };
    const T along = lane_sum<T>(n, [=](i64 i) { return scaled(i) * away(i); }) / (T)n;
    const T middle = CENTERED ? lane_sum<T>(n, scaled) / (T)n : T(0);
    if (given & 1) INDEPENDENT for (i64 i = 0; i < n; ++i) by_weight[i] += grad[i] * away(i);
    if (given & 2) INDEPENDENT for (i64 i = 0; i < n; ++i) by_bias[i] += grad[i];
    INDEPENDENT for (i64 i = 0; i < n; ++i) y[i] = (scaled(i) - away(i) * along - middle) * m.scale;
    finish_row<S, T>(y, (void*)words[0], r, n);
    if (r % LANES == LANES - 1 || r == rows - 1) {  // sums of sums, which are more precise
      INDEPENDENT for (i64 i = 0; i < n; ++i) {
        all_weight[i] += by_weight[i]; all_bias[i] += by_bias[i];
        by_weight[i] = by_bias[i] = T(0);
      }
    }
  }
  if (given & 1) to_memory<S, T>(n, all_weight, (void*)words[1]);
  if (given & 2) to_memory<S, T>(n, all_bias, (void*)words[outs - 1]);
}

template<class S, class T> static void layer_norm(const i64* w, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  normalize_rows<true, S, T>(w, rows, n, eps, given, buffers);
}
template<class S, class T> static void rms_norm(const i64* w, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  normalize_rows<false, S, T>(w, rows, n, eps, given, buffers);
}
template<class S, class T>
static void layer_norm_backward(const i64* w, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  normalize_rows_backward<true, S, T>(w, rows, n, eps, given, buffers);
}
template<class S, class T>
static void rms_norm_backward(const i64* w, i64 rows, i64 n, double eps, i64 given, T* buffers) {
  normalize_rows_backward<false, S, T>(w, rows, n, eps, given, buffers);
}

// Adds the rows of `source` to the rows `places` of `out`, one after the other.
struct AddedRows { i64 outer, rows, count, width; };
template<class T> static void add_rows(const AddedRows& plan, T* out, const i64* places, const T* source) {
  const i64 width = plan.width, count = plan.count;  // compilers must not expect that stores change them
  for (i64 o = 0; o < plan.outer; ++o, out += plan.rows * width)
    for (i64 k = 0; k < count; ++k, source += width) {
      T* row = out + places[k] * width;
      INDEPENDENT for (i64 j = 0; j < width; ++j) row[j] += source[j];
    }
}
#define EXPORT_ADDED_ROWS(T) \
  EXPORT void add_rows_##T(const AddedRows* plan, const i64* words) { \
    add_rows(*plan, (T*)words[0], (const i64*)words[1], (const T*)words[2]); \
  }
EXPORT_ADDED_ROWS(float) EXPORT_ADDED_ROWS(double)

struct RowsPlan { i64 rows, n, given; double eps; };

#define EXPORT_ROWS(name, S, T) \
  EXPORT i64 rows_##name##_##S(const RowsPlan* plan, const i64* words) { \
    T* buffers = (T*)malloc((plan->n + 1) * 8 * sizeof(T)); \
    if (!buffers) return 1; \
    name<S, T>(words, plan->rows, plan->n, plan->eps, plan->given, buffers); \
    free(buffers); \
    return 0; \
  }
#define EXPORT_ALL(name) EXPORT_ROWS(name, float, float) EXPORT_ROWS(name, half, float) EXPORT_ROWS(name, bf16, float)
EXPORT_ALL(softmax) EXPORT_ALL(log_softmax) EXPORT_ALL(softmax_backward) EXPORT_ALL(log_softmax_backward)
EXPORT_ALL(layer_norm) EXPORT_ALL(rms_norm) EXPORT_ALL(layer_norm_backward) EXPORT_ALL(rms_norm_backward)
