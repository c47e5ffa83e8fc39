// Reductions. A row of contiguous elements is folded into LANES states, each of every LANES-th element, which compilers
// vectorize; columns are folded into one state each. States of up to CHUNK elements are joined to those of all before
// them, so that sums of many numbers are precise. The order does not depend on the machine.

constexpr i64 LANES = 64, CHUNK = 4096;

struct FoldPlan {
  i64 outer, middle, inner;           // the middle dimension is reduced; inner is 1 for rows
  i64 itemsize, out_itemsize, steps, out_steps, state;  // sizes of elements in memory and of a state
  Convert step[STEPS], out_step[STEPS];
  void (*start)(i64 n, void* states);
  void (*lift)(i64 n, const void* x, i64 rows, void* states);   // rows of n elements into n states
  void (*join)(i64 n, const void* more, void* states);
  void (*lower)(i64 n, const void* states, i64 count, void* out);
};

template<class P> static const char* converted(const P& plan, i64 n, const char* at, Buffers& buffers) {
  int k = 0;
  for (i64 s = 0; s < plan.steps; ++s, k ^= 1) {
    plan.step[s](n, at, buffers.of[k]);
    at = buffers.of[k];
  }
  return at;
}
static void put(const FoldPlan& plan, i64 n, const char* computed, char* out, Buffers& buffers) {
  int k = 0;
  for (i64 s = 0; s < plan.out_steps; ++s, k ^= 1) {
    char* next = s == plan.out_steps - 1 ? out : buffers.of[k];
    plan.out_step[s](n, computed, next);
    computed = next;
  }
  if (computed != out) memcpy(out, computed, n * plan.out_itemsize);
}
static void fold_row(const FoldPlan& plan, const char* x, char* out) {
  Buffers buffers;
  alignas(64) char total[LANES * 32], part[LANES * 32], rest[LANES * 32], value[32];
  plan.start(LANES, total);
  for (i64 at = 0; at < plan.middle; at += CHUNK) {
    const i64 n = plan.middle - at < CHUNK ? plan.middle - at : CHUNK;
    plan.start(LANES, part);
    for (i64 done = 0; done < n; done += BLOCK) {
      const i64 m = n - done < BLOCK ? n - done : BLOCK;
      const char* block = converted(plan, m, x + (at + done) * plan.itemsize, buffers);
      const i64 whole = m / LANES, width = plan.steps ? plan.state : plan.itemsize;
      plan.lift(LANES, block, whole, part);
      if (m % LANES) plan.lift(m % LANES, block + whole * LANES * width, 1, part);
    }
    plan.join(LANES, part, total);
  }
  for (i64 n = LANES / 2; n; n /= 2) {  // the states of both halves, in halves
    memcpy(rest, total + n * plan.state, n * plan.state);
    plan.join(n, rest, total);
  }
  plan.lower(1, total, plan.middle, value);
  put(plan, 1, value, out, buffers);
}
static void fold_columns(const FoldPlan& plan, i64 columns, const char* x, char* out) {
  Buffers buffers;
  alignas(64) char total[BLOCK * 8], part[BLOCK * 8];
  plan.start(columns, total);
  for (i64 at = 0; at < plan.middle; at += LANES) {
    const i64 rows = plan.middle - at < LANES ? plan.middle - at : LANES;
    plan.start(columns, part);
    for (i64 r = 0; r < rows; ++r)
      plan.lift(columns, converted(plan, columns, x + (at + r) * plan.inner * plan.itemsize, buffers), 1, part);
    plan.join(columns, part, total);
  }
  plan.lower(columns, total, plan.middle, part);
  put(plan, columns, part, out, buffers);
}
EXPORT void run_fold(const FoldPlan* plan, const i64* words) {
  char* out = (char*)words[0];
  const char* x = (const char*)words[1];
  for (i64 o = 0; o < plan->outer; ++o, x += plan->middle * plan->inner * plan->itemsize) {
    if (plan->inner == 1) {
      fold_row(*plan, x, out);
      out += plan->out_itemsize;
      continue;
    }
    for (i64 c = 0; c < plan->inner; c += BLOCK) {
      const i64 columns = plan->inner - c < BLOCK ? plan->inner - c : BLOCK;
      fold_columns(*plan, columns, x + c * plan->itemsize, out + c * plan->out_itemsize);
    }
    out += plan->inner * plan->out_itemsize;
  }
}
