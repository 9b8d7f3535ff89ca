// SPDX-License-Identifier: Apache-2.0
// The warm path in C: what dispatch.py generates as Python, for calls with plain tensors.
//
//     sizes, strides and alignment of the arguments -> bytes -> runners[bytes](*arguments)
//
// Any other call goes to `general`, the generated Python function. Torch is called through the
// addresses that native.py gives: its C interface for ahead-of-time compiled models, and two
// functions that read a bit of a tensor. So no header of torch is needed.
#include <Python.h>
#include <structmember.h>

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

// In the order of native.py's SYMBOLS.
struct Torch {
  Get64 dim;
  GetArray sizes, strides;
  GetPointer data;
  Get32 layout, dtype, device_type, device_index;
  Bit is_neg, is_conj;
} torch;
PyTypeObject *tensor_type, *parameter_type;
int32_t strided;

constexpr size_t TENSOR_OFFSET = sizeof(PyObject);  // of the at::Tensor in a Python tensor
constexpr size_t STORAGE_OFFSET = 16;               // of the storage in what an at::Tensor points to
constexpr size_t MOST_WORDS = 1024;

struct Dispatch {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *kinds, *runners, *miss, *keep, *general;
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

// Adds a tensor to the key; false if only Python knows what to do with it.
bool put_tensor(Key& key, PyObject* value, bool checked) {
  if (Py_TYPE(value) != tensor_type && Py_TYPE(value) != parameter_type) return false;
  Handle tensor = reinterpret_cast<char*>(value) + TENSOR_OFFSET;
  const char* body = *static_cast<char**>(tensor);
  if (!*reinterpret_cast<void* const*>(body + STORAGE_OFFSET)) return false;
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

PyObject* call(PyObject* object, PyObject* const* values, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  Key key;
  bool is_plain = !names && count == PyBytes_GET_SIZE(self->kinds) && put_all(key, self, values);
  if (!is_plain) return PyObject_Vectorcall(self->general, values, flags, names);
  PyObject* run = find(self, key, values, count);
  if (!run) return nullptr;
  PyObject* results = PyObject_Vectorcall(run, values, flags, nullptr);
  Py_DECREF(run);
  return results;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  Py_VISIT(self->runners);
  Py_VISIT(self->miss);
  Py_VISIT(self->keep);
  Py_VISIT(self->general);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatch*>(object);
  Py_CLEAR(self->runners);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->keep);
  Py_CLEAR(self->general);
  return 0;
}

void destroy(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_CLEAR(reinterpret_cast<Dispatch*>(object)->kinds);
  PyObject_GC_Del(object);
}

PyMemberDef members[] = {
    {"runners", T_OBJECT_EX, offsetof(Dispatch, runners), READONLY, nullptr},
    {"general", T_OBJECT_EX, offsetof(Dispatch, general), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

// Prepares the type of dispatches. addresses: as in Torch; layout: the number of the strided one.
extern "C" PyObject* start(void** addresses, PyObject* tensor, PyObject* parameter, int layout) {
  std::memcpy(&torch, addresses, sizeof(torch));
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor);
  parameter_type = reinterpret_cast<PyTypeObject*>(parameter);
  strided = layout;
  type.tp_name = "thunder_fuser.Dispatch";
  type.tp_basicsize = sizeof(Dispatch);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Dispatch, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = members;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = destroy;
  if (PyType_Ready(&type) < 0) return nullptr;
  Py_RETURN_NONE;
}

// A new dispatch, of (kinds, runners, miss, keep, general, checked).
extern "C" PyObject* make(PyObject* fields) {
  PyObject* parts[5];
  int checked;
  if (!PyArg_ParseTuple(fields, "SOOOOp", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                        &checked))
    return nullptr;
  auto* self = PyObject_GC_New(Dispatch, &type);
  if (!self) return nullptr;
  for (PyObject* part : parts) Py_INCREF(part);
  self->call = call;
  self->kinds = parts[0];
  self->runners = parts[1];
  self->miss = parts[2];
  self->keep = parts[3];
  self->general = parts[4];
  self->checked = checked;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}
