// SPDX-License-Identifier: Apache-2.0
// The warm path in C, for calls with plain tensors. Three types of callables:
//
//     Dispatch  finds and runs a call's program, as the Python that dispatch.py generates does:
//               sizes, strides and alignment of the arguments -> bytes -> runners[bytes](*arguments)
//     Empty     T4 = empty_0(): allocates one result of a program
//     Launch    kernel_0(T0, T1, T4, 0.5): enqueues a CUDA kernel, or calls a CPU kernel
//
// Each holds a Python callable that does the same, and calls it in cases that C does not handle.
// Torch is called through addresses that native.py finds: its C interface for ahead-of-time
// compiled models, and a few C++ functions. So no header of torch or CUDA is needed.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

using Handle = void*;  // the address of an at::Tensor
using Get32 = int (*)(Handle, int32_t*);
using Get64 = int (*)(Handle, int64_t*);
using GetArray = int (*)(Handle, int64_t**);
using GetPointer = int (*)(Handle, void**);
using Bit = bool (*)(Handle);
using Allocate = int (*)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                         Handle*);
using Wrap = PyObject* (*)(Handle);
using Delete = int (*)(Handle);
using Count = int (*)();
using Flag = bool (*)();
using GetStream = int (*)(int32_t, void**);
using CudaLaunch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, void*, void**, void**);

// In the order of native.py's SYMBOLS; stream is null without CUDA.
struct Torch {
  Get64 dim;
  GetArray sizes, strides;
  GetPointer data;
  Get32 layout, dtype, device_type, device_index;
  Bit is_neg, is_conj;
  Allocate empty_strided;
  Delete destroy;
  Count threads;
  Flag profiled;
  Wrap wrap;
  GetStream stream;
  Bit requires_grad;  // takes the body that a Handle points to
} torch;
PyTypeObject *tensor_type, *parameter_type;
int32_t strided;

constexpr size_t TENSOR_OFFSET = sizeof(PyObject);  // of the at::Tensor in a Python tensor
constexpr size_t STORAGE_OFFSET = 16;               // of the storage in an at::Tensor's body
constexpr size_t MOST_WORDS = 8192;
constexpr size_t MOST_DIMENSIONS = 16;
constexpr Py_ssize_t MOST_VALUES = 128;
constexpr size_t MOST_TENSORS = 256;  // of a call that writes some of them
constexpr unsigned WRITTEN = 0x80, CHECKED = 0x40;  // beside the bytes of an element
constexpr Py_ssize_t MOST_CPU_VALUES = 24;  // with the number of threads, see call_cpu

struct Dispatch {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *kinds, *runners, *miss, *keep, *general;
  PyObject *range, *name;  // makes a profiler range, and the range's name; name None: no range
  PyObject *written, *in_turn;  // see may_write; None if nothing is written
  bool checked;
};

struct Key {
  int64_t words[MOST_WORDS];
  size_t count = 0;
  bool has_room(int64_t more) const { return count + more <= MOST_WORDS; }
  void put(int64_t word) { words[count++] = word; }
  void put(const int64_t* from, int64_t n) {
    std::memcpy(words + count, from, n * sizeof(int64_t));
    count += n;
  }
};

// The at::Tensor of a Python tensor of torch's own class, with a storage; null for anything else.
Handle handle_of(PyObject* value) {
  if (Py_TYPE(value) != tensor_type && Py_TYPE(value) != parameter_type) return nullptr;
  Handle tensor = reinterpret_cast<char*>(value) + TENSOR_OFFSET;
  const char* body = *static_cast<char**>(tensor);
  return *reinterpret_cast<void* const*>(body + STORAGE_OFFSET) ? tensor : nullptr;
}

// Adds a tensor to the key; false if only Python can handle it.
bool put_tensor(Key& key, PyObject* value, bool checked) {
  Handle tensor = handle_of(value);
  if (!tensor) return false;
  int32_t layout;
  if (torch.layout(tensor, &layout) || layout != strided) return false;
  if (torch.is_neg(tensor) || torch.is_conj(tensor)) return false;
  int64_t dim, *sizes, *strides;
  void* data;
  if (torch.dim(tensor, &dim) || !key.has_room(2 * dim + 5)) return false;
  if (torch.sizes(tensor, &sizes) || torch.strides(tensor, &strides)) return false;
  if (torch.data(tensor, &data) || !data) return false;
  key.put(dim << 4 | (reinterpret_cast<uintptr_t>(data) & 15));
  key.put(sizes, dim);
  key.put(strides, dim);
  if (!checked) return true;
  int32_t dtype, type, index;
  if (torch.dtype(tensor, &dtype) || torch.device_type(tensor, &type)) return false;
  if (torch.device_index(tensor, &index)) return false;
  key.put(static_cast<int64_t>(dtype) << 32 | type);
  key.put(index);
  return true;
}

bool put_size(Key& key, PyObject* value) {
  if (!PyLong_CheckExact(value) || !key.has_room(1)) return false;
  int overflow;
  int64_t word = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow) return false;
  key.put(word);
  return true;
}

// kinds: t for a tensor, s for a scalar that shapes use, n for any other number.
bool put_all(Key& key, const Dispatch* self, PyObject* const* values) {
  const char* kinds = PyBytes_AS_STRING(self->kinds);
  for (Py_ssize_t at = 0; kinds[at]; ++at) {
    if (kinds[at] == 't' && !put_tensor(key, values[at], self->checked)) return false;
    if (kinds[at] == 's' && !put_size(key, values[at])) return false;
  }
  return true;
}

struct Span {
  uintptr_t from, to;  // the bytes of a tensor
  bool is_written;
};

bool span_of(Span& span, Handle tensor, unsigned mark) {
  int64_t dim, *sizes, *strides;
  void* data;
  if (torch.dim(tensor, &dim) || torch.sizes(tensor, &sizes) || torch.strides(tensor, &strides) ||
      torch.data(tensor, &data))
    return false;
  int64_t last = 0;
  for (int64_t at = 0; at < dim; ++at) last += (sizes[at] - 1) * strides[at];
  span.from = reinterpret_cast<uintptr_t>(data);
  span.to = span.from + (last + 1) * (mark & ~(WRITTEN | CHECKED));
  span.is_written = mark & WRITTEN;
  return true;
}

// False if a written tensor shares memory with another one, or must not be written.
// `written` has a byte for each value: the bytes of an element, WRITTEN, and CHECKED for a tensor
// that must not require a gradient; 0 for a number.
bool may_write(const Dispatch* self, PyObject* const* values) {
  if (self->written == Py_None) return true;
  const char* marks = PyBytes_AS_STRING(self->written);
  Span spans[MOST_TENSORS];
  size_t count = 0;
  for (Py_ssize_t at = 0; at < PyBytes_GET_SIZE(self->written); ++at) {
    unsigned mark = static_cast<unsigned char>(marks[at]);
    if (!mark) continue;
    Handle tensor = handle_of(values[at]);
    if (!tensor || count == MOST_TENSORS || !span_of(spans[count++], tensor, mark)) return false;
    if ((mark & CHECKED) && torch.requires_grad(*static_cast<void**>(tensor))) return false;
  }
  for (size_t at = 0; at < count; ++at)
    for (size_t other = 0; spans[at].is_written && other < count; ++other)
      if (other != at && spans[at].from < spans[other].to && spans[other].from < spans[at].to)
        return false;
  return true;
}

// A new reference to the runner of the key, made on a miss.
PyObject* find(Dispatch* self, const Key& key, PyObject* const* values, Py_ssize_t count) {
  const char* bytes = reinterpret_cast<const char*>(key.words);
  PyObject* name = PyBytes_FromStringAndSize(bytes, key.count * sizeof(int64_t));
  if (!name) return nullptr;
  PyObject* run = PyDict_GetItemWithError(self->runners, name);
  if (run) {
    Py_INCREF(run);
  } else if (!PyErr_Occurred()) {
    PyObject* all = PyTuple_New(count);
    for (Py_ssize_t at = 0; all && at < count; ++at) {
      Py_INCREF(values[at]);
      PyTuple_SET_ITEM(all, at, values[at]);
    }
    PyObject* made = all ? PyObject_CallFunctionObjArgs(self->miss, all, nullptr) : nullptr;
    if (made) run = PyObject_CallFunctionObjArgs(self->keep, self->runners, name, made, nullptr);
    Py_XDECREF(made);
    Py_XDECREF(all);
  }
  Py_DECREF(name);
  return run;
}

PyObject* call_in(Dispatch* self, PyObject* const* values, size_t flags, PyObject* names) {
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  Key key;
  bool is_plain = !names && count == PyBytes_GET_SIZE(self->kinds) && put_all(key, self, values);
  if (!is_plain) return PyObject_Vectorcall(self->general, values, flags, names);
  if (!may_write(self, values)) return PyObject_Vectorcall(self->in_turn, values, flags, names);
  PyObject* run = find(self, key, values, count);
  if (!run) return nullptr;
  PyObject* results = PyObject_Vectorcall(run, values, flags, nullptr);
  Py_DECREF(run);
  return results;
}

PyObject* call_in_range(Dispatch* self, PyObject* const* values, size_t flags, PyObject* names) {
  PyObject* range = PyObject_CallOneArg(self->range, self->name);
  PyObject* begun = range ? PyObject_CallMethod(range, "__enter__", nullptr) : nullptr;
  PyObject* results = begun ? call_in(self, values, flags, names) : nullptr;
  if (begun) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* ended = PyObject_CallMethod(range, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (!ended) Py_CLEAR(results);
    if (type) PyErr_Restore(type, value, trace);
    Py_XDECREF(ended);
  }
  Py_XDECREF(begun);
  Py_XDECREF(range);
  return results;
}

PyObject* call(PyObject* object, PyObject* const* values, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  bool has_range = torch.profiled() && self->name != Py_None;
  return (has_range ? call_in_range : call_in)(self, values, flags, names);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  Py_VISIT(self->runners);
  Py_VISIT(self->miss);
  Py_VISIT(self->keep);
  Py_VISIT(self->general);
  Py_VISIT(self->in_turn);
  Py_VISIT(self->range);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  Py_CLEAR(self->runners);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->keep);
  Py_CLEAR(self->general);
  Py_CLEAR(self->in_turn);
  Py_CLEAR(self->range);
  return 0;
}

void destroy(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_CLEAR(reinterpret_cast<Dispatch*>(object)->kinds);
  Py_CLEAR(reinterpret_cast<Dispatch*>(object)->name);
  Py_CLEAR(reinterpret_cast<Dispatch*>(object)->written);
  PyObject_GC_Del(object);
}

PyMemberDef members[] = {
    {"runners", T_OBJECT_EX, offsetof(Dispatch, runners), READONLY, nullptr},
    {"general", T_OBJECT_EX, offsetof(Dispatch, general), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyTypeObject dispatch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- what programs call

// Holds one Python object, which cannot refer back to it, so it is never part of a reference cycle.
struct Callable {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* python;
};

struct Empty : Callable {
  int32_t dtype, device_type, device_index;
  int64_t dim, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
};

PyObject* allocate(PyObject* object, PyObject* const*, size_t, PyObject*) {
  auto* self = reinterpret_cast<Empty*>(object);
  Handle made = nullptr;
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = torch.empty_strided(self->dim, self->sizes, self->strides, self->dtype,
                               self->device_type, self->device_index, &made);
  Py_END_ALLOW_THREADS;
  if (failed || !made) return PyObject_CallNoArgs(self->python);  // raises torch's error
  PyObject* result = torch.wrap(made);
  torch.destroy(made);
  return result;
}

struct Launch : Callable {
  void* function;
  CudaLaunch launch;  // null for a CPU kernel
  int32_t device;
  unsigned dims[7];  // grid, block, bytes of shared memory
  bool threaded;     // a CPU kernel may use all threads
  Py_ssize_t count, all;  // number of a call's values; the same with the sizes that follow them
  char kinds[MOST_VALUES];
  uint64_t sizes[MOST_VALUES];
};

// Writes a value as the kernel takes it: p for an address, q, d and f as in Python's struct.
bool put_value(uint64_t& word, char kind, PyObject* value) {
  if (kind == 'p') {
    Handle tensor = handle_of(value);
    void* data;
    if (!tensor || torch.data(tensor, &data)) return false;
    word = reinterpret_cast<uintptr_t>(data);
    return true;
  }
  if (kind == 'q') {
    int overflow = !PyLong_CheckExact(value);
    if (!overflow) word = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
  }
  if (!PyFloat_CheckExact(value)) return false;
  double number = PyFloat_AS_DOUBLE(value);
  float narrow = static_cast<float>(number);
  word = 0;
  if (kind == 'd') {
    std::memcpy(&word, &number, sizeof(number));
    return true;
  }
  if (std::isinf(narrow) && !std::isinf(number)) return false;
  std::memcpy(&word, &narrow, sizeof(narrow));
  return true;
}

// The calling convention passes the first integers in registers and the rest on the stack. So a
// function may be called with more arguments than it takes.
void call_cpu(void* function, const uint64_t* w) {
  using Kernel = void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t);
  reinterpret_cast<Kernel>(function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9],
                                     w[10], w[11], w[12], w[13], w[14], w[15], w[16], w[17],
                                     w[18], w[19], w[20], w[21], w[22], w[23]);
}

// False if nothing was run.
bool run_cpu(const Launch* self, uint64_t* words) {
  words[self->all] = self->threaded ? torch.threads() : 1;
  Py_BEGIN_ALLOW_THREADS;
  call_cpu(self->function, words);
  Py_END_ALLOW_THREADS;
  return true;
}

bool run_cuda(const Launch* self, uint64_t* words) {
  void* stream;
  // On another stream a CUDA graph may be captured. Then Python must note the kernel (_CAPTURED).
  if (torch.stream(self->device, &stream) || stream) return false;
  void* addresses[MOST_VALUES];
  for (Py_ssize_t at = 0; at < self->all; ++at) addresses[at] = &words[at];
  const unsigned* d = self->dims;
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = self->launch(self->function, d[0], d[1], d[2], d[3], d[4], d[5], d[6], stream,
                        addresses, nullptr);
  Py_END_ALLOW_THREADS;
  return !failed;
}

PyObject* launch(PyObject* object, PyObject* const* values, size_t flags, PyObject*) {
  auto* self = reinterpret_cast<Launch*>(object);
  uint64_t words[MOST_VALUES] = {};
  bool done = PyVectorcall_NARGS(flags) == self->count;
  if (!self->launch && torch.profiled()) done = false;  // Python names it in a profile
  for (Py_ssize_t at = 0; done && at < self->count; ++at)
    done = put_value(words[at], self->kinds[at], values[at]);
  if (done) {
    std::memcpy(words + self->count, self->sizes, (self->all - self->count) * sizeof(uint64_t));
    done = self->launch ? run_cuda(self, words) : run_cpu(self, words);
  }
  if (!done) return PyObject_Vectorcall(self->python, values, flags, nullptr);
  Py_RETURN_NONE;
}

void forget(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Callable*>(object)->python);
  PyObject_Free(object);
}

PyTypeObject empty_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject launch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool ready(PyTypeObject& type, const char* name, size_t size, unsigned long more, destructor end) {
  type.tp_name = name;
  type.tp_basicsize = size;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | more;
  type.tp_vectorcall_offset = offsetof(Callable, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = end;
  return PyType_Ready(&type) == 0;
}

template <typename T>
T* made(PyTypeObject& type, vectorcallfunc call, PyObject* python) {
  T* self = PyObject_New(T, &type);
  if (!self) return nullptr;
  Py_INCREF(python);
  self->call = call;
  self->python = python;
  return self;
}

bool put_numbers(int64_t* to, PyObject* tuple) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(tuple); ++at)
    to[at] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, at));
  return !PyErr_Occurred();
}

}  // namespace

// Prepares the types. addresses: as in Torch. layout: torch's number of the strided layout.
extern "C" PyObject* native_calls(void** addresses, PyObject* tensor, PyObject* parameter, int layout) {
  std::memcpy(&torch, addresses, sizeof(torch));
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor);
  parameter_type = reinterpret_cast<PyTypeObject*>(parameter);
  strided = layout;
  dispatch_type.tp_members = members;
  dispatch_type.tp_traverse = traverse;
  dispatch_type.tp_clear = clear;
  bool good = ready(dispatch_type, "thunder_fuser.Dispatch", sizeof(Dispatch),
                    Py_TPFLAGS_HAVE_GC, destroy) &&
              ready(empty_type, "thunder_fuser.Empty", sizeof(Empty), 0, forget) &&
              ready(launch_type, "thunder_fuser.Launch", sizeof(Launch), 0, forget);
  if (!good) return nullptr;
  Py_RETURN_NONE;
}

// A Dispatch of (kinds, runners, miss, keep, general, checked, range, name, written, in_turn).
extern "C" PyObject* make_dispatch(PyObject* fields) {
  PyObject* parts[9];
  int checked;
  if (!PyArg_ParseTuple(fields, "SOOOOpOOOO", &parts[0], &parts[1], &parts[2], &parts[3],
                        &parts[4], &checked, &parts[5], &parts[6], &parts[7], &parts[8]))
    return nullptr;
  auto* self = PyObject_GC_New(Dispatch, &dispatch_type);
  if (!self) return nullptr;
  for (PyObject* part : parts) Py_INCREF(part);
  self->call = call;
  self->kinds = parts[0];
  self->runners = parts[1];
  self->miss = parts[2];
  self->keep = parts[3];
  self->general = parts[4];
  self->range = parts[5];
  self->name = parts[6];
  self->written = parts[7];
  self->in_turn = parts[8];
  self->checked = checked;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

// An Empty of (python, a tensor of its type and device, sizes, strides); None for many dimensions.
extern "C" PyObject* make_empty(PyObject* fields) {
  PyObject *python, *sample, *sizes, *strides;
  if (!PyArg_ParseTuple(fields, "OOO!O!", &python, &sample, &PyTuple_Type, &sizes, &PyTuple_Type,
                        &strides))
    return nullptr;
  Handle tensor = reinterpret_cast<char*>(sample) + TENSOR_OFFSET;
  size_t dim = PyTuple_GET_SIZE(sizes);
  if (dim > MOST_DIMENSIONS || PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(sizes)) Py_RETURN_NONE;
  auto* self = made<Empty>(empty_type, allocate, python);
  if (!self) return nullptr;
  self->dim = dim;
  bool good = !torch.dtype(tensor, &self->dtype) &&
              !torch.device_type(tensor, &self->device_type) &&
              !torch.device_index(tensor, &self->device_index) &&
              put_numbers(self->sizes, sizes) && put_numbers(self->strides, strides);
  if (good) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

// A Launch of (python, kinds, sizes, function, cuLaunchKernel or 0, device, grid + block + shared
// memory, threaded); None for more values than there is room for.
extern "C" PyObject* make_launch(PyObject* fields) {
  PyObject *python, *sizes;
  const char* kinds;
  Py_ssize_t count;
  unsigned long long function, launcher;
  int device, threaded;
  unsigned d[7];
  if (!PyArg_ParseTuple(fields, "Oy#O!KKi(IIIIIII)p", &python, &kinds, &count, &PyTuple_Type,
                        &sizes, &function, &launcher, &device, &d[0], &d[1], &d[2], &d[3], &d[4],
                        &d[5], &d[6], &threaded))
    return nullptr;
  Py_ssize_t all = count + PyTuple_GET_SIZE(sizes);
  Py_ssize_t most = launcher ? MOST_VALUES : MOST_CPU_VALUES;
  if (all >= most || (launcher && !torch.stream)) Py_RETURN_NONE;
  auto* self = made<Launch>(launch_type, ::launch, python);
  if (!self) return nullptr;
  self->function = reinterpret_cast<void*>(function);
  self->launch = reinterpret_cast<CudaLaunch>(launcher);
  self->device = device;
  self->threaded = threaded;
  self->count = count;
  self->all = all;
  std::memcpy(self->dims, d, sizeof(d));
  std::memcpy(self->kinds, kinds, count);
  if (put_numbers(reinterpret_cast<int64_t*>(self->sizes), sizes))
    return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return nullptr;
}
