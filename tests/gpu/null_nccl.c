/* A libnccl without GPUs, beside null_cuda.c: members of one process meet as NCCL's do, and a collective runs on the
 * host's memory when the last of its members has issued it. Elements are reduced in rank order.
 * With NULL_NCCL_ALONE a member is alone: the others are where it is at once, and have nothing but zeros to add; with
 * NULL_NCCL_STUCK=n they do not come to the n-th call, and the stream waits for them until the communicator is aborted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char bytes[128]; } Id;
typedef struct { char kind; const void* source; void* target; size_t count; int type, op, peer, scaled; double factor; } Call;
typedef struct World World;
typedef struct Comm { World* world; void* held; int rank, failed, waits, sends, recvs; uint64_t context;
  Call calls[64], sent[64], received[64]; } Comm;
struct World { Id id; int size, joined; Comm* members[16]; };
typedef struct { Comm* comm; Comm** made; Call call; } Job;
enum { OK, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static World worlds[256];
static int worlds_used;
static __thread int depth, jobs_used, failed;  /* failed: a call of the group that is open */
static __thread Job jobs[256];
static __thread char said[200];
static int alone(void) { static int found = -1; return found < 0 ? (found = !!getenv("NULL_NCCL_ALONE")) : found; }
static int begun;
static int stuck(void) { const char* n = getenv("NULL_NCCL_STUCK"); return n ? atoi(n) : 1 << 30; }
static void cuda(const char* name, uint64_t x, int y) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ((void (*)(uint64_t, int))dlsym(library, name))(x, y); }
static int wrong(int code, const char* text) { strcpy(said, text); if (depth) failed = code; return code; }
static uint64_t context(void) {
  uint64_t now = 0;
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ((int (*)(uint64_t*))dlsym(cuda, "cuCtxGetCurrent"))(&now);
  return now; }

/* -- elements: of ncclDataType_t 0 to 9; a long double holds each exactly -- */
static const int width[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static float widened(uint16_t x) { uint32_t bits = (uint32_t)x << 16; float f; memcpy(&f, &bits, 4); return f; }
static uint16_t rounded(float x) {  /* to bfloat16, to nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16; }
static long double load(int t, const void* p, size_t i) {
  switch (t) {
    case 0: return ((int8_t*)p)[i]; case 1: return ((uint8_t*)p)[i]; case 2: return ((int32_t*)p)[i];
    case 3: return ((uint32_t*)p)[i]; case 4: return ((int64_t*)p)[i]; case 5: return ((uint64_t*)p)[i];
    case 6: return ((_Float16*)p)[i]; case 7: return ((float*)p)[i]; case 8: return ((double*)p)[i];
    default: return widened(((uint16_t*)p)[i]); } }
static void store(int t, void* p, size_t i, long double x) {
  switch (t) {
    case 0: ((int8_t*)p)[i] = x; break; case 1: ((uint8_t*)p)[i] = x; break; case 2: ((int32_t*)p)[i] = x; break;
    case 3: ((uint32_t*)p)[i] = x; break; case 4: ((int64_t*)p)[i] = x; break; case 5: ((uint64_t*)p)[i] = x; break;
    case 6: ((_Float16*)p)[i] = x; break; case 7: ((float*)p)[i] = x; break; case 8: ((double*)p)[i] = x; break;
    default: ((uint16_t*)p)[i] = rounded(x); } }
static long double join(int op, long double a, long double b) {
  return op == 1 ? a * b : op == 2 ? (a > b ? a : b) : op == 3 ? (a < b ? a : b) : a + b; }

/* -- running: `a` is the call at the head of each member's queue -- */
static long double taken(Call* c, size_t i) {
  long double x = load(c->type, c->source, i);
  return c->scaled ? x * c->factor : x; }
static void reduce(World* w, Call* a, void* out, size_t from, size_t count) {
  for (size_t i = 0; i < count; i++) {
    long double x = taken(&w->members[0]->calls[0], from + i);
    for (int r = 1; r < w->size; r++) x = join(a->op, x, taken(&w->members[r]->calls[0], from + i));
    store(a->type, out, i, a->op == 4 ? x / w->size : x); } }
static void execute(World* w) {
  Call* a = &w->members[0]->calls[0];
  size_t bytes = a->count * width[a->type];
  size_t length = a->kind == 'S' ? w->size * bytes : a->kind == 'A' || a->kind == 'R' ? bytes : 0;
  char* result = malloc(length + 1);
  if (length) reduce(w, a, result, 0, length / width[a->type]);
  char* gathered = malloc(w->size * bytes + 1);
  if (a->kind == 'G') for (int r = 0; r < w->size; r++) memcpy(gathered + r * bytes, w->members[r]->calls[0].source, bytes);
  for (int r = 0; r < w->size; r++) {
    Call* c = &w->members[r]->calls[0];
    if (c->kind == 'A' || (c->kind == 'R' && c->peer == r)) memcpy(c->target, result, bytes);
    if (c->kind == 'S') memcpy(c->target, result + r * bytes, bytes);
    if (c->kind == 'G') memcpy(c->target, gathered, w->size * bytes);
    if (c->kind == 'B') memmove(c->target, w->members[c->peer]->calls[0].source, bytes); }
  free(result); free(gathered); }
static void shift(Call* calls, int* used, int at) { memmove(calls + at, calls + at + 1, (--*used - at) * sizeof(Call)); }
static int same(Call* a, Call* b) {
  return a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op && a->peer == b->peer; }
static void progress(World* w) {
  for (int s = 0; s < w->size; s++) for (int i = 0; i < w->members[s]->sends; i++) {
    Comm *from = w->members[s], *to = w->members[from->sent[i].peer];
    for (int j = 0; j < to->recvs; j++) if (to->received[j].peer == s) {
      memcpy(to->received[j].target, from->sent[i].source, from->sent[i].count * width[from->sent[i].type]);
      shift(from->sent, &from->sends, i--); shift(to->received, &to->recvs, j); break; } }
  for (;;) {
    for (int r = 0; r < w->size; r++) {
      Comm* m = w->members[r];
      if (!m || m->failed || !m->waits) return;
      if (!same(&m->calls[0], &w->members[0]->calls[0])) { for (int k = 0; k < w->size; k++) w->members[k]->failed = USAGE; return; } }
    execute(w);
    for (int r = 0; r < w->size; r++) shift(w->members[r]->calls, &w->members[r]->waits, 0); } }

/* -- groups -- */
static int finish(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < jobs_used; i++) {
    Job* j = &jobs[i];
    Comm* c = j->comm;
    if (j->made) { *j->made = c; continue; }
    if (j->call.kind == 's') c->sent[c->sends++] = j->call;
    else if (j->call.kind == 'r') c->received[c->recvs++] = j->call;
    else c->calls[c->waits++] = j->call; }
  for (int i = 0; i < jobs_used; i++) {
    World* w = jobs[i].comm->world;
    if (jobs[i].made) while (w->joined < w->size) pthread_cond_wait(&changed, &lock);
    else progress(w); }
  pthread_mutex_unlock(&lock);
  jobs_used = 0;
  return OK; }
int ncclGroupStart(void) { depth++; return OK; }
int ncclGroupEnd(void) {
  int code = failed;
  if (--depth) return OK;
  failed = 0;
  if (!code) return finish();
  jobs_used = 0;
  return code; }
static int push(Comm* comm, Comm** made, Call call) {
  jobs[jobs_used++] = (Job){comm, made, call};
  return depth ? OK : finish(); }

/* -- the library -- */
int ncclGetVersion(int* v) { *v = 22809; return OK; }
const char* ncclGetLastError(void* comm) { return said; }
int ncclGetUniqueId(Id* id) {
  static int made;
  memset(id, 0, sizeof *id);
  sprintf(id->bytes, "null %d", ++made);
  return OK; }
int ncclCommInitRank(Comm** made, int size, Id id, int rank) {
  World* w = NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < worlds_used; i++) if (!memcmp(&worlds[i].id, &id, sizeof id)) w = &worlds[i];
  if (!w) { w = &worlds[worlds_used++]; w->id = id; w->size = size; }
  uint64_t at = context();
  for (int r = 0; r < size; r++) if (w->members[r] && w->members[r]->context == at) {
    pthread_mutex_unlock(&lock);
    return wrong(USAGE, "Duplicate GPU detected"); }
  Comm* c = w->members[rank] = calloc(1, sizeof(Comm));
  c->world = w; c->rank = rank; c->context = at; w->joined += alone() ? size : 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return push(c, made, (Call){0}); }
int ncclCommDestroy(Comm* c) { return c->waits ? wrong(USAGE, "a call waits for a peer") : OK; }
int ncclCommAbort(Comm* c) {
  cuda("null_hold", (uint64_t)c->held, 0);
  for (int r = 0; r < c->world->size; r++) if (r != c->rank && c->world->members[r]) c->world->members[r]->failed = REMOTE;
  return OK; }
int ncclCommGetAsyncError(Comm* c, int* code) {
  *code = c->failed;
  if (c->failed) wrong(0, "remote process exited");
  return OK; }
/* -- ops of a communicator: those that programs make, from 5 on, live until they are destroyed -- */
static struct { Comm* comm; int type; double factor; } made_ops[16];
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, Comm* c) {
  if (residence != 1 || type < 6 || type > 9) return wrong(ARGUMENT, "no such scalar here");
  for (int i = 0; i < 16; i++) if (!made_ops[i].comm) {
    made_ops[i].comm = c; made_ops[i].type = type; made_ops[i].factor = load(type, scalar, 0);
    *op = 5 + i;
    return OK; }
  return wrong(ARGUMENT, "ops are not destroyed"); }
int ncclRedOpDestroy(int op, Comm* c) {
  if (op < 5 || made_ops[op - 5].comm != c) return wrong(ARGUMENT, "no such op");
  made_ops[op - 5].comm = NULL;
  return OK; }
static int queue(Comm* c, Call call, void* stream) {
  if (call.op >= 5) {
    if (made_ops[call.op - 5].comm != c || made_ops[call.op - 5].type != call.type) return wrong(ARGUMENT, "another's op");
    call.factor = made_ops[call.op - 5].factor; call.scaled = 1; call.op = 0; }
  if (context() != c->context) return wrong(ARGUMENT, "the device of the communicator is not current");
  if (call.type < 0 || call.type > 9) return wrong(ARGUMENT, "no such type here");
  if (alone()) {
    if (++begun >= stuck()) { c->held = stream; cuda("null_hold", (uint64_t)stream, 1); }
    return OK; }
  return push(c, NULL, call); }
int ncclAllReduce(const void* s, void* t, size_t n, int d, int o, Comm* c, void* q) { return queue(c, (Call){'A', s, t, n, d, o}, q); }
int ncclReduce(const void* s, void* t, size_t n, int d, int o, int r, Comm* c, void* q) { return queue(c, (Call){'R', s, t, n, d, o, r}, q); }
int ncclBroadcast(const void* s, void* t, size_t n, int d, int r, Comm* c, void* q) { return queue(c, (Call){'B', s, t, n, d, 0, r}, q); }
int ncclAllGather(const void* s, void* t, size_t n, int d, Comm* c, void* q) { return queue(c, (Call){'G', s, t, n, d}, q); }
int ncclReduceScatter(const void* s, void* t, size_t n, int d, int o, Comm* c, void* q) { return queue(c, (Call){'S', s, t, n, d, o}, q); }
int ncclSend(const void* s, size_t n, int d, int p, Comm* c, void* q) { return queue(c, (Call){'s', s, 0, n, d, 0, p}, q); }
int ncclRecv(void* t, size_t n, int d, int p, Comm* c, void* q) { return queue(c, (Call){'r', 0, t, n, d, 0, p}, q); }
