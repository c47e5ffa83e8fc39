// Instructions of compute capability 8.0 and newer for products of 16-bit elements. The lanes of a warp work together;
// lane 4 g + t holds what is said of (g, t), two elements in each word, the first in the lower half.

// d += a b, of 16 x 16 and 16 x 8 elements. a: rows g, g + 8, g, g + 8 at columns 2 t (first two words) and 2 t + 8.
// b: column g at rows 2 t and 2 t + 8. d: rows g (first two) and g + 8, at columns 2 t and 2 t + 1.
#define TENSOR_CORE_PRODUCT(X, TYPES)                                                                                   \
  __device__ __forceinline__ void multiply(X, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {                       \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPES ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"      \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                                \
  }
TENSOR_CORE_PRODUCT(half, "f16.f16")
TENSOR_CORE_PRODUCT(bf16, "bf16.bf16")

__device__ __forceinline__ u32 pair_of(half, float first, float second) {
  u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first)); return r;
}
__device__ __forceinline__ u32 pair_of(bf16, float first, float second) {
  u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first)); return r;
}

__device__ __forceinline__ float power_of_two(float x) {  // 2 ** x to 2 ulps
  float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
}

typedef u32 Shared;  // an address in shared memory, counted in bytes
__device__ __forceinline__ Shared shared_address(const void* p) {
  u64 r; asm("cvta.to.shared.u64 %0, %1;" : "=l"(r) : "l"(p)); return (u32)r;
}

// Four matrices of 8 x 8 elements in shared memory: lane i says where row i % 8 of matrix i / 8 is, aligned to 16 bytes.
// Word m: of matrix m, elements 2 t and 2 t + 1 of row g; `turned`, of column g.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], Shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void load_matrices_turned(u32 (&r)[4], Shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}

// 16 or 4 bytes into shared memory in the background, zeros where not `inside`; copies since the last `queued` are a group.
__device__ __forceinline__ void copy16(Shared to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4(Shared to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
__device__ __forceinline__ void queued() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template<int LEFT> __device__ __forceinline__ void arrived() {  // all groups but the last LEFT
  asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
