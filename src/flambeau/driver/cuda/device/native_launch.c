/* `KernelLauncher`: the launch function of a kernel, of launchers.py, in C. The compiled wheel has it.
 *
 * A launch copies the kernel's parameters from a template to the stack, writes addresses and scalars there, and calls
 * cuLaunchKernel without the GIL. So launches need no lock: several threads share a template that none changes. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);

enum { MOST_BYTES = 32768, MOST_PARAMETERS = 4096 }; /* CUDA allows 32,764 bytes of parameters */

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  Launch launch;
  void *function;
  unsigned grid[3], block, shared;
  int several;          /* more than one GPU: each launch enters the context of its device */
  PyObject *streams;    /* dict: handle -> CudaStream */
  PyObject *find;       /* function: handle -> CudaStream; raises for an unknown handle */
  PyObject *thread;     /* its `entered` is true if the calling thread has a context */
  PyObject *enter;      /* function: makes the context of a device current */
  PyObject *error;      /* function: CUresult -> exception */
  PyObject *late;       /* function: (CudaStream, handle) -> (offset, number) of parameters known at a launch; or None */
  PyObject *scalars;    /* bytes: one of d, q, Q, c for each scalar */
  Py_ssize_t addresses, scalars_at, tail_at, nbytes, parameters;
  char *params;         /* the template */
  uint32_t *offsets;    /* of each parameter */
} KernelLauncher;

static PyObject *s_native_address, *s_device, *s_entered;
static PyTypeObject *launcher_type;

/* -- one launch ---------------------------------------------------------------------------------------------- */

static int put_addresses(KernelLauncher *self, PyObject *ptrs, char *at) {
  PyObject *fast = PySequence_Fast(ptrs, "the addresses must be a sequence");
  if (!fast) return -1;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
  if (count != self->addresses) {
    PyErr_Format(PyExc_ValueError, "the kernel has %zd addresses, but got %zd", self->addresses, count);
    Py_DECREF(fast);
    return -1;
  }
  PyObject **items = PySequence_Fast_ITEMS(fast);
  for (Py_ssize_t i = 0; i < count; i++) {
    uint64_t ptr = PyLong_AsUnsignedLongLong(items[i]);
    if (ptr == (uint64_t)-1 && PyErr_Occurred()) {
      Py_DECREF(fast);
      return -1;
    }
    memcpy(at + 8 * i, &ptr, 8);
  }
  Py_DECREF(fast);
  return 0;
}

static int put_scalar(char kind, PyObject *x, char **at) {
  if (kind == 'd') {
    double value = PyFloat_AsDouble(x);
    if (value == -1 && PyErr_Occurred()) return -1;
    memcpy(*at, &value, 8);
  } else if (kind == 'q') {
    long long value = PyLong_AsLongLong(x);
    if (value == -1 && PyErr_Occurred()) return -1;
    memcpy(*at, &value, 8);
  } else if (kind == 'Q') {
    PyObject *whole = PyNumber_Index(x);
    if (!whole) return -1;
    unsigned long long value = PyLong_AsUnsignedLongLong(whole);
    Py_DECREF(whole);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    memcpy(*at, &value, 8);
  } else {
    Py_complex value = PyComplex_AsCComplex(x);
    if (value.real == -1 && PyErr_Occurred()) return -1;
    memcpy(*at, &value.real, 8);
    memcpy(*at + 8, &value.imag, 8);
    *at += 8;
  }
  *at += 8;
  return 0;
}

static int put_scalars(KernelLauncher *self, PyObject *scalars, char *at) {
  PyObject *fast = PySequence_Fast(scalars, "the scalars must be a sequence");
  if (!fast) return -1;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
  const char *kinds = PyBytes_AS_STRING(self->scalars);
  int failed = count != PyBytes_GET_SIZE(self->scalars);
  if (failed)
    PyErr_Format(PyExc_ValueError, "the kernel has %zd scalars, but got %zd", PyBytes_GET_SIZE(self->scalars), count);
  for (Py_ssize_t i = 0; i < count && !failed; i++)
    failed = put_scalar(kinds[i], PySequence_Fast_GET_ITEM(fast, i), &at);
  Py_DECREF(fast);
  return failed ? -1 : 0;
}

static int put_late(KernelLauncher *self, PyObject *stream, PyObject *handle, char *params) {
  PyObject *pair[2] = {stream, handle};
  PyObject *values = PyObject_Vectorcall(self->late, pair, 2, NULL);
  if (!values) return -1;
  PyObject *fast = PySequence_Fast(values, "the late parameters must be a sequence");
  Py_DECREF(values);
  if (!fast) return -1;
  int failed = 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast) && !failed; i++) {
    Py_ssize_t at;
    unsigned long long number;
    failed = !PyArg_ParseTuple(PySequence_Fast_GET_ITEM(fast, i), "nK", &at, &number);
    if (!failed && (at < 0 || at + 8 > self->nbytes)) {
      PyErr_SetString(PyExc_ValueError, "a late parameter lies outside of the kernel's parameters");
      failed = 1;
    }
    if (!failed) memcpy(params + at, &number, 8);
  }
  Py_DECREF(fast);
  return failed ? -1 : 0;
}

/* Make the context of a stream's device current, unless it is. */
static int enter_device(KernelLauncher *self, PyObject *stream) {
  if (!self->several) {
    PyObject *entered = PyObject_GetAttr(self->thread, s_entered);
    if (!entered) return -1;
    int is_entered = PyObject_IsTrue(entered);
    Py_DECREF(entered);
    if (is_entered) return is_entered < 0 ? -1 : 0;
  }
  PyObject *device = PyObject_GetAttr(stream, s_device);
  if (!device) return -1;
  PyObject *done = PyObject_CallOneArg(self->enter, device);
  Py_DECREF(device);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

static PyObject *raise_code(KernelLauncher *self, int code) {
  PyObject *error = PyObject_CallFunction(self->error, "i", code);
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(error);
  return NULL;
}

static PyObject *launch_on(KernelLauncher *self, PyObject *ptrs, PyObject *scalars, PyObject *handle,
                           PyObject *stream) {
  if (enter_device(self, stream)) return NULL;
  PyObject *address = PyObject_GetAttr(stream, s_native_address);
  if (!address) return NULL;
  void *native = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  if (!native && PyErr_Occurred()) return NULL;

  _Alignas(16) char params[self->nbytes];
  void *pointers[self->parameters];
  memcpy(params, self->params, self->nbytes);
  for (Py_ssize_t i = 0; i < self->parameters; i++) pointers[i] = params + self->offsets[i];
  if (put_addresses(self, ptrs, params) || put_scalars(self, scalars, params + self->scalars_at)) return NULL;
  if (self->late != Py_None && put_late(self, stream, handle, params)) return NULL;

  int code;
  Py_BEGIN_ALLOW_THREADS;
  code = self->launch(self->function, self->grid[0], self->grid[1], self->grid[2], self->block, 1, 1, self->shared,
                      native, pointers, NULL);
  Py_END_ALLOW_THREADS;
  if (code) return raise_code(self, code);
  Py_RETURN_NONE;
}

/* Launch: (addresses, scalars, handle of the stream). */
static PyObject *launcher_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
  KernelLauncher *self = (KernelLauncher *)callable;
  if (PyVectorcall_NARGS(nargsf) != 3 || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a launch takes three positional arguments: addresses, scalars, stream");
    return NULL;
  }
  PyObject *stream = PyDict_GetItemWithError(self->streams, args[2]);
  if (stream) {
    Py_INCREF(stream);
  } else {
    if (PyErr_Occurred() || !(stream = PyObject_CallOneArg(self->find, args[2]))) return NULL;
  }
  PyObject *result = launch_on(self, args[0], args[1], args[2], stream);
  Py_DECREF(stream);
  return result;
}

/* -- the object ---------------------------------------------------------------------------------------------- */

static int set_offsets(KernelLauncher *self, PyObject *offsets) {
  for (Py_ssize_t i = 0; i < self->parameters; i++) {
    Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(offsets, i));
    if (at == -1 && PyErr_Occurred()) return -1;
    if (at < 0 || at >= self->nbytes) {
      PyErr_SetString(PyExc_ValueError, "a parameter lies outside of the template");
      return -1;
    }
    self->offsets[i] = (uint32_t)at;
  }
  return 0;
}

/* Allocate the template and the offsets, in one block. */
static int allocate_params(KernelLauncher *self) {
  self->params = PyMem_Malloc(self->nbytes + self->parameters * sizeof(uint32_t) + sizeof(uint32_t));
  if (!self->params) {
    PyErr_NoMemory();
    return -1;
  }
  uintptr_t end = (uintptr_t)self->params + self->nbytes;
  self->offsets = (uint32_t *)((end + 3) & ~(uintptr_t)3);
  return 0;
}

static Py_ssize_t count_scalar_bytes(PyObject *kinds) {
  Py_ssize_t nbytes = 0;
  for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(kinds); i++) {
    char kind = PyBytes_AS_STRING(kinds)[i];
    if (!strchr("dqQc", kind) || !kind) return -1;
    nbytes += kind == 'c' ? 16 : 8;
  }
  return nbytes;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"launch", "function", "grid", "block", "shared", "params", "offsets", "addresses", "scalars_at",
                          "scalars", "several", "streams", "find", "thread", "enter", "error", "late", NULL};
  unsigned long long launch, function;
  unsigned grid[3], block, shared;
  Py_buffer params;
  PyObject *offsets, *scalars, *streams, *find, *thread, *enter, *error, *late;
  Py_ssize_t addresses, scalars_at;
  int several;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KK(III)IIy*O!nnSpO!OOOOO", names, &launch, &function, &grid[0], &grid[1],
                                   &grid[2], &block, &shared, &params, &PyTuple_Type, &offsets, &addresses, &scalars_at,
                                   &scalars, &several, &PyDict_Type, &streams, &find, &thread, &enter, &error, &late))
    return NULL;
  KernelLauncher *self = NULL;
  Py_ssize_t scalar_bytes = count_scalar_bytes(scalars);
  int fits = scalar_bytes >= 0 && params.len <= MOST_BYTES && PyTuple_GET_SIZE(offsets) <= MOST_PARAMETERS &&
             addresses >= 0 && scalars_at >= 8 * addresses && scalars_at + scalar_bytes <= params.len;
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "the addresses and scalars do not fit in the parameters");
  } else if ((self = (KernelLauncher *)type->tp_alloc(type, 0))) {
    self->call = launcher_call;
    self->launch = (Launch)(uintptr_t)launch;
    self->function = (void *)(uintptr_t)function;
    memcpy(self->grid, grid, sizeof grid);
    self->block = block, self->shared = shared, self->several = several;
    self->addresses = addresses, self->scalars_at = scalars_at, self->tail_at = scalars_at + scalar_bytes;
    self->nbytes = params.len, self->parameters = PyTuple_GET_SIZE(offsets);
    self->streams = Py_NewRef(streams), self->find = Py_NewRef(find), self->thread = Py_NewRef(thread);
    self->enter = Py_NewRef(enter), self->error = Py_NewRef(error), self->late = Py_NewRef(late);
    self->scalars = Py_NewRef(scalars);
    if (allocate_params(self)) Py_CLEAR(self);
    else {
      memcpy(self->params, params.buf, params.len);
      if (set_offsets(self, offsets)) Py_CLEAR(self);
    }
  }
  PyBuffer_Release(&params);
  return (PyObject *)self;
}

/* Return the launcher of another shape: (grid, the parameters after the scalars, late). */
static PyObject *launcher_of_shape(PyObject *object, PyObject *args) {
  KernelLauncher *self = (KernelLauncher *)object, *other;
  unsigned grid[3];
  const char *tail;
  Py_ssize_t length;
  PyObject *late;
  if (!PyArg_ParseTuple(args, "(III)y#O", &grid[0], &grid[1], &grid[2], &tail, &length, &late)) return NULL;
  if (self->tail_at + length > self->nbytes) {
    PyErr_SetString(PyExc_ValueError, "the tail does not fit in the parameters");
    return NULL;
  }
  if (!(other = (KernelLauncher *)launcher_type->tp_alloc(launcher_type, 0))) return NULL;
  memcpy((char *)other + sizeof(PyObject), object + 1, sizeof(KernelLauncher) - sizeof(PyObject));
  other->late = late, other->params = NULL;
  Py_INCREF(other->streams), Py_INCREF(other->find), Py_INCREF(other->thread), Py_INCREF(other->enter);
  Py_INCREF(other->error), Py_INCREF(other->late), Py_INCREF(other->scalars);
  memcpy(other->grid, grid, sizeof grid);
  if (allocate_params(other)) {
    Py_DECREF(other);
    return NULL;
  }
  memcpy(other->params, self->params, self->nbytes);
  memcpy(other->params + self->tail_at, tail, length);
  memcpy(other->offsets, self->offsets, self->parameters * sizeof(uint32_t));
  return (PyObject *)other;
}

static int launcher_traverse(PyObject *object, visitproc visit, void *arg) {
  KernelLauncher *self = (KernelLauncher *)object;
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->streams);
  Py_VISIT(self->find);
  Py_VISIT(self->thread);
  Py_VISIT(self->enter);
  Py_VISIT(self->error);
  Py_VISIT(self->late);
  return 0;
}

static int launcher_clear(PyObject *object) {
  KernelLauncher *self = (KernelLauncher *)object;
  Py_CLEAR(self->streams);
  Py_CLEAR(self->find);
  Py_CLEAR(self->thread);
  Py_CLEAR(self->enter);
  Py_CLEAR(self->error);
  Py_CLEAR(self->late);
  return 0;
}

static void launcher_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  launcher_clear(object);
  Py_CLEAR(((KernelLauncher *)object)->scalars);
  PyMem_Free(((KernelLauncher *)object)->params);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef launcher_methods[] = {
    {"of_shape", launcher_of_shape, METH_VARARGS, "Return the launch function of another shape of the kernel."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef launcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelLauncher, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot launcher_slots[] = {
    {Py_tp_doc, "The launch function of a kernel: `launch(addresses, scalars, stream)`."},
    {Py_tp_new, launcher_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, launcher_traverse},
    {Py_tp_clear, launcher_clear},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_tp_methods, launcher_methods},
    {Py_tp_members, launcher_members},
    {0, NULL},
};
static PyType_Spec launcher_spec = {
    "flambeau.driver.cuda.device.native_launch.KernelLauncher", sizeof(KernelLauncher), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, launcher_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "native_launch", "The launch function of kernels in C: see launchers.py.", -1, NULL,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_native_launch(void) {
  s_native_address = PyUnicode_InternFromString("native_address");
  s_device = PyUnicode_InternFromString("device");
  s_entered = PyUnicode_InternFromString("entered");
  PyObject *self = PyModule_Create(&module);
  if (!self || !s_native_address || !s_device || !s_entered) return NULL;
  launcher_type = (PyTypeObject *)PyType_FromSpec(&launcher_spec);
  if (!launcher_type || PyModule_AddObjectRef(self, "KernelLauncher", (PyObject *)launcher_type)) return NULL;
  return self;
}
