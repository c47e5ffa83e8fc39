/* A libcudnn without a GPU, beside null_cuda.c: every operation has one engine without notes, executing it does
 * nothing. NULL_CUDNN_WORK: bytes that each plan asks for, none if it is not given. */
#include <stdint.h>
#include <stdlib.h>
typedef int R;
typedef struct { int kind; int64_t length; } Descriptor;
int null_executions, null_descriptors;
R cudnnCreate(void** handle) { *handle = (void*)99; return 0; }
R cudnnDestroy(void* handle) { return 0; }
R cudnnSetStream(void* handle, void* stream) { return 0; }
R cudnnBackendCreateDescriptor(int kind, void** found) {
  Descriptor* made = *found = calloc(1, sizeof(Descriptor));
  made->kind = kind;
  null_descriptors++;
  return 0; }
R cudnnBackendDestroyDescriptor(void* found) { free(found); null_descriptors--; return 0; }
R cudnnBackendSetAttribute(void* found, int name, int type, int64_t count, void* values) { return 0; }
R cudnnBackendFinalize(void* found) { return 0; }
R cudnnBackendGetAttribute(void* found, int name, int type, int64_t most, int64_t* count, void* values) {
  const char* work = getenv("NULL_CUDNN_WORK");
  *count = name == 202 || name == 300 || name == 402;  /* results, an engine, bytes of workspace */
  if (name == 402) *(int64_t*)values = work ? atoll(work) : 0;
  return 0; }
R cudnnBackendExecute(void* handle, void* plan, void* arguments) { null_executions++; return 0; }
