// Joining a value to an element: each step computed wide and rounded to the element's type.

template<class T> __device__ __forceinline__ T zero_of() { return to<T>(0); }
template<class T> __device__ __forceinline__ T joined_sum(T a, T b) { return to<T>(add(widen(a), widen(b))); }
template<class T> __device__ __forceinline__ T joined_product(T a, T b) { return to<T>(mul(widen(a), widen(b))); }
template<class T> __device__ __forceinline__ T joined_greater(T a, T b) { return to<T>(greater(widen(a), widen(b))); }
template<class T> __device__ __forceinline__ T joined_lesser(T a, T b) { return to<T>(lesser(widen(a), widen(b))); }
template<class T> __device__ __forceinline__ T scaled_value(T v, T factor, bool one) {
  return one ? v : to<T>(mul(widen(v), widen(factor)));
}
template<class T> __device__ __forceinline__ T divided(T sum, i64 count) {
  if constexpr (is_bool<T>) return sum;
  else if constexpr (is_integer<T>) return floor_divide(sum, (T)count);
  else return to<T>(widen(sum) / widen(to<T>(count)));
}
template<class T> __device__ __forceinline__ T least() {
  if constexpr (is_bool<T>) return false;
  else if constexpr (is_integer<T>) return is_signed<T> ? (T)(1ull << (sizeof(T) * 8 - 1)) : T(0);
  else return to<T>(-INF);
}
template<class T> __device__ __forceinline__ T greatest() {
  if constexpr (is_bool<T>) return true;
  else if constexpr (is_integer<T>) return (T)~least<T>();
  else return to<T>(INF);
}
template<class T> __device__ __forceinline__ void atomic_sum(T* at, T v) {
  if constexpr (real_float<T>) atomicAdd(at, v);
  else if constexpr (sizeof(T) == 4) atomicAdd((u32*)at, (u32)v);
  else atomicAdd((u64*)at, (u64)v);
}
