// Reductions. A row of contiguous elements is folded into LANES states, each of every LANES-th element, which compilers
// vectorize; columns are folded into one state each. Long rows and columns are folded as a tree of their parts. The order
// does not depend on the machine.

constexpr i64 LANES = 64, WIDTH = 256;  // at most WIDTH columns at a time: fold_tree has their states on the stack

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
// Folds `count` units from `start` on into `width` states: LANES units one after the other, more of them in two parts, so
// that the error of a sum grows with the logarithm of their number. `leaf(start, count, states)` folds at most LANES units.
template<class Leaf>
static void fold_tree(const FoldPlan& plan, i64 width, i64 start, i64 count, const Leaf& leaf, char* states) {
  plan.start(width, states);
  if (count <= LANES) return leaf(start, count, states);
  i64 left = LANES;
  while (left * 2 < count) left *= 2;
  alignas(64) char more[WIDTH * 8];
  fold_tree(plan, width, start, left, leaf, states);
  fold_tree(plan, width, start + left, count - left, leaf, more);
  plan.join(width, more, states);
}
// A unit is LANES elements.
static void fold_row(const FoldPlan& plan, const char* x, char* out) {
  Buffers buffers;
  alignas(64) char total[LANES * 8], rest[LANES * 8], value[8];
  const i64 width = plan.steps ? plan.state : plan.itemsize;
  const auto leaf = [&](i64 start, i64 count, char* states) {
    const i64 end = least((start + count) * LANES, plan.middle);
    for (i64 at = start * LANES; at < end; at += BLOCK) {
      const i64 m = least(end - at, BLOCK), whole = m / LANES;
      const char* block = converted(plan, m, x + at * plan.itemsize, buffers);
      plan.lift(LANES, block, whole, states);
      if (m % LANES) plan.lift(m % LANES, block + whole * LANES * width, 1, states);
    }
  };
  fold_tree(plan, LANES, 0, (plan.middle + LANES - 1) / LANES, leaf, total);
  for (i64 n = LANES / 2; n; n /= 2) {  // the states of both halves, in halves
    memcpy(rest, total + n * plan.state, n * plan.state);
    plan.join(n, rest, total);
  }
  plan.lower(1, total, plan.middle, value);
  put(plan, 1, value, out, buffers);
}
// A unit is a row of the columns.
static void fold_columns(const FoldPlan& plan, i64 columns, const char* x, char* out) {
  Buffers buffers;
  alignas(64) char total[WIDTH * 8], value[WIDTH * 8];
  const auto leaf = [&](i64 start, i64 count, char* states) {
    for (i64 r = start; r < start + count; ++r)
      plan.lift(columns, converted(plan, columns, x + r * plan.inner * plan.itemsize, buffers), 1, states);
  };
  fold_tree(plan, columns, 0, plan.middle, leaf, total);
  plan.lower(columns, total, plan.middle, value);
  put(plan, columns, value, out, buffers);
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
    for (i64 c = 0; c < plan->inner; c += WIDTH) {
      const i64 columns = least(plan->inner - c, WIDTH);
      fold_columns(*plan, columns, x + c * plan->itemsize, out + c * plan->out_itemsize);
    }
    out += plan->inner * plan->out_itemsize;
  }
}
