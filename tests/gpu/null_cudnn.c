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

/* Recurrent networks: parameters lie as in cuDNN, all matrices of the layers first and then all biases. Each call
 * counts, and keeps its arguments that were not null, as bits. */
typedef struct { int mode, biased, two, inputs, hidden, state, layers, size; } Network;
int null_rnn_forwards, null_rnn_backwards, null_rnn_weights, null_rnn_given;
static R made(void** found, size_t size) { *found = calloc(1, size); null_descriptors++; return 0; }
static R gone(void* found) { free(found); null_descriptors--; return 0; }
R cudnnCreateRNNDescriptor(void** found) { return made(found, sizeof(Network)); }
R cudnnCreateDropoutDescriptor(void** found) { return made(found, 8); }
R cudnnCreateRNNDataDescriptor(void** found) { return made(found, 8); }
R cudnnCreateTensorDescriptor(void** found) { return made(found, 8); }
R cudnnDestroyRNNDescriptor(void* found) { return gone(found); }
R cudnnDestroyDropoutDescriptor(void* found) { return gone(found); }
R cudnnDestroyRNNDataDescriptor(void* found) { return gone(found); }
R cudnnDestroyTensorDescriptor(void* found) { return gone(found); }
R cudnnSetDropoutDescriptor(void* d, void* handle, float rate, void* states, size_t n, unsigned long long seed) {
  return 0; }
R cudnnSetTensorNdDescriptor(void* d, int kind, int dims, const int* sizes, const int* strides) { return 0; }
R cudnnSetRNNDataDescriptor(void* d, int kind, int layout, int steps, int batch, int width, const int* lengths,
                            void* fill) {
  for (int i = 0; i < batch; i++) if (lengths[i] < 1 || lengths[i] > (i ? lengths[i - 1] : steps)) return 2000;
  return 0; }
R cudnnSetRNNDescriptor_v8(Network* net, int algorithm, int mode, int bias, int direction, int input, int kind,
                           int computing, int math, int inputs, int hidden, int state, int layers, void* dropout,
                           unsigned flags) {
  if (getenv("NULL_CUDNN_NO_RNN")) return 3000;
  *net = (Network){mode, bias == 2, direction, inputs, hidden, state, layers, kind == 0 ? 4 : kind == 1 ? 8 : 2};
  return 0; }
static int gates(Network* net) { return net->mode == 2 ? 4 : net->mode == 3 ? 3 : 1; }
static int64_t cell_elements(Network* net, int cell) {
  int two = 1 + net->two, width = cell < two ? net->inputs : two * net->state;
  return (int64_t)gates(net) * net->hidden * (width + net->state) +
         (net->state < net->hidden ? net->state * net->hidden : 0); }
static int64_t matrices(Network* net, int cells) {
  int64_t sum = 0;
  for (int i = 0; i < cells; i++) sum += cell_elements(net, i);
  return sum; }
R cudnnGetRNNWeightSpaceSize(void* handle, Network* net, size_t* found) {
  int cells = net->layers * (1 + net->two);
  *found = net->size * (matrices(net, cells) + (net->biased ? (int64_t)cells * 2 * gates(net) * net->hidden : 0));
  return 0; }
R cudnnGetRNNTempSpaceSizes(void* handle, Network* net, int mode, void* x, size_t* work, size_t* reserve) {
  *work = 1024, *reserve = mode ? 4096 : 0;
  return 0; }
R cudnnGetRNNWeightParams(void* handle, Network* net, int cell, size_t size, char* weights, int number, void* m,
                          void** matrix, void* b, void** bias) {
  int two = 1 + net->two, width = cell < two ? net->inputs : two * net->state, count = gates(net), H = net->hidden;
  int64_t at = matrices(net, cell);
  if (number < count) at += (int64_t)number * H * width;
  else if (number < 2 * count) at += (int64_t)count * H * width + (int64_t)(number - count) * H * net->state;
  else at += (int64_t)count * H * (width + net->state);
  *matrix = weights + net->size * at;
  *bias = net->biased ? weights + net->size * (matrices(net, net->layers * two) + (2 * cell * count + number) * H) : 0;
  return 0; }
R cudnnRNNForward(void* handle, Network* net, int mode, void* lengths, void* xd, void* x, void* yd, void* y, void* hd,
                  void* h, void* hy, void* cd, void* c, void* cy, size_t ws, void* w, size_t ks, void* work, size_t rs,
                  void* reserve) {
  null_rnn_forwards++;
  null_rnn_given = !!x | !!y << 1 | !!h << 2 | !!hy << 3 | !!c << 4 | !!cy << 5 | !!w << 6 | !!work << 7 | !!reserve << 8;
  return 0; }
R cudnnRNNBackwardData_v8(void* handle, Network* net, void* lengths, void* yd, void* y, void* dy, void* xd, void* dx,
                          void* hd, void* h, void* dhy, void* dh, void* cd, void* c, void* dcy, void* dc, size_t ws,
                          void* w, size_t ks, void* work, size_t rs, void* reserve) {
  null_rnn_backwards++;
  null_rnn_given = !!y | !!dy << 1 | !!dx << 2 | !!h << 3 | !!dhy << 4 | !!dh << 5 | !!c << 6 | !!dcy << 7 | !!dc << 8 |
                   !!w << 9 | !!work << 10 | !!reserve << 11;
  return 0; }
R cudnnRNNBackwardWeights_v8(void* handle, Network* net, int add, void* lengths, void* xd, void* x, void* hd, void* h,
                             void* yd, void* y, size_t ws, void* dw, size_t ks, void* work, size_t rs, void* reserve) {
  null_rnn_weights++;
  return x && h && y && dw && reserve ? 0 : 2000; }
