// The work of a guard in each step without Python: reading tensors, checking the outputs of modules, keeping the
// state of generators and buffers, and leaving a dispatch mode.  A recording has the memory of operands from it.
//
// All of it does what Python does too (finiteness.py, module_watch.py, step_state.py, tape.py,
// source_lines.py, recording.py).  What is out of the ordinary is left to Python, and so is everything that is found.

#include <Python.h>
#include <structmember.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../engine/ops/aten/references.h"
#include "elements.h"

namespace {

using Given = PyObject* const*;

template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// An object of the garbage collector whose `references()` are pointers to what it holds.
template <class Object>
int traverse(PyObject* self, visitproc visit, void* arg) {
  for (PyObject** reference : reinterpret_cast<Object*>(self)->references()) Py_VISIT(*reference);
  return 0;
}

template <class Object>
int clear(PyObject* self) {
  for (PyObject** reference : reinterpret_cast<Object*>(self)->references()) Py_CLEAR(*reference);
  return 0;
}

template <class Object>
void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear<Object>(self);
  if constexpr (requires { &Object::release; }) reinterpret_cast<Object*>(self)->release();
  Py_TYPE(self)->tp_free(self);
}

template <class Object>
bool add_type(PyObject* module, PyTypeObject& type, const char* name, newfunc make) {
  type.tp_name = name;
  type.tp_basicsize = sizeof(Object);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_new = make;
  type.tp_dealloc = deallocate<Object>;
  type.tp_traverse = traverse<Object>;
  type.tp_clear = clear<Object>;
  if constexpr (requires { &Object::vectorcall; }) {
    type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    type.tp_vectorcall_offset = offsetof(Object, vectorcall);
    type.tp_call = PyVectorcall_Call;
  }
  return PyModule_AddType(module, &type) == 0;
}

// Names of attributes.
struct Names {
  PyObject *active, *last_finite, *dictionary, *forward, *inplace, *check_gradient, *file, *parameters;
} names;

// -- elements ---------------------------------------------------------------------------------

bool is_plain(PyObject* value) {
  return Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(THPVariableClass) ||
      Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(ParameterClass);
}

// The exponents, as a format stores them, that a check does not allow.
enum class Limit { FINITE, SQUARE, MODERATE };

template <class F>
int exponent_of(Limit limit, int moderate) {
  if (limit == Limit::SQUARE) return F::BIAS + (F::SPECIAL + 1) / 4;
  if (limit == Limit::MODERATE) return std::min(F::BIAS + moderate, F::SPECIAL);
  return F::SPECIAL;
}

template <class F>
bool words_stay_below(const c10::TensorImpl& tensor, Limit limit, int moderate) {
  const auto* words = static_cast<const typename F::Type*>(tensor.data());
  return !reaches<F>(words, tensor.numel(), exponent_of<F>(limit, moderate));
}

// Whether all numbers of a tensor are below a limit; nothing if it is not dense floats in host memory.
std::optional<bool> stays_below(const c10::TensorImpl& tensor, Limit limit, int moderate = 0) {
  if (!readable(tensor) || !tensor.is_non_overlapping_and_dense_or_false()) return std::nullopt;
  switch (c10::typeMetaToScalarType(tensor.dtype())) {
    case c10::ScalarType::Float: return words_stay_below<F32>(tensor, limit, moderate);
    case c10::ScalarType::Double: return words_stay_below<F64>(tensor, limit, moderate);
    case c10::ScalarType::Half: return words_stay_below<F16>(tensor, limit, moderate);
    case c10::ScalarType::BFloat16: return words_stay_below<BF16>(tensor, limit, moderate);
    default: return std::nullopt;
  }
}

// Returns True or False for a list of dense floats in host memory, None for others, or null with an exception.
PyObject* all_stay_below(PyObject* tensors, Limit limit, int moderate) {
  if (!PyList_CheckExact(tensors) && !PyTuple_CheckExact(tensors)) Py_RETURN_NONE;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(tensors);
  PyObject** items = PySequence_Fast_ITEMS(tensors);
  bool below = true;
  HANDLE_TH_ERRORS
  for (Py_ssize_t index = 0; index < count; ++index) {
    if (!is_plain(items[index])) Py_RETURN_NONE;
    const at::Tensor& tensor = THPVariable_Unpack(items[index]);
    if (tensor.is_cpu() && tensor.sym_numel() == 0) continue;
    const auto found = stays_below(*tensor.unsafeGetTensorImpl(), limit, moderate);
    if (!found) Py_RETURN_NONE;
    below &= *found;
  }
  return PyBool_FromLong(below);
  END_HANDLE_TH_ERRORS
}

// squares_finite(tensors)
PyObject* squares_finite(PyObject*, PyObject* tensors) { return all_stay_below(tensors, Limit::SQUARE, 0); }

// moderate(tensors, exponent)
PyObject* moderate(PyObject*, Given given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "moderate takes tensors and an exponent");
    return nullptr;
  }
  const long exponent = PyLong_AsLong(given[1]);
  if (exponent == -1 && PyErr_Occurred()) return nullptr;
  return all_stay_below(given[0], Limit::MODERATE, int(exponent));
}

// -- memory of tensors ------------------------------------------------------------------------

// Whether a tensor is strided, with memory and a dtype that a program can hold; false for rare ones that are too.
bool is_usual(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet unusual{
      c10::DispatchKey::NestedTensor, c10::DispatchKey::ZeroTensor, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize};
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || tensor.is_meta() || tensor.layout() != c10::kStrided || impl.key_set().has_any(unusual) ||
      impl.has_symbolic_sizes_strides())
    return false;
  switch (c10::typeMetaToScalarType(tensor.dtype())) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Long:
    case c10::ScalarType::Int:
    case c10::ScalarType::Bool: return true;
    default: return false;
  }
}

PyObject* tuple_of(c10::IntArrayRef numbers) {
  Owned made(PyTuple_New(Py_ssize_t(numbers.size())));
  for (size_t index = 0; made && index < numbers.size(); ++index) {
    PyObject* number = PyLong_FromLongLong(numbers[index]);
    if (number == nullptr) return nullptr;
    PyTuple_SET_ITEM(made.object, Py_ssize_t(index), number);
  }
  return made.release();
}

// usual_key(tensor): what `internals.key_of` returns, or None for an unusual tensor
PyObject* usual_key(PyObject*, PyObject* value) {
  if (!is_plain(value)) Py_RETURN_NONE;
  HANDLE_TH_ERRORS
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!is_usual(tensor)) Py_RETURN_NONE;
  return Py_BuildValue(
      "(NLNNNi)", PyLong_FromVoidPtr(tensor.storage().unsafeGetStorageImpl()),
      static_cast<long long>(tensor.storage_offset()), tuple_of(tensor.sizes()), tuple_of(tensor.strides()),
      Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()))),
      tensor.is_conj() + 2 * tensor.is_neg());
  END_HANDLE_TH_ERRORS
}

// gradients(parameters): a list of them, with None for a parameter without one; None for unusual parameters
PyObject* gradients(PyObject*, PyObject* parameters) {
  if (!PyList_CheckExact(parameters)) Py_RETURN_NONE;
  Owned found(PyList_New(PyList_GET_SIZE(parameters)));
  if (!found) return nullptr;
  HANDLE_TH_ERRORS
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(parameters); ++index) {
    PyObject* parameter = PyList_GET_ITEM(parameters, index);
    // torch warns when the gradient of any tensor but a leaf is read.
    if (!is_plain(parameter) || !THPVariable_Unpack(parameter).is_leaf()) Py_RETURN_NONE;
    const at::Tensor& gradient = THPVariable_Unpack(parameter).grad();
    PyObject* wrapped = gradient.defined() ? THPVariable_Wrap(gradient) : Py_NewRef(Py_None);
    if (wrapped == nullptr) return nullptr;
    PyList_SET_ITEM(found.object, index, wrapped);
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

// The identities, addresses and versions of tensors, one after the other.
struct Writes {
  std::vector<uint64_t> identities, addresses, versions;

  // Returns false for another value than a tensor of torch's own classes whose writes are counted.
  bool add(PyObject* value) {
    if (!is_plain(value)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (tensor.is_inference() || !tensor.has_storage()) return false;
    identities.push_back(reinterpret_cast<uintptr_t>(value));
    addresses.push_back(reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data()));
    versions.push_back(tensor._version());
    return true;
  }

  // Adds the values of a dictionary or the items of a list.
  bool add_all(PyObject* values) {
    if (PyList_CheckExact(values)) {
      for (Py_ssize_t index = 0; index < PyList_GET_SIZE(values); ++index)
        if (!add(PyList_GET_ITEM(values, index))) return false;
      return true;
    }
    if (!PyDict_Check(values)) return false;
    PyObject *key, *value;
    for (Py_ssize_t place = 0; PyDict_Next(values, &place, &key, &value);)
      if (value != Py_None && !add(value)) return false;
    return true;
  }
};

bool add_optimizer(Writes& writes, PyObject* groups, PyObject* state) {
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(groups); ++index) {
    PyObject* group = PyList_GET_ITEM(groups, index);
    PyObject* parameters = PyDict_Check(group) ? PyDict_GetItemWithError(group, names.parameters) : nullptr;
    if (parameters == nullptr || !writes.add_all(parameters)) return false;
  }
  PyObject *parameter, *entries;
  for (Py_ssize_t place = 0; PyDict_Next(state, &place, &parameter, &entries);)
    if (!writes.add_all(entries)) return false;
  return true;
}

// writes(param_groups, state): what `updates._writes_of` returns, as bytes; None for other values than tensors
PyObject* writes(PyObject*, Given given, Py_ssize_t count) {
  if (count != 2 || !PyList_CheckExact(given[0]) || !PyDict_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "writes takes the groups and the state of an optimizer");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Writes found;
  if (!add_optimizer(found, given[0], given[1])) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
  const size_t size = found.identities.size() * sizeof(uint64_t);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(3 * size));
  if (bytes == nullptr || size == 0) return bytes;
  char* place = PyBytes_AS_STRING(bytes);
  for (const auto* part : {&found.identities, &found.addresses, &found.versions}) {
    std::memcpy(place, part->data(), size);
    place += size;
  }
  return bytes;
  END_HANDLE_TH_ERRORS
}

// -- lines of the user ------------------------------------------------------------------------

// What a frame is to the search for the user's line: the numbers of `source_lines.kind_of_frame`.
enum Kind : int { PASSED_OVER = 0, USER = 1, UNUSUAL = 2 };

std::unordered_map<PyObject*, int> kinds;  // of codes, which `kind_of_frame` keeps

// Returns the kind of a code; -1 with an exception.
int kind_of(PyObject* code, PyObject* kind_of_frame) {
  const auto known = kinds.find(code);
  if (known != kinds.end()) return known->second;
  Owned found(PyObject_CallOneArg(kind_of_frame, code));
  const long kind = found ? PyLong_AsLong(found.object) : -1;
  if (kind == -1 && PyErr_Occurred()) return -1;
  return kinds[code] = int(kind);
}

// Goes from frame to frame, outwards, to the next one that is not passed over.
struct Search {
  explicit Search(PyObject* frame) : frame(Py_XNewRef(frame)) {}

  // Returns the kind of the frame; PASSED_OVER if there is none, -1 with an exception.
  int next(PyObject* kind_of_frame) {
    for (; frame; leave()) {
      code = Owned(reinterpret_cast<PyObject*>(PyFrame_GetCode(here())));
      const int kind = kind_of(code.object, kind_of_frame);
      if (kind != PASSED_OVER) return kind;
    }
    return PASSED_OVER;
  }

  void leave() { frame = Owned(reinterpret_cast<PyObject*>(PyFrame_GetBack(here()))); }

  PyFrameObject* here() const { return reinterpret_cast<PyFrameObject*>(frame.object); }

  Owned frame;
  Owned code;  // of this frame
};

// Returns a tuple with `place_of(search)` for each frame of the user, at most `most`; None with unusual frames.
template <typename PlaceOf>
PyObject* places_of_user(Given given, Py_ssize_t count, const char* usage, const PlaceOf& place_of) {
  if (count != 3 || (given[0] != Py_None && !PyFrame_Check(given[0]))) {
    PyErr_SetString(PyExc_TypeError, usage);
    return nullptr;
  }
  const Py_ssize_t most = PyLong_AsSsize_t(given[1]);
  Owned found(most == -1 && PyErr_Occurred() ? nullptr : PyList_New(0));
  if (!found) return nullptr;
  Search search(given[0] == Py_None ? nullptr : given[0]);
  while (PyList_GET_SIZE(found.object) < most) {
    const int kind = search.next(given[2]);
    if (kind < 0) return nullptr;
    if (kind == UNUSUAL) Py_RETURN_NONE;
    if (kind == PASSED_OVER) break;
    Owned place(place_of(search));
    if (!place || PyList_Append(found.object, place.object) < 0) return nullptr;
    search.leave();
  }
  return PyList_AsTuple(found.object);
}

std::map<std::pair<PyObject*, int>, PyObject*> lines;  // of instructions of codes, which `kind_of_frame` keeps

// user_lines(frame, most, kind_of_frame): the files and lines of the frames.
PyObject* user_lines(PyObject*, Given given, Py_ssize_t count) {
  return places_of_user(given, count, "user_lines takes a frame, a number and a function", [](const Search& search) {
    PyObject*& line = lines[{search.code.object, PyFrame_GetLasti(search.here())}];
    if (line == nullptr) {
      Owned file(PyObject_GetAttr(search.code.object, names.file));
      line = file ? Py_BuildValue("Oi", file.object, PyFrame_GetLineNumber(search.here())) : nullptr;
    }
    return Py_XNewRef(line);
  });
}

// user_places(frame, most, kind_of_frame): the codes of the frames, and the instructions that run in them.
PyObject* user_places(PyObject*, Given given, Py_ssize_t count) {
  return places_of_user(given, count, "user_places takes a frame, a number and a function", [](const Search& search) {
    return Py_BuildValue("Oi", search.code.object, PyFrame_GetLasti(search.here()));
  });
}

// user_frame(frame, kind_of_frame): the innermost frame of the user, None without one; False for an unusual one.
PyObject* user_frame(PyObject*, Given given, Py_ssize_t count) {
  if (count != 2 || (given[0] != Py_None && !PyFrame_Check(given[0]))) {
    PyErr_SetString(PyExc_TypeError, "user_frame takes a frame and a function");
    return nullptr;
  }
  Search search(given[0] == Py_None ? nullptr : given[0]);
  const int kind = search.next(given[1]);
  if (kind < 0) return nullptr;
  if (kind == UNUSUAL) Py_RETURN_FALSE;
  return Py_NewRef(kind == USER ? search.frame.object : Py_None);
}

// -- gradients of outputs ---------------------------------------------------------------------

// A hook on an autograd node: `ModuleWatch._check_gradient`.
struct GradientCheck final : torch::autograd::FunctionPreHook {
  GradientCheck(PyObject* watch, PyObject* module, PyObject* code, int position, uint32_t index)
      : watch(Py_NewRef(watch)), module(Py_NewRef(module)), code(Py_NewRef(code)), position(position), index(index) {}
  GradientCheck(const GradientCheck&) = delete;

  ~GradientCheck() override {
    if (!Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire lock;
    Py_DECREF(watch);
    Py_DECREF(module);
    Py_DECREF(code);
  }

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    const at::Tensor& gradient = gradients[index];
    if (gradient.defined()) {
      pybind11::gil_scoped_acquire lock;
      if (!inspect(gradient)) {
        python_error error;
        error.persist();
        throw error;
      }
    }
    return gradients;
  }

  // Compiled autograd traces hooks of Python: it runs without this check.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  bool inspect(const at::Tensor& gradient) const {
    Owned active(PyObject_GetAttr(watch, names.active));
    if (!active) return false;
    if (active.object != Py_True) return true;
    if (stays_below(*gradient.unsafeGetTensorImpl(), Limit::FINITE).value_or(false))
      return PyObject_SetAttr(watch, names.last_finite, module) == 0;
    Owned wrapped(THPVariable_Wrap(gradient)), place(PyLong_FromLong(position));
    if (!wrapped || !place) return false;
    PyObject* given[] = {watch, module, code, place.object, wrapped.object};
    return bool(Owned(PyObject_VectorcallMethod(names.check_gradient, given, 5, nullptr)));
  }

  PyObject *watch, *module, *code;
  int position;  // of the call of the module in the code
  uint32_t index;
};

// -- outputs ----------------------------------------------------------------------------------

// A tensor that was checked last: modules around the one that made it return it again.
struct Checked {
  // Keeps another tensor from having its address, but not its memory from being freed.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  uint32_t version = 0;
  bool finite = false;

  bool is(const at::Tensor& other) const { return tensor._unsafe_get_target() == other.unsafeGetTensorImpl(); }
};

uint32_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : uint32_t(tensor._version()); }

struct OutputCheck {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* watch;         // the ModuleWatch
  PyObject* otherwise;     // its `_check_outputs`
  PyObject* keep_finite;   // a dictionary whose keys are classes of modules
  PyObject* generated;     // the class of modules that are not checked
  PyObject* kind_of;       // returns the kind of a code
  unsigned long thread;
  Checked* checked;

  std::array<PyObject**, 5> references() { return {&watch, &otherwise, &keep_finite, &generated, &kind_of}; }
  void release() { delete checked; }
};

// Whether a module of `keep_finite` made its output from a finite input: `ModuleWatch._stays_finite`.  -1 with
// an exception.
int stays_finite(const OutputCheck& check, PyObject* module, PyObject* args, const at::Tensor& output) {
  const int keeps = PyDict_Contains(check.keep_finite, reinterpret_cast<PyObject*>(Py_TYPE(module)));
  if (keeps <= 0 || !check.checked->finite) return keeps < 0 ? -1 : 0;
  if (!PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) != 1) return 0;
  PyObject* input = PyTuple_GET_ITEM(args, 0);
  if (!is_plain(input) || !check.checked->is(THPVariable_Unpack(input))) return 0;
  Owned attributes(PyObject_GetAttr(module, names.dictionary));
  if (!attributes) return -1;
  const int replaced = PyDict_Contains(attributes.object, names.forward);
  if (replaced != 0) return replaced < 0 ? -1 : 0;
  PyObject* inplace = PyDict_GetItemWithError(attributes.object, names.inplace);
  if (inplace == nullptr && PyErr_Occurred()) return -1;
  const int writes = inplace == nullptr ? 0 : PyObject_IsTrue(inplace);
  if (writes < 0) return -1;
  const bool counted = writes != 0 && !output.is_inference();
  return version_of(THPVariable_Unpack(input)) == check.checked->version + uint32_t(counted);
}

PyObject* left_to_python(OutputCheck& check, Given given) {
  return PyObject_Vectorcall(check.otherwise, given, 4, nullptr);
}

// Whether a transformation of torch.func or a tracer of TorchScript is active.
bool is_transformed() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      keys.included_.has(c10::DispatchKey::Tracer);
}

void remember(OutputCheck& check, const at::Tensor& output, bool finite) {
  check.checked->tensor = output.getIntrusivePtr();
  check.checked->version = version_of(output);
  check.checked->finite = finite;
}

// Checks the output of a module and adds a check of its gradient.
PyObject* check_output(OutputCheck& check, Given given) {
  PyObject *module = given[0], *args = given[1], *result = given[3];
  if (Py_TYPE(result) != reinterpret_cast<PyTypeObject*>(THPVariableClass) || is_transformed())
    return left_to_python(check, given);
  const at::Tensor& output = THPVariable_Unpack(result);
  if (check.checked->is(output) && check.checked->version == version_of(output)) Py_RETURN_NONE;
  if (PyType_IsSubtype(Py_TYPE(module), reinterpret_cast<PyTypeObject*>(check.generated))) Py_RETURN_NONE;
  const int kept = stays_finite(check, module, args, output);
  if (kept < 0) return nullptr;
  if (kept == 0 && !stays_below(*output.unsafeGetTensorImpl(), Limit::FINITE).value_or(false)) {
    Owned done(left_to_python(check, given));
    if (done) remember(check, output, false);
    return done.release();
  }
  const bool hooked = output.requires_grad() && !output.is_leaf();
  Search caller(hooked ? reinterpret_cast<PyObject*>(PyEval_GetFrame()) : nullptr);
  const int kind = caller.next(check.kind_of);
  if (kind < 0) return nullptr;
  if (kind == UNUSUAL) return left_to_python(check, given);
  // Otherwise checkpointing runs the module again.
  if (!torch::autograd::get_current_node() && PyObject_SetAttr(check.watch, names.last_finite, Py_None) < 0)
    return nullptr;
  remember(check, output, true);
  if (hooked)
    output.grad_fn()->add_pre_hook(std::make_unique<GradientCheck>(
        check.watch, module, kind == USER ? caller.code.object : Py_None,
        kind == USER ? PyFrame_GetLasti(caller.here()) : 0, uint32_t(output.output_nr())));
  Py_RETURN_NONE;
}

// check(module, args, kwargs, result), a forward hook
PyObject* output_check_call(PyObject* self, Given given, size_t flags, PyObject* keywords) {
  if (PyVectorcall_NARGS(flags) != 4 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "an OutputCheck takes a module, its args and kwargs, and its result");
    return nullptr;
  }
  auto& check = *reinterpret_cast<OutputCheck*>(self);
  Owned active(PyObject_GetAttr(check.watch, names.active));
  if (!active) return nullptr;
  if (active.object != Py_True || PyThread_get_thread_ident() != check.thread || !c10::GradMode::is_enabled())
    Py_RETURN_NONE;
  HANDLE_TH_ERRORS
  return check_output(check, given);
  END_HANDLE_TH_ERRORS
}

// OutputCheck(watch, otherwise, keep_finite, generated, kind_of): for the thread that makes it
PyObject* output_check_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *watch, *otherwise, *keep_finite, *generated, *kind_of;
  if (!PyArg_ParseTuple(
          args, "OOO!O!O", &watch, &otherwise, &PyDict_Type, &keep_finite, &PyType_Type, &generated, &kind_of))
    return nullptr;
  auto* self = reinterpret_cast<OutputCheck*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = output_check_call;
  self->watch = Py_NewRef(watch);
  self->otherwise = Py_NewRef(otherwise);
  self->keep_finite = Py_NewRef(keep_finite);
  self->generated = Py_NewRef(generated);
  self->kind_of = Py_NewRef(kind_of);
  self->thread = PyThread_get_thread_ident();
  self->checked = new Checked();
  return reinterpret_cast<PyObject*>(self);
}

PyTypeObject OutputCheckType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- pauses of a dispatch mode ----------------------------------------------------------------

using Mode = c10::impl::PyObject_TorchDispatchMode;
using Modes = c10::impl::TorchDispatchModeTLS;

// `_Pause` of tape.py.  The mode is entered and left as `DispatchMode` does it.
struct Pause {
  PyObject_HEAD
  PyObject* mode;
  PyObject* flags;           // the dictionary with the flags
  PyObject* flag_names[3];
  PyObject* before[3];       // the flags when the mode was entered; null otherwise
  PyObject* tell_compiler;   // of the last flag
  PyObject* count_whole_graphs;
  int depth;
  bool enters, entered, stopped;

  std::array<PyObject**, 10> references() {
    return {&mode, &flags, &flag_names[0], &flag_names[1], &flag_names[2], &before[0], &before[1], &before[2],
            &tell_compiler, &count_whole_graphs};
  }
};

// Calls a function with a number; returns false with an exception.
bool call_with(PyObject* function, Owned argument) {
  return argument && Owned(PyObject_CallOneArg(function, argument.object));
}

bool enter_mode(Pause& pause) {
  if (!pause.enters || pause.entered) return true;
  for (int index = 0; index < 3; ++index) {
    PyObject* flag = PyDict_GetItemWithError(pause.flags, pause.flag_names[index]);
    if (flag == nullptr) {
      if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, pause.flag_names[index]);
      return false;
    }
    Py_XSETREF(pause.before[index], Py_NewRef(flag));
  }
  for (PyObject* name : pause.flag_names)
    if (PyDict_SetItem(pause.flags, name, Py_True) < 0) return false;
  if (!call_with(pause.tell_compiler, Owned(Py_NewRef(Py_True)))) return false;
  Modes::push_non_infra_mode_onto_stack(std::make_shared<Mode>(Py_NewRef(pause.mode), getPyInterpreter()));
  pause.entered = true;
  return call_with(pause.count_whole_graphs, Owned(PyLong_FromLong(0)));
}

// Whether the mode is entered, and none after it.
bool is_innermost(const Pause& pause) {
  const int64_t count = Modes::stack_len();
  return pause.entered && count > 0 && Modes::get_stack_at(count - 1)->ptr(getPyInterpreter()) == pause.mode;
}

// Leaves the mode; one that the user entered after it must end first, and then this one only idles.
bool leave_mode(Pause& pause) {
  if (!is_innermost(pause)) return true;
  for (int index = 0; index < 3; ++index)
    if (PyDict_SetItem(pause.flags, pause.flag_names[index], pause.before[index]) < 0) return false;
  if (!call_with(pause.tell_compiler, Owned(Py_NewRef(pause.before[2])))) return false;
  Modes::pop_stack();
  pause.entered = false;
  return call_with(pause.count_whole_graphs, Owned(PyLong_FromLong(-1)));
}

PyObject* none_if(bool done) { return done ? Py_NewRef(Py_None) : nullptr; }

PyObject* pause_start(PyObject* self, PyObject*) {
  auto& pause = *reinterpret_cast<Pause*>(self);
  pause.depth = 0;
  pause.stopped = false;
  HANDLE_TH_ERRORS
  return none_if(enter_mode(pause));
  END_HANDLE_TH_ERRORS
}

PyObject* pause_stop(PyObject* self, PyObject*) {
  auto& pause = *reinterpret_cast<Pause*>(self);
  HANDLE_TH_ERRORS
  const bool left = leave_mode(pause);
  pause.depth = 1;
  pause.stopped = true;
  return none_if(left);
  END_HANDLE_TH_ERRORS
}

PyObject* pause_begin(PyObject* self, PyObject*) {
  auto& pause = *reinterpret_cast<Pause*>(self);
  ++pause.depth;
  HANDLE_TH_ERRORS
  return none_if(leave_mode(pause));
  END_HANDLE_TH_ERRORS
}

PyObject* pause_end(PyObject* self, PyObject*) {
  auto& pause = *reinterpret_cast<Pause*>(self);
  if (pause.stopped) Py_RETURN_NONE;
  pause.depth = std::max(pause.depth - 1, 0);
  HANDLE_TH_ERRORS
  return none_if(pause.depth > 0 || enter_mode(pause));
  END_HANDLE_TH_ERRORS
}

// Pause(mode, flags, name, name, name, tell_compiler, count_whole_graphs, enters)
PyObject* pause_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *mode, *flags, *first, *second, *third, *tell_compiler, *count_whole_graphs;
  int enters;
  if (!PyArg_ParseTuple(
          args, "OO!UUUOOp", &mode, &PyDict_Type, &flags, &first, &second, &third, &tell_compiler,
          &count_whole_graphs, &enters))
    return nullptr;
  auto* self = reinterpret_cast<Pause*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->mode = Py_NewRef(mode);
  self->flags = Py_NewRef(flags);
  self->flag_names[0] = Py_NewRef(first);
  self->flag_names[1] = Py_NewRef(second);
  self->flag_names[2] = Py_NewRef(third);
  self->tell_compiler = Py_NewRef(tell_compiler);
  self->count_whole_graphs = Py_NewRef(count_whole_graphs);
  self->depth = 1;
  self->enters = enters != 0;
  self->stopped = true;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* pause_is_innermost(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(is_innermost(*reinterpret_cast<Pause*>(self)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef pause_methods[] = {
    {"is_innermost", pause_is_innermost, METH_NOARGS, nullptr},
    {"start", pause_start, METH_NOARGS, nullptr},
    {"stop", pause_stop, METH_NOARGS, nullptr},
    {"begin", pause_begin, METH_NOARGS, nullptr},
    {"end", pause_end, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef pause_members[] = {
    {"depth", T_INT, offsetof(Pause, depth), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};

PyTypeObject PauseType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// `_OwnWork` of tape.py.
struct OwnWork {
  PyObject_HEAD
  PyObject* watch;    // or None
  PyObject* stopped;  // the watch that the outermost block has made inactive; otherwise null
  int depth;
  at::impl::TorchFunctionDisabledState functions;  // before the outermost block

  std::array<PyObject**, 2> references() { return {&watch, &stopped}; }
};

PyObject* own_work_enter(PyObject* self, PyObject*) {
  auto& work = *reinterpret_cast<OwnWork*>(self);
  if (work.depth == 0 && work.watch != nullptr && work.watch != Py_None) {
    Owned active(PyObject_GetAttr(work.watch, names.active));
    if (!active) return nullptr;
    if (active.object == Py_True) {
      if (PyObject_SetAttr(work.watch, names.active, Py_False) < 0) return nullptr;
      Py_XSETREF(work.stopped, Py_NewRef(work.watch));
    }
  }
  if (work.depth++ == 0) {
    work.functions = at::impl::PythonTorchFunctionTLS::get_disabled_state();
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  Py_RETURN_NONE;
}

PyObject* own_work_exit(PyObject* self, Given, Py_ssize_t) {
  auto& work = *reinterpret_cast<OwnWork*>(self);
  if (--work.depth > 0) Py_RETURN_NONE;
  at::impl::PythonTorchFunctionTLS::set_disabled_state(work.functions);
  if (work.stopped == nullptr) Py_RETURN_NONE;
  Owned watch(std::exchange(work.stopped, nullptr));
  return none_if(PyObject_SetAttr(watch.object, names.active, Py_True) == 0);
}

// OwnWork()
PyObject* own_work_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, "")) return nullptr;
  auto* self = reinterpret_cast<OwnWork*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->watch = Py_NewRef(Py_None);
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef own_work_methods[] = {
    {"__enter__", own_work_enter, METH_NOARGS, nullptr},
    {"__exit__", as_method(own_work_exit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef own_work_members[] = {
    {"watch", T_OBJECT_EX, offsetof(OwnWork, watch), 0, nullptr},
    {"depth", T_INT, offsetof(OwnWork, depth), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject OwnWorkType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- states of generators ---------------------------------------------------------------------

constexpr size_t SEEN = 64;  // bytes of the state of a Mersenne Twister: `_SEEN_BYTES` of step_state.py

// `_Twister` of step_state.py.
struct Twister {
  PyObject *read, *pending, *state;
  const char* address;
  bool has_pending;
  char memory[SEEN];  // the content of the address when the state was last read
};

// Returns the state of a generator, read only if it has changed; null with an exception.
PyObject* state_of(Twister& twister) {
  if (twister.address == nullptr) return PyObject_CallNoArgs(twister.read);
  const bool same = twister.state != nullptr && !twister.has_pending;
  if (same && std::memcmp(twister.address, twister.memory, SEEN) == 0) return Py_NewRef(twister.state);
  std::memcpy(twister.memory, twister.address, SEEN);
  Owned state(PyObject_CallNoArgs(twister.read));
  Owned pending(state ? PyObject_CallOneArg(twister.pending, state.object) : nullptr);
  const int has_pending = pending ? PyObject_IsTrue(pending.object) : -1;
  if (has_pending < 0) return nullptr;
  twister.has_pending = has_pending != 0;
  Py_XSETREF(twister.state, Py_NewRef(state.object));
  return state.release();
}

// What determines the state of torch's generator.
struct TorchContent {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  bool operator==(const TorchContent& other) const {
    return engine.seed_ == other.engine.seed_ && engine.left_ == other.engine.left_ &&
        engine.seeded_ == other.engine.seeded_ && engine.next_ == other.engine.next_ &&
        engine.state_ == other.engine.state_ && next_float == other.next_float && next_double == other.next_double;
  }
};

TorchContent torch_content() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto& content = *generator.get<at::CPUGeneratorImpl>();
  return {content.engine().data(), content.next_float_normal_sample(), content.next_double_normal_sample()};
}

// `_StateReader` of step_state.py.
struct StateReader {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* torch_state;    // returns the state of torch's generator
  PyObject* last_state;     // what it returned
  TorchContent* last_content;
  PyObject* bit_generator;  // returns NumPy's
  PyObject* address_of;     // returns the address of the state of that
  PyObject* generator;      // the one with the address in `numpy`
  Twister python, numpy;

  std::array<PyObject**, 11> references() {
    return {&torch_state, &last_state, &bit_generator, &address_of, &generator, &python.read, &python.pending,
            &python.state, &numpy.read, &numpy.pending, &numpy.state};
  }
  void release() { delete last_content; }
};

// Returns the state of torch's generator, read only if it has changed; null with an exception.
PyObject* state_of_torch(StateReader& reader) {
  const TorchContent content = torch_content();
  if (reader.last_state == nullptr || !(content == *reader.last_content)) {
    Owned state(PyObject_CallNoArgs(reader.torch_state));
    if (!state) return nullptr;
    *reader.last_content = content;
    Py_XSETREF(reader.last_state, state.release());
  }
  return Py_NewRef(reader.last_state);
}

// Finds the address of NumPy's state if the generator is another one; returns false with an exception.
bool find_numpy(StateReader& reader) {
  Owned generator(PyObject_CallNoArgs(reader.bit_generator));
  if (!generator) return false;
  if (generator.object == reader.generator) return true;
  Owned address(PyObject_CallOneArg(reader.address_of, generator.object));
  void* found = address ? PyLong_AsVoidPtr(address.object) : nullptr;
  if (found == nullptr && PyErr_Occurred()) return false;
  reader.numpy.address = static_cast<const char*>(found);
  Py_CLEAR(reader.numpy.state);
  Py_XSETREF(reader.generator, generator.release());
  return true;
}

// reader(): the states of torch, Python and NumPy
PyObject* state_reader_call(PyObject* self, Given, size_t flags, PyObject*) {
  if (PyVectorcall_NARGS(flags) != 0) {
    PyErr_SetString(PyExc_TypeError, "a StateReader takes no arguments");
    return nullptr;
  }
  auto& reader = *reinterpret_cast<StateReader*>(self);
  HANDLE_TH_ERRORS
  Owned of_torch(state_of_torch(reader));
  Owned of_python(of_torch ? state_of(reader.python) : nullptr);
  Owned of_numpy(of_python && find_numpy(reader) ? state_of(reader.numpy) : nullptr);
  return of_numpy ? PyTuple_Pack(3, of_torch.object, of_python.object, of_numpy.object) : nullptr;
  END_HANDLE_TH_ERRORS
}

// StateReader(torch_state, (read, pending, address), (read, pending, address), bit_generator, address_of)
PyObject* state_reader_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *torch_state, *read[2], *pending[2], *bit_generator, *address_of;
  Py_ssize_t address[2];
  if (!PyArg_ParseTuple(
          args, "O(OOn)(OOn)OO", &torch_state, &read[0], &pending[0], &address[0], &read[1], &pending[1],
          &address[1], &bit_generator, &address_of))
    return nullptr;
  auto* self = reinterpret_cast<StateReader*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = state_reader_call;
  self->torch_state = Py_NewRef(torch_state);
  self->last_content = new TorchContent();
  self->bit_generator = Py_NewRef(bit_generator);
  self->address_of = Py_NewRef(address_of);
  for (int index : {0, 1}) {
    Twister& twister = index == 0 ? self->python : self->numpy;
    twister.read = Py_NewRef(read[index]);
    twister.pending = Py_NewRef(pending[index]);
    twister.address = reinterpret_cast<const char*>(address[index]);
  }
  return reinterpret_cast<PyObject*>(self);
}

PyTypeObject StateReaderType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- buffers ----------------------------------------------------------------------------------

struct Region {
  const void* address;
  size_t size;
};

// Reads buffers while they are the same tensors in the same memory, which `TensorCopies` keeps.
struct BufferMemory {
  PyObject_HEAD
  PyObject* owners;   // a list of dictionaries
  PyObject* tensors;  // a list: the values of the dictionaries that are not None
  std::vector<Region>* regions;
  size_t size;

  std::array<PyObject**, 2> references() { return {&owners, &tensors}; }
  void release() { delete regions; }
};

Region region_of(PyObject* value) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return {tensor.unsafeGetTensorImpl()->data(), tensor.nbytes()};
}

// Whether the dictionaries have these tensors, in the memory that they had.
bool is_unchanged(const BufferMemory& memory) {
  size_t number = 0;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(memory.owners); ++index) {
    PyObject *name, *value, *owner = PyList_GET_ITEM(memory.owners, index);
    for (Py_ssize_t place = 0; PyDict_Next(owner, &place, &name, &value);) {
      if (value == Py_None) continue;
      if (number == memory.regions->size() || value != PyList_GET_ITEM(memory.tensors, number)) return false;
      const Region now = region_of(value), before = (*memory.regions)[number++];
      if (now.address != before.address || now.size != before.size) return false;
    }
  }
  return number == memory.regions->size();
}

// content(): the bytes of the buffers, or None if they have changed
PyObject* buffer_memory_content(PyObject* self, PyObject*) {
  const auto& memory = *reinterpret_cast<BufferMemory*>(self);
  HANDLE_TH_ERRORS
  if (!is_unchanged(memory)) Py_RETURN_NONE;
  PyObject* content = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(memory.size));
  if (content == nullptr) return nullptr;
  char* place = PyBytes_AS_STRING(content);
  for (const Region& region : *memory.regions) {
    std::memcpy(place, region.address, region.size);
    place += region.size;
  }
  return content;
  END_HANDLE_TH_ERRORS
}

// BufferMemory(owners, tensors)
PyObject* buffer_memory_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *owners, *tensors;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &owners, &PyList_Type, &tensors)) return nullptr;
  auto* self = reinterpret_cast<BufferMemory*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->owners = Py_NewRef(owners);
  self->tensors = Py_NewRef(tensors);
  self->regions = new std::vector<Region>();
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(tensors); ++index) {
    self->regions->push_back(region_of(PyList_GET_ITEM(tensors, index)));
    self->size += self->regions->back().size;
  }
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef buffer_memory_methods[] = {
    {"content", buffer_memory_content, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject BufferMemoryType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- the module -------------------------------------------------------------------------------

PyMethodDef functions[] = {
    {"squares_finite", squares_finite, METH_O, nullptr},
    {"moderate", as_method(moderate), METH_FASTCALL, nullptr},
    {"usual_key", usual_key, METH_O, nullptr},
    {"gradients", gradients, METH_O, nullptr},
    {"writes", as_method(writes), METH_FASTCALL, nullptr},
    {"user_lines", as_method(user_lines), METH_FASTCALL, nullptr},
    {"user_places", as_method(user_places), METH_FASTCALL, nullptr},
    {"user_frame", as_method(user_frame), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "guard_kernels", nullptr, -1, functions};

bool intern_names() {
  const auto intern = [](PyObject*& name, const char* text) {
    name = PyUnicode_InternFromString(text);
    return name != nullptr;
  };
  return intern(names.active, "active") && intern(names.last_finite, "_last_finite") &&
      intern(names.dictionary, "__dict__") && intern(names.forward, "forward") &&
      intern(names.inplace, "inplace") && intern(names.check_gradient, "_check_gradient_at") &&
      intern(names.file, "co_filename") && intern(names.parameters, "params");
}

}  // namespace

PyMODINIT_FUNC PyInit_guard_kernels() {
  PauseType.tp_methods = pause_methods;
  PauseType.tp_members = pause_members;
  OwnWorkType.tp_methods = own_work_methods;
  OwnWorkType.tp_members = own_work_members;
  BufferMemoryType.tp_methods = buffer_memory_methods;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr || !intern_names() ||
      !add_type<OutputCheck>(module, OutputCheckType, "guard_kernels.OutputCheck", output_check_new) ||
      !add_type<Pause>(module, PauseType, "guard_kernels.Pause", pause_new) ||
      !add_type<OwnWork>(module, OwnWorkType, "guard_kernels.OwnWork", own_work_new) ||
      !add_type<StateReader>(module, StateReaderType, "guard_kernels.StateReader", state_reader_new) ||
      !add_type<BufferMemory>(module, BufferMemoryType, "guard_kernels.BufferMemory", buffer_memory_new))
    return nullptr;
  return module;
}
