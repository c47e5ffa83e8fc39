/* A libcublasLt without a GPU, beside null_cuda.c: it has an algorithm for every product, which does nothing. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef int R;
int null_products;
const char* cublasLtGetStatusName(R status) { return "CUBLAS_STATUS_NOT_SUPPORTED"; }
R cublasLtCreate(void** handle) { *handle = (void*)98; return 0; }
R cublasLtDestroy(void* handle) { return 0; }
R cublasLtMatmulDescCreate(void** made, int compute, int scale) { *made = (void*)97; return 0; }
R cublasLtMatmulDescDestroy(void* description) { return 0; }
R cublasLtMatmulDescSetAttribute(void* description, int name, const void* value, size_t size) { return 0; }
R cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t ld) { *made = (void*)96; return 0; }
R cublasLtMatrixLayoutDestroy(void* layout) { return 0; }
R cublasLtMatrixLayoutSetAttribute(void* layout, int name, const void* value, size_t size) { return 0; }
R cublasLtMatmulPreferenceCreate(void** made) { *made = (void*)95; return 0; }
R cublasLtMatmulPreferenceDestroy(void* preference) { return 0; }
R cublasLtMatmulPreferenceSetAttribute(void* preference, int name, const void* value, size_t size) { return 0; }
R cublasLtMatmulAlgoGetHeuristic(void* handle, void* description, void* a, void* b, void* c, void* d, void* preference,
                                 int most, void* found, int* count) {
  memset(found, 0, 64);
  *count = 1;
  return 0; }
R cublasLtMatmul() { null_products++; return 0; }
