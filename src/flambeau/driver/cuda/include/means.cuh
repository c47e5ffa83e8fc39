// A sum shared out: integers through double, towards zero, as the host body has it.
template<class T> __device__ __forceinline__ T shared(T total, i64 share) {
  if constexpr (is_integer<T>) return (T)((double)total / (double)share);
  else return total / (T)share;
}
