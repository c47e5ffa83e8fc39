// Kernels of elements over operands of any layout. A kernel computes contiguous elements in the dtype of the computation.
// `run_elements` gives it ranges of memory where operands lie so, and otherwise blocks in the cache, to which elements are
// gathered and converted.

#define EXPORT extern "C" __attribute__((visibility("default")))
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
template<class A> static inline A word(i64 bits) { A x; memcpy(&x, &bits, sizeof x); return x; }

typedef void (*Kernel)(i64 n, void* out, const void* const* in, const i64* constants);
typedef void (*Convert)(i64 n, const void* in, void* out);

constexpr int DIMS = 8, OPERANDS = 9, STEPS = 4, CONSTANTS = 8, BLOCK = 1024;

struct Operand {
  i64 stride[DIMS];  // bytes, outermost first
  i64 itemsize;      // of an element in memory
  i64 scalar;        // passed by value: the word of the call is the value, not an address
  i64 uniform;       // one element for all of the innermost dimension, which the kernel takes as such
  i64 steps;         // number of conversions
  Convert step[STEPS];
};
struct Plan {
  i64 dims, size[DIMS];
  i64 inputs;
  Kernel kernel;     // null: the output is the first input, converted
  Operand operand[OPERANDS];  // the output, then the inputs
  i64 constants[CONSTANTS];
};

template<class A> static void gather_words(i64 n, const char* in, i64 stride, char* out) {
  A* to_ = (A*)out;
  for (i64 i = 0; i < n; ++i) to_[i] = *(const A*)(in + i * stride);
}
template<class A> static void scatter_words(i64 n, const char* in, char* out, i64 stride) {
  const A* from = (const A*)in;
  for (i64 i = 0; i < n; ++i) *(A*)(out + i * stride) = from[i];
}
static void gather(i64 n, const char* in, i64 stride, char* out, i64 itemsize) {
  switch (itemsize) {
    case 1: return gather_words<u8>(n, in, stride, out);
    case 2: return gather_words<u16>(n, in, stride, out);
    case 4: return gather_words<u32>(n, in, stride, out);
    default: return gather_words<u64>(n, in, stride, out);
  }
}
static void scatter(i64 n, const char* in, char* out, i64 stride, i64 itemsize) {
  switch (itemsize) {
    case 1: return scatter_words<u8>(n, in, out, stride);
    case 2: return scatter_words<u16>(n, in, out, stride);
    case 4: return scatter_words<u32>(n, in, out, stride);
    default: return scatter_words<u64>(n, in, out, stride);
  }
}

struct Buffers { alignas(64) char of[2][BLOCK * 8]; };

// Returns where n converted elements are: at `at` if they are there already.
static const char* loaded(const Operand& x, i64 n, const char* at, i64 stride, Buffers& buffers) {
  int k = 0;
  if (stride != x.itemsize && n > 1) {
    gather(n, at, stride, buffers.of[k], x.itemsize);
    at = buffers.of[k];
    k = 1;
  }
  for (i64 s = 0; s < x.steps; ++s, k ^= 1) {
    x.step[s](n, at, buffers.of[k]);
    at = buffers.of[k];
  }
  return at;
}

static void stored(const Operand& out, i64 n, const char* computed, char* at, i64 stride, Buffers& buffers) {
  const bool direct = stride == out.itemsize || n == 1;
  int k = 0;
  for (i64 s = 0; s < out.steps; ++s, k ^= 1) {
    char* next = direct && s == out.steps - 1 ? at : buffers.of[k];
    out.step[s](n, computed, next);
    computed = next;
  }
  if (!direct) scatter(n, computed, at, stride, out.itemsize);
}

static void run_line(const Plan& plan, i64 n, char* const* at, Buffers* buffers) {
  const int last = plan.dims - 1, inputs = (int)plan.inputs;
  const Operand& out = plan.operand[0];
  const void* in[OPERANDS];
  bool whole = out.steps == 0 && (out.stride[last] == out.itemsize || n == 1);
  for (int k = 1; k <= inputs; ++k) {
    const Operand& x = plan.operand[k];
    if (x.uniform) in[k - 1] = loaded(x, 1, at[k], 0, buffers[k]);
    else whole = whole && !x.steps && (x.stride[last] == x.itemsize || n == 1);
  }
  const i64 most = whole ? n : BLOCK;
  for (i64 start = 0; start < n; start += most) {
    const i64 m = n - start < most ? n - start : most;
    for (int k = 1; k <= inputs; ++k) {
      const Operand& x = plan.operand[k];
      if (!x.uniform) in[k - 1] = loaded(x, m, at[k] + start * x.stride[last], x.stride[last], buffers[k]);
    }
    char* target = at[0] + start * out.stride[last];
    if (!plan.kernel) {
      stored(out, m, (const char*)in[0], target, out.stride[last], buffers[0]);
      continue;
    }
    const bool direct = !out.steps && (out.stride[last] == out.itemsize || m == 1);
    char* computed = direct ? target : buffers[0].of[1];
    plan.kernel(m, computed, in, plan.constants);
    if (!direct) stored(out, m, computed, target, out.stride[last], buffers[0]);
  }
}

EXPORT void run_elements(const Plan* plan, const i64* words) {
  Buffers buffers[OPERANDS];
  const int operands = (int)plan->inputs + 1, outer = (int)plan->dims - 1;
  char* at[OPERANDS];
  int tensor = 1, scalar = 0;
  for (int k = 1; k < operands; ++k) tensor += !plan->operand[k].scalar;
  at[0] = (char*)words[0];
  for (int k = 1, t = 1; k < operands; ++k)
    at[k] = plan->operand[k].scalar ? (char*)&words[tensor + scalar++] : (char*)words[t++];
  i64 lines = 1, index[DIMS] = {0};
  for (int d = 0; d < outer; ++d) lines *= plan->size[d];
  for (i64 line = 0; line < lines; ++line) {
    run_line(*plan, plan->size[outer], at, buffers);
    for (int d = outer - 1; d >= 0; --d) {
      const bool again = ++index[d] == plan->size[d];
      const i64 steps = again ? 1 - plan->size[d] : 1;
      for (int k = 0; k < operands; ++k) at[k] += steps * plan->operand[k].stride[d];
      if (!again) break;
      index[d] = 0;
    }
  }
}

// -- copies that read along one dimension and write along another -----------------------------------------------------

struct TransposePlan {
  i64 dims, size[DIMS], from[DIMS], to[DIMS];  // strides in bytes, outermost first
  i64 row;       // the dimension along which the source is contiguous; along the last one the target is
  i64 itemsize;
};

constexpr i64 SIDE = 64;  // of a square that stays in the cache

template<class A> static void transpose_square(i64 rows, i64 columns, const char* from, i64 step, char* to, i64 row_step) {
  alignas(64) A square[SIDE][SIDE];
  for (i64 c = 0; c < columns; ++c) {
    const A* line = (const A*)(from + c * step);
    for (i64 r = 0; r < rows; ++r) square[r][c] = line[r];
  }
  for (i64 r = 0; r < rows; ++r) memcpy(to + r * row_step, square[r], columns * sizeof(A));
}
template<class A> static void transpose_matrix(const TransposePlan& plan, const char* from, char* to) {
  const i64 last = plan.dims - 1, rows = plan.size[plan.row], columns = plan.size[last];
  for (i64 r = 0; r < rows; r += SIDE)
    for (i64 c = 0; c < columns; c += SIDE)
      transpose_square<A>(least(SIDE, rows - r), least(SIDE, columns - c), from + r * sizeof(A) + c * plan.from[last],
                          plan.from[last], to + r * plan.to[plan.row] + c * sizeof(A), plan.to[plan.row]);
}
EXPORT void run_transpose(const TransposePlan* plan, const i64* words) {
  char* to = (char*)words[0];
  const char* from = (const char*)words[1];
  i64 matrices = 1, index[DIMS] = {0};
  for (int d = 0; d < plan->dims - 1; ++d) matrices *= d == plan->row ? 1 : plan->size[d];
  for (i64 m = 0; m < matrices; ++m) {
    switch (plan->itemsize) {
      case 1: transpose_matrix<u8>(*plan, from, to); break;
      case 2: transpose_matrix<u16>(*plan, from, to); break;
      case 4: transpose_matrix<u32>(*plan, from, to); break;
      default: transpose_matrix<u64>(*plan, from, to);
    }
    for (int d = (int)plan->dims - 2; d >= 0; --d) {
      if (d == plan->row) continue;
      const bool again = ++index[d] == plan->size[d];
      const i64 steps = again ? 1 - plan->size[d] : 1;
      to += steps * plan->to[d];
      from += steps * plan->from[d];
      if (!again) break;
      index[d] = 0;
    }
  }
}

// -- conversions --------------------------------------------------------------------------------------------------

template<class A, class B> static void convert(i64 n, const void* in, void* out) {
  const A* __restrict__ from = (const A*)in;
  B* __restrict__ target = (B*)out;
  i64 i = 0;
#if defined(__F16C__)
  if constexpr (same<A, half> && same<B, float>)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps((float*)out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
  if constexpr (same<A, float> && same<B, half>)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128((__m128i*)(target + i), _mm256_cvtps_ph(_mm256_loadu_ps((const float*)in + i), 0));
#endif
  for (; i < n; ++i) target[i] = to<B>(from[i]);
}
