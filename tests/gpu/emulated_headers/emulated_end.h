
// -- the launch ----------------------------------------------------------------------------------------------

namespace emulation {
static void** given;
template<class... A, size_t... I> void call(void (*kernel)(A...), std::index_sequence<I...>) {
  kernel(*(typename std::remove_const<A>::type*)given[I]...);
}
template<class... A> void call(void (*kernel)(A...)) { call(kernel, std::index_sequence_for<A...>()); }
template<class... A> int sizes(void (*)(A...), long* out) {
  int n = 0;
  ((out[n++] = sizeof(A)), ...);
  return n;
}
static void run_thread() { call(run); }
}  // namespace emulation

extern "C" int parameter_sizes(long* out) { return emulation::sizes(run, out); }

// 0: done. 1: threads that wait for ever.
extern "C" int emulate(unsigned x, unsigned y, unsigned z, unsigned threads, void** parameters, int order) {
  using namespace emulation;
  given = parameters;
  body = run_thread;
  gridDim = {x, y, z};
  blockDim = {threads, 1, 1};
  for (unsigned k = 0; k < z; ++k)
    for (unsigned j = 0; j < y; ++j)
      for (unsigned i = 0; i < x; ++i) {
        blockIdx = {i, j, k};
        if (!run_block(threads, order)) return 1;
      }
  return 0;
}
