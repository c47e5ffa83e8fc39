// Assertions of kernels (see driver/cuda/device/assertions.py), and elements that are only moved.

struct Guard {
  i64* words; u64 code;
  __device__ __noinline__ void fail(i64 index, i64 size, i64 dim) const {
    if (atomicCAS((u64*)words, 0ull, code) != 0) return;
    words[1] = index; words[2] = size; words[3] = dim;
    __threadfence_system();
  }
};

// Indexed dimensions: how many elements each has, the step between them in the indexed tensor, its number.
template<int N> struct Indexed { i64 size[N], step[N], dim[N]; };

// Adds to `at` where index j points. False if it points outside.
template<bool wraps, int N> __device__ __forceinline__ bool point(i64 index, int j, const Indexed<N>& d, i64& at, const Guard& guard) {
  const i64 size = d.size[j];
  const i64 place = wraps && index < 0 ? index + size : index;
  if ((u64)place >= (u64)size) { guard.fail(index, size, d.dim[j]); return false; }
  at += place * d.step[j];
  return true;
}

