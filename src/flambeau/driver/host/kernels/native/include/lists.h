// Formulas over lists of tensors: one kernel call for the tensors at one position of all lists.

struct ListsPlan {
  void (*kernel)(i64 n, void* const* at, const double* scalars);
  i64 count, lists;  // tensors of a list; lists, of results first
  const i64* numel;  // elements of each tensor
};

EXPORT void run_lists(const ListsPlan* plan, const i64* words) {
  void* at[16];
  const double* scalars = (const double*)(words + plan->count * plan->lists);
  for (i64 m = 0; m < plan->count; ++m) {
    for (i64 k = 0; k < plan->lists; ++k) at[k] = (void*)words[k * plan->count + m];
    plan->kernel(plan->numel[m], at, scalars);
  }
}
