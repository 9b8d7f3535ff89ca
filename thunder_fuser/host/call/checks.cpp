// SPDX-License-Identifier: Apache-2.0
// Compiled together with native.cpp, behind it. One more type of callables:
//
//     Check     check(T0, T1): whether these are plain tensors like the inputs of a trace
namespace {

// words: for each tensor its dtype, type and index of its device, requires_grad, rank and sizes.
struct Check {
  PyObject_HEAD
  vectorcallfunc call;
  Py_ssize_t count;
  int64_t* words;
};

// True if the tensor is as the words at `want` say; then moves `want` behind these words.
bool is_as(Handle tensor, const int64_t*& want) {
  int32_t dtype, type, index;
  int64_t dim, *sizes;
  if (torch.dtype(tensor, &dtype) || dtype != want[0]) return false;
  if (torch.device_type(tensor, &type) || type != want[1]) return false;
  if (torch.device_index(tensor, &index) || index != want[2]) return false;
  if (torch.requires_grad(*static_cast<void**>(tensor)) != static_cast<bool>(want[3])) return false;
  if (torch.dim(tensor, &dim) || dim != want[4] || torch.sizes(tensor, &sizes)) return false;
  if (std::memcmp(sizes, want + 5, dim * sizeof(int64_t))) return false;
  want += 5 + dim;
  return true;
}

PyObject* check(PyObject* object, PyObject* const* values, size_t flags, PyObject*) {
  auto* self = reinterpret_cast<Check*>(object);
  bool same = PyVectorcall_NARGS(flags) == self->count;
  const int64_t* want = self->words;
  for (Py_ssize_t at = 0; same && at < self->count; ++at) {
    Handle tensor = handle_of(values[at]);
    same = tensor && is_as(tensor, want);
  }
  return PyBool_FromLong(same);
}

void release(PyObject* object) {
  PyMem_Free(reinterpret_cast<Check*>(object)->words);
  PyObject_Free(object);
}

PyTypeObject check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// The words of one tensor: of a sample of its dtype and device, requires_grad and the sizes.
bool put_words(int64_t* to, PyObject* sample, PyObject* requires_grad, PyObject* sizes) {
  Handle tensor = reinterpret_cast<char*>(sample) + TENSOR_OFFSET;
  int32_t dtype, type, index;
  if (torch.dtype(tensor, &dtype) || torch.device_type(tensor, &type)) return false;
  if (torch.device_index(tensor, &index)) return false;
  to[0] = dtype;
  to[1] = type;
  to[2] = index;
  to[3] = requires_grad == Py_True;
  to[4] = PyTuple_GET_SIZE(sizes);
  return put_numbers(to + 5, sizes);
}

}  // namespace

// A Check of a tuple of (sample, requires_grad, sizes); None if a call of torch fails.
extern "C" PyObject* make_check(PyObject* tensors) {
  Py_ssize_t count = PyTuple_GET_SIZE(tensors), all = 1;
  for (Py_ssize_t at = 0; at < count; ++at)
    all += 5 + PyTuple_GET_SIZE(PyTuple_GET_ITEM(PyTuple_GET_ITEM(tensors, at), 2));
  if (!check_type.tp_name && !ready(check_type, "thunder_fuser.Check", sizeof(Check), 0, release))
    return nullptr;
  auto* self = PyObject_New(Check, &check_type);
  if (!self) return nullptr;
  self->call = check;
  self->count = count;
  self->words = static_cast<int64_t*>(PyMem_Malloc(all * sizeof(int64_t)));
  bool good = self->words;
  int64_t* to = self->words;
  for (Py_ssize_t at = 0; good && at < count; ++at) {
    PyObject* row = PyTuple_GET_ITEM(tensors, at);
    PyObject* sizes = PyTuple_GET_ITEM(row, 2);
    good = put_words(to, PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1), sizes);
    to += 5 + PyTuple_GET_SIZE(sizes);
  }
  if (good) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}
