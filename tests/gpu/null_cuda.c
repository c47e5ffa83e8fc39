/* A libcuda without a GPU: every call succeeds, memory is the host's, host functions run at once, kernels do
 * nothing. It runs the driver's own logic on machines without a GPU; it never stands in for one.
 * Copies and fills of more than NULL_CUDA_MOVES bytes do nothing either: then calls take the host's time alone.
 * cuGetProcAddress gives what is written here, and for every other name a function that only succeeds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
typedef int R;
typedef uint64_t P;
static P next_handle = 0x10000;
static size_t used;
static struct { P at; size_t size; int fd; } blocks[4096];
int null_launches;
static int ok(void) { return 0; }
R cuInit(unsigned f) {  /* as the real driver where no device is visible: 100, NO_DEVICE; where one is named twice: 101 */
  const char *s = getenv("NULL_CUDA_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (s && !atoi(s)) return visible && strcmp(visible, "0,0") == 0 ? 101 : 100;
  return 0;
}
R cuDriverGetVersion(int* v) { *v = 13000; return 0; }
R cuDeviceGetCount(int* n) { const char* s = getenv("NULL_CUDA_DEVICES"); *n = s ? atoi(s) : 1; return 0; }
R cuDeviceGet(int* d, int i) { *d = i; return 0; }
R cuDeviceGetName(char* s, int n, int d) { strncpy(s, "Null GPU", n); return 0; }
R cuDeviceTotalMem(size_t* n, int d) { *n = (size_t)1 << 34; return 0; }
R cuDeviceGetAttribute(int* v, int a, int d) {
  const char* s = getenv("NULL_CUDA_ARCHITECTURE");  /* 90: compute capability 9.0 */
  const int n = s ? atoi(s) : 90;
  *v = a == 75 ? n / 10 : a == 76 ? n % 10 : a == 16 ? 132 : a == 39 ? 2048 : a == 10 ? 32 : 0; return 0; }
R cuDeviceGetUuid(char* u, int d) { memset(u, 7 + d, 16); return 0; }
R cuDevicePrimaryCtxRetain(P* c, int d) { *c = 0x1000 + d; return 0; }
static __thread P context;
R cuCtxSetCurrent(P c) { context = c; return 0; }
R cuCtxGetCurrent(P* c) { *c = context; return 0; }
R cuMemGetInfo(size_t* f, size_t* t) { *t = (size_t)1 << 34; *f = *t - used; return 0; }
static P take(size_t n) {
  void* p;
  if (n > (size_t)1 << 34 || posix_memalign(&p, 512, n)) return 0;
  for (int i = 0; i < 4096; i++) if (!blocks[i].at) { blocks[i].at = (P)p; blocks[i].size = n; break; }
  used += n;
  return (P)p; }
static R drop(P p) {
  for (int i = 0; i < 4096; i++) if (blocks[i].at == p) {
    blocks[i].at = 0; used -= blocks[i].size;
    if (blocks[i].fd) { munmap((void*)p, blocks[i].size); close(blocks[i].fd); blocks[i].fd = 0; } else free((void*)p);
    return 0; }
  return 1; }
/* What cuMemAlloc gives lies in shared memory, so that handles of it open in another process, as with CUDA. */
static P place(size_t n, int fd) {
  void* p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return 0;
  for (int i = 0; i < 4096; i++) if (!blocks[i].at) { blocks[i].at = (P)p; blocks[i].size = n; blocks[i].fd = fd; break; }
  used += n;
  return (P)p; }
R cuMemAlloc(P* p, size_t n) {
  int fd = n > (size_t)1 << 34 ? -1 : memfd_create("null", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, n)) return 2;
  return (*p = place(n, fd)) ? 0 : 2; }
typedef union { char bytes[64]; struct { char magic[8]; int pid, fd; size_t size; } of; } Handle;
R cuIpcGetMemHandle(Handle* h, P p) {
  for (int i = 0; i < 4096; i++) if (blocks[i].at == p && blocks[i].fd) {
    memset(h, 0, 64); strcpy(h->of.magic, "memory"); h->of.pid = getpid(); h->of.fd = blocks[i].fd; h->of.size = blocks[i].size;
    return 0; }
  return 1; }
R cuIpcOpenMemHandle(P* p, Handle h, unsigned flags) {
  char path[64];
  if (strcmp(h.of.magic, "memory")) return 1;
  if (h.of.pid == getpid()) return 201;
  snprintf(path, 64, "/proc/%d/fd/%d", h.of.pid, h.of.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  return fd >= 0 && (*p = place(h.of.size, fd)) ? 0 : 400; }
R cuMemGetAddressRange(P* at, size_t* n, P p) {
  for (int i = 0; i < 4096; i++) if (blocks[i].at && p >= blocks[i].at && p < blocks[i].at + blocks[i].size) {
    *at = blocks[i].at; *n = blocks[i].size; return 0; }
  return 1; }
R cuIpcCloseMemHandle(P p) { return drop(p); }
R cuMemAllocAsync(P* p, size_t n, P s) { return (*p = take(n)) ? 0 : 2; }
R cuMemAllocFromPoolAsync(P* p, size_t n, P pool, P s) { return (*p = take(n)) ? 0 : 2; }
static P host_of[64];  /* page-locked blocks */
R cuMemHostAlloc(void** p, size_t n, unsigned f) {
  *p = (void*)take(n);
  for (int i = 0; *p && i < 64; i++) if (!host_of[i]) { host_of[i] = (P)*p; break; }
  return *p ? 0 : 2; }
static struct { P at; size_t size; } registered[64];  /* the program's page-locked memory */
R cuMemHostRegister(void* p, size_t n, unsigned f) {
  if (!n) return 1;
  for (int i = 0; i < 64; i++) if (registered[i].size && registered[i].at < (P)p + n && (P)p < registered[i].at + registered[i].size) return 712;
  for (int i = 0; i < 64; i++) if (!registered[i].size) { registered[i].at = (P)p; registered[i].size = n; return 0; }
  return 2; }
R cuMemHostUnregister(void* p) {
  for (int i = 0; i < 64; i++) if (registered[i].size && registered[i].at == (P)p) { registered[i].size = 0; return 0; }
  return 713; }
R cuPointerGetAttribute(void* v, int what, P p) {
  for (int i = 0; i < 64; i++) for (int j = 0; host_of[i] && j < 4096; j++)
    if (blocks[j].at == host_of[i] && p >= blocks[j].at && p < blocks[j].at + blocks[j].size) {
      if (what == 2) *(int*)v = 1; else *(size_t*)v = what == 11 ? blocks[j].at : blocks[j].size;
      return 0; }
  for (int i = 0; i < 64; i++) if (p - registered[i].at < registered[i].size) {
    if (what == 2) *(int*)v = 1; else *(size_t*)v = what == 11 ? registered[i].at : registered[i].size;
    return 0; }
  return 1; }
R cuMemFree(P p) { return drop(p); }
R cuMemFreeAsync(P p, P s) { return drop(p); }
R cuMemFreeHost(void* p) {
  for (int i = 0; i < 64; i++) if (host_of[i] == (P)p) host_of[i] = 0;
  return drop((P)p); }
static int moves(size_t n) {
  static size_t most;
  if (!most) { const char* s = getenv("NULL_CUDA_MOVES"); most = s ? atoll(s) : SIZE_MAX; }
  return n <= most; }
R cuMemcpyHtoDAsync(P d, void* s, size_t n, P q) { if (moves(n)) memcpy((void*)d, s, n); return 0; }
static R until(P s);
R cuMemcpyDtoHAsync(void* d, P s, size_t n, P q) { until(q); if (moves(n)) memcpy(d, (void*)s, n); return 0; }
R cuMemcpyAsync(P d, P s, size_t n, P q) { if (moves(n)) memmove((void*)d, (void*)s, n); return 0; }
R cuMemsetD8Async(P d, unsigned char b, size_t n, P q) { if (moves(n)) memset((void*)d, b, n); return 0; }
R cuStreamCreateWithPriority(P* s, unsigned f, int p) { *s = next_handle += 16; return 0; }
static unsigned event_flags[1 << 16];
R cuEventCreate(P* e, unsigned f) { *e = next_handle += 16; event_flags[*e >> 4 & 65535] = f; return 0; }
/* A stream that is held runs nothing that it is given, until it is let go. */
static P held[64];
static int holds;
void null_hold(P s, int on) {
  for (int i = 0; i < holds; i++) if (held[i] == s) { if (!on) held[i] = held[--holds]; return; }
  if (on) held[holds++] = s; }
static int waits(P s) { for (int i = 0; i < holds; i++) if (held[i] == s) return 1; return 0; }
int null_waiting;  /* how often a caller has begun to wait for a stream that is held */
static R until(P s) { null_waiting += waits(s); while (waits(s)) usleep(1000); return 0; }
static P marked[1 << 16];  /* by event: the held stream that it is behind, and 1 */
static P behind(P e) { return marked[e >> 4 & 65535]; }
R cuEventRecord(P e, P s) { marked[e >> 4 & 65535] = waits(s) ? s + 1 : 0; return 0; }
R cuEventQuery(P e) { return behind(e) && waits(behind(e) - 1) ? 600 : 0; }
R cuEventSynchronize(P e) { return behind(e) ? until(behind(e) - 1) : 0; }
R cuStreamQuery(P s) { return waits(s) ? 600 : 0; }
R cuStreamSynchronize(P s) { return until(s); }
R cuCtxSynchronize(void) { null_waiting += holds > 0; while (holds) usleep(1000); return 0; }
R cuIpcGetEventHandle(Handle* h, P e) {
  if (!(event_flags[e >> 4 & 65535] & 4)) return 400;
  memset(h, 0, 64); strcpy(h->of.magic, "event"); h->of.pid = getpid();
  return 0; }
R cuIpcOpenEventHandle(P* e, Handle h) { return strcmp(h.of.magic, "event") ? 1 : cuEventCreate(e, 6); }
int null_waits;
R cuStreamWaitEvent(P s, P e, unsigned f) { null_waits++; return 0; }
R cuEventElapsedTime(float* ms, P a, P b) { *ms = a < b ? 0.5f : a > b ? -0.5f : 0; return 0; }
R cuLaunchHostFunc(P s, void (*f)(void*), void* x) { f(x); return 0; }
R cuLibraryLoadData(P* l, void* d, void* a, void* b, unsigned n, void* c, void* e, unsigned m) { *l = next_handle += 16; return 0; }
R cuLibraryGetKernel(P* k, P l, const char* name) { *k = next_handle += 16; return 0; }
R cuKernelGetFunction(P* f, P k) { *f = next_handle += 16; return 0; }
/* It knows CUDA's limits of grids and blocks. */
R cuLaunchKernel(P f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz) {
  const int grid = gx && gy && gz && gx <= 0x7fffffffu && gy <= 65535 && gz <= 65535;
  const int block = bx && by && bz && bx <= 1024 && by <= 1024 && bz <= 64 && bx * by * bz <= 1024;
  null_launches++;
  return grid && block ? 0 : 1; }
/* A capture has one node; what its kernel would be given at the parameters 2 and 3 is kept for who asks. */
static P null_nodes[1] = {0x5000};
uint64_t null_draws[2];
R cuStreamGetCaptureInfo(P s, int* status, uint64_t* id, P* g, P** nodes, void** edges, size_t* n) {
  static char none[64];
  *status = 1; *nodes = null_nodes; *edges = none; *n = 1; return 0; }
R cuGraphKernelNodeGetParams(P node, char* params) { memset(params, 0, 64); return 0; }
R cuGraphExecKernelNodeSetParams(P exe, P node, char* params) {
  uint64_t** arguments = *(uint64_t***)(params + 40);
  null_draws[0] = *arguments[2]; null_draws[1] = *arguments[3]; return 0; }
R cuGetErrorString(int e, const char** s) { *s = "out of memory"; return 0; }
R cuGetErrorName(int e, const char** s) { *s = "CUDA_ERROR"; return 0; }
R cuGetExportTable(void** t, void* id) { return 500; }
#include <dlfcn.h>
R cuGetProcAddress_v2(const char* name, void** f, int v, P flags, int* status) {
  void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (v >= 12000 && !strcmp(name, "cuGetProcAddress")) name = "cuGetProcAddress_v2";
  *f = self ? dlsym(self, name) : NULL;
  if (!*f) *f = (void*)ok;
  if (status) *status = 0;
  return 0; }
R cuGetProcAddress(const char* name, void** f, int v, P flags) { return cuGetProcAddress_v2(name, f, v, flags, NULL); }
