// Statements on tensors of torch without Python between their kernels: the boxed call of an operator, the
// operands of a statement, the inspection of its results, and the loop over the statements of a block.
//
// Each type here does what a function of Python does too (torch_calls.py, linking.py, device_observation.py,
// machine.py).  A call that is out of the ordinary is left to that function: it was given as `otherwise` or
// `inspect`.  So are errors: an operator that throws runs again in Python, which raises its exception.

#include <Python.h>
#include <structmember.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../ops/aten/references.h"

namespace {

using Operands = PyObject* const*;

// -- calls of operators -----------------------------------------------------------------------

// Where an argument comes from: `ArgumentSource` of torch_arguments.py.
struct Source {
  int32_t start = -1, stop = -1;
  bool written = false, several = false;
  c10::IValue constant;
  c10::TypePtr element;  // of a list
};

struct Operation {
  c10::OperatorHandle handle;
  std::vector<Source> sources;
};

struct Kernel {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Operation* operation;
  Operation* into;  // the form of an operator in place with an argument `out`; may be null
  PyObject* otherwise;
  Py_ssize_t operands;
  Py_ssize_t outputs;  // how many results the statement names; -1: one that is no list
  int32_t replaced;    // the operand that it may write to if nothing else reads it, or -1
  bool overwrites;     // it reads nothing of what it writes to
  bool has_results;    // apart from what it writes to
};

// The results of a call, and whether `otherwise` must run it.
struct Results {
  std::vector<at::Tensor> tensors;
  bool unusual = false;
};

at::Tensor fresh_like(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return at::empty_like(tensor);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
}

// A copy with the same strides, also of elements that share memory.
at::Tensor strided_copy(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor.clone();
  int64_t span = tensor.numel() == 0 ? 0 : 1;
  bool repeats = false;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.numel() != 0) span += (tensor.size(axis) - 1) * tensor.stride(axis);
    repeats |= tensor.stride(axis) == 0;
  }
  if (repeats || span < tensor.numel())
    return tensor.as_strided({span}, {1}).clone().as_strided(tensor.sizes(), tensor.strides());
  return fresh_like(tensor).copy_(tensor);
}

bool is_operand(PyObject* value) { return value == Py_None || THPVariable_CheckExact(value); }

at::Tensor tensor_of(PyObject* value) { return value == Py_None ? at::Tensor() : THPVariable_Unpack(value); }

c10::IValue argument_of(const at::Tensor& tensor) {
  return tensor.defined() ? c10::IValue(tensor) : c10::IValue();
}

// Whether nothing but the slot of an operand holds it and its memory, which torch has allocated.
bool is_sole_owner(Operands operands, Py_ssize_t count, Py_ssize_t place) {
  PyObject* value = operands[place];
  if (value == Py_None || Py_REFCNT(value) != 1) return false;
  for (Py_ssize_t other = 0; other < count; ++other)
    if (other != place && operands[other] == value) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.use_count() != 1 || !tensor.is_cpu() || !tensor.has_storage() || !tensor.is_contiguous()) return false;
  const c10::Storage& storage = tensor.storage();
  return storage.use_count() == 1 &&
      storage.data_ptr().get_deleter() == c10::GetAllocator(c10::DeviceType::CPU)->raw_deleter();
}

// Appends the arguments of an operation to `stack`, and what it writes to, to `copies`.
void push_arguments(
    const Operation& operation, Operands operands, const Kernel& kernel, bool replace,
    torch::jit::Stack& stack, std::vector<at::Tensor>& copies) {
  const auto written = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    copies.push_back(replace ? tensor : kernel.overwrites ? fresh_like(tensor) : strided_copy(tensor));
    return copies.back();
  };
  for (const Source& source : operation.sources) {
    if (source.start < 0) {
      stack.push_back(source.constant);
    } else if (source.several) {
      c10::impl::GenericList items(source.element);
      items.reserve(source.stop - source.start);
      for (int32_t place = source.start; place < source.stop; ++place) {
        const at::Tensor tensor = tensor_of(operands[place]);
        items.push_back(argument_of(source.written ? written(tensor) : tensor));
      }
      stack.emplace_back(std::move(items));
    } else {
      const at::Tensor tensor = tensor_of(operands[source.start]);
      stack.push_back(argument_of(source.written ? written(tensor) : tensor));
    }
  }
}

// Appends the tensors of a result; returns false for any other value.
bool append_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
    return true;
  }
  if (value.isNone()) {
    tensors.emplace_back();
    return true;
  }
  if (!value.isTensorList()) return false;
  for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  return true;
}

void call_into(const Kernel& kernel, Operands operands, Results& results) {
  torch::jit::Stack stack;
  std::vector<at::Tensor> none;
  push_arguments(*kernel.into, operands, kernel, false, stack, none);
  const at::Tensor& written = THPVariable_Unpack(operands[0]);
  at::Tensor fresh = fresh_like(written);
  stack.emplace_back(fresh);
  kernel.into->handle.callBoxed(stack);
  // Only the operator in place refuses operands that broadcast its result to another shape.
  results.unusual = !fresh.sizes().equals(written.sizes());
  results.tensors.push_back(std::move(fresh));
}

void call(const Kernel& kernel, Operands operands, bool replace, Results& results) {
  if (kernel.into != nullptr && !replace) {
    call_into(kernel, operands, results);
    return;
  }
  torch::jit::Stack stack;
  std::vector<at::Tensor> copies;
  push_arguments(*kernel.operation, operands, kernel, replace, stack, copies);
  kernel.operation->handle.callBoxed(stack);
  if (kernel.has_results || copies.empty())
    for (const c10::IValue& value : stack) results.unusual |= !append_tensors(value, results.tensors);
  if (copies.empty()) return;
  // An operator returns what it wrote to; these values come last.
  const auto is_copy = [&](const at::Tensor& tensor) {
    return std::any_of(copies.begin(), copies.end(), [&](const at::Tensor& copy) { return copy.is_same(tensor); });
  };
  auto& tensors = results.tensors;
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(), is_copy), tensors.end());
  tensors.insert(tensors.end(), copies.begin(), copies.end());
}

// Returns the results, an object or a list, or null with an exception.  With `replace`, the kernel may write to
// the operand that it replaces.
PyObject* run_kernel(Kernel* kernel, Operands operands, Py_ssize_t count, bool replace) {
  Results results;
  results.unusual = count != kernel->operands || !std::all_of(operands, operands + count, is_operand);
  if (!results.unusual) {
    bool thrown = false;
    PyThreadState* state = PyEval_SaveThread();
    try {
      call(*kernel, operands, replace, results);
    } catch (python_error& error) {
      PyEval_RestoreThread(state);
      error.restore();
      return nullptr;
    } catch (...) {
      thrown = true;
    }
    PyEval_RestoreThread(state);
    results.unusual |= thrown;
  }
  const bool several = kernel->outputs >= 0;
  if (results.unusual || (!several && results.tensors.empty()))
    return PyObject_Vectorcall(kernel->otherwise, operands, count, nullptr);
  if (!several) return THPVariable_Wrap(std::move(results.tensors[0]));
  Owned list(PyList_New(kernel->outputs));
  if (!list) return nullptr;
  for (Py_ssize_t index = 0; index < kernel->outputs; ++index) {
    PyObject* result = Py_None;
    if (index < Py_ssize_t(results.tensors.size()))
      result = THPVariable_Wrap(std::move(results.tensors[index]));
    else
      Py_INCREF(result);
    if (result == nullptr) return nullptr;
    PyList_SET_ITEM(list.object, index, result);
  }
  return list.release();
}

PyObject* kernel_vectorcall(PyObject* self, Operands operands, size_t flags, PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) != 0) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes operands by position only");
    return nullptr;
  }
  return run_kernel(reinterpret_cast<Kernel*>(self), operands, PyVectorcall_NARGS(flags), false);
}

c10::TypePtr without_optional(c10::TypePtr type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

// Returns the operation of `(name, overload)` with sources given as tuples, None for the default.
std::unique_ptr<Operation> operation_of(PyObject* name, PyObject* sources) {
  const char* operator_name = PyUnicode_AsUTF8(PyTuple_GetItem(name, 0));
  const char* overload = PyUnicode_AsUTF8(PyTuple_GetItem(name, 1));
  auto made = std::make_unique<Operation>(
      Operation{c10::Dispatcher::singleton().findSchemaOrThrow(operator_name, overload), {}});
  const auto& arguments = made->handle.schema().arguments();
  const Py_ssize_t count = PyTuple_GET_SIZE(sources);
  // A number for a tensor keeps the dtype of the other operands, as in a call from Python.
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  for (Py_ssize_t index = 0; index < count; ++index) {
    const c10::Argument& argument = arguments.at(index);
    PyObject* given = PyTuple_GET_ITEM(sources, index);
    Source source;
    if (given == Py_None) {
      source.constant = argument.default_value().value();
    } else {
      int written = 0, several = 0;
      PyObject* constant = nullptr;
      if (!PyArg_ParseTuple(given, "iippO", &source.start, &source.stop, &written, &several, &constant))
        throw python_error();
      source.written = written, source.several = several;
      if (source.start < 0)
        source.constant = torch::jit::toIValue(constant, argument.type(), argument.N());
      else if (source.several)
        source.element = without_optional(argument.type())->expectRef<c10::ListType>().getElementType();
    }
    made->sources.push_back(std::move(source));
  }
  return made;
}

PyObject* kernel_new(PyTypeObject* type, PyObject* given, PyObject* names) {
  static const char* keywords[] = {"operator",   "into",       "sources",     "operands", "outputs",
                                   "overwrites", "has_results", "replaced", "otherwise", nullptr};
  PyObject *operation, *into, *sources, *otherwise;
  Py_ssize_t operands, outputs;
  int overwrites, has_results, replaced;
  if (!PyArg_ParseTupleAndKeywords(
          given, names, "O!OO!nnppiO", const_cast<char**>(keywords), &PyTuple_Type, &operation, &into,
          &PyTuple_Type, &sources, &operands, &outputs, &overwrites, &has_results, &replaced, &otherwise))
    return nullptr;
  Owned made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Kernel* kernel = reinterpret_cast<Kernel*>(made.object);
  kernel->vectorcall = kernel_vectorcall;
  kernel->operands = operands, kernel->outputs = outputs, kernel->replaced = replaced;
  kernel->overwrites = overwrites, kernel->has_results = has_results;
  kernel->otherwise = Py_NewRef(otherwise);
  try {
    kernel->operation = operation_of(operation, sources).release();
    if (into != Py_None) kernel->into = operation_of(into, sources).release();
  } catch (python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    // pybind's exceptions may have set one of Python.
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  // With `out`, nothing is written to but the new memory.
  if (kernel->into != nullptr)
    for (Source& source : kernel->into->sources) source.written = false;
  return made.release();
}

int kernel_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Kernel*>(self)->otherwise);
  return 0;
}

int kernel_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Kernel*>(self)->otherwise);
  return 0;
}

void kernel_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Kernel* kernel = reinterpret_cast<Kernel*>(self);
  kernel_clear(self);
  delete kernel->operation;
  delete kernel->into;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject KernelType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- inspection of results --------------------------------------------------------------------

constexpr size_t DTYPES = size_t(c10::ScalarType::NumOptions);

// What inspects the results of all statements: `DeviceObserver` of device_observation.py.
struct Inspection {
  PyObject_HEAD
  PyObject* inspect;    // (binding, operands, index, result): for what is not in host memory, or not finite
  PyObject* functions;  // from the dtype of torch to the compiled function of a result in host memory, or None
  PyObject* take;       // the number of the next row of the log; null without a log
  PyObject* results;    // the list of the results of the rows
  PyObject* written;    // the set of rows that were written on the device
  PyObject* found;      // (binding, operands, index, result, flags)
  int64_t address, row_bytes, mask;
  int watched;  // flags of findings, which need the operands as they were
  std::array<PyObject*, DTYPES> of_dtype;
};

// An instruction with the inspection of its results.
struct Observed {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *kernel, *binding, *inspection;
};

// Whether statistics of a tensor can be computed from its memory, in which its elements are in any order.
bool is_direct(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == c10::kStrided && tensor.numel() > 0 &&
      tensor.is_non_overlapping_and_dense() && !tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor();
}

// Returns the compiled function for a dtype, borrowed; None if there is none yet; null with an exception.
PyObject* function_for(Inspection* inspection, c10::ScalarType dtype) {
  PyObject*& known = inspection->of_dtype[size_t(dtype)];
  if (known != nullptr) return known;
  Owned found(PyObject_GetItem(inspection->functions, reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))));
  if (!found) return nullptr;
  if (found.object == Py_None) return Py_None;
  return known = found.release();
}

Owned tuple_of(Operands operands, Py_ssize_t count) {
  Owned made(PyTuple_New(count));
  for (Py_ssize_t index = 0; made && index < count; ++index)
    PyTuple_SET_ITEM(made.object, index, Py_NewRef(operands[index]));
  return made;
}

// Calls `function(binding, operands, index, result[, flags])`; returns false with an exception.
bool report(
    PyObject* function, PyObject* binding, Operands operands, Py_ssize_t count, Py_ssize_t index,
    PyObject* result, long flags) {
  Owned inputs = tuple_of(operands, count), place(PyLong_FromSsize_t(index)), bits(PyLong_FromLong(flags));
  if (!inputs || !place || !bits) return false;
  PyObject* arguments[] = {binding, inputs.object, place.object, result, bits.object};
  return bool(Owned(PyObject_Vectorcall(function, arguments, flags < 0 ? 4 : 5, nullptr)));
}

// Logs the statistics of a result in host memory.  Returns its flags, or -1 with an exception.
long log_statistics(Inspection* inspection, PyObject* function, const at::Tensor& tensor, PyObject* result) {
  Owned taken(PyObject_CallNoArgs(inspection->take));
  if (!taken) return -1;
  const int64_t row = PyLong_AsLongLong(taken.object) & inspection->mask;
  PyObject* weak = PyWeakref_NewRef(result, nullptr);
  if (weak == nullptr || PyList_SetItem(inspection->results, Py_ssize_t(row), weak) < 0) return -1;
  if (PySet_Size(inspection->written) > 0) {
    Owned number(PyLong_FromLongLong(row));
    if (!number || PySet_Discard(inspection->written, number.object) < 0) return -1;
  }
  Owned address(PyLong_FromVoidPtr(tensor.data_ptr())), count(PyLong_FromLongLong(tensor.numel()));
  Owned guard(PyLong_FromLong(0)), place(PyLong_FromLongLong(inspection->address + row * inspection->row_bytes));
  PyObject* arguments[] = {address.object, count.object, guard.object, place.object};
  Owned flags(PyObject_Vectorcall(function, arguments, 4, nullptr));
  return flags ? PyLong_AsLong(flags.object) : -1;
}

// Returns whether a result in host memory is finite: 1 or 0, or -1 with an exception.
int is_finite(PyObject* function, const at::Tensor& tensor) {
  Owned address(PyLong_FromVoidPtr(tensor.data_ptr())), count(PyLong_FromLongLong(tensor.numel()));
  PyObject* arguments[] = {address.object, count.object};
  Owned finite(PyObject_Vectorcall(function, arguments, 2, nullptr));
  return finite ? PyObject_IsTrue(finite.object) : -1;
}

// Inspects one result; returns false with an exception.
bool inspect(Observed* observed, Operands operands, Py_ssize_t count, Py_ssize_t index, PyObject* result) {
  if (result == Py_None) return true;
  Inspection* inspection = reinterpret_cast<Inspection*>(observed->inspection);
  PyObject* binding = observed->binding;
  if (THPVariable_CheckExact(result)) {
    const at::Tensor& tensor = THPVariable_Unpack(result);
    PyObject* function = is_direct(tensor) ? function_for(inspection, tensor.scalar_type()) : Py_None;
    if (function == nullptr) return false;
    if (function != Py_None && inspection->take != nullptr) {
      const long flags = log_statistics(inspection, function, tensor, result);
      if (flags <= 0) return flags == 0;
      return report(inspection->found, binding, operands, count, index, result, flags);
    }
    if (function != Py_None) {
      const int finite = is_finite(function, tensor);
      if (finite != 0) return finite > 0;
    }
  }
  return report(inspection->inspect, binding, operands, count, index, result, -1);
}

// Runs an instruction and inspects its results; returns these, or null with an exception.
PyObject* run_observed(Observed* observed, Operands operands, Py_ssize_t count, bool replace) {
  Owned results(run_kernel(reinterpret_cast<Kernel*>(observed->kernel), operands, count, replace));
  if (!results) return nullptr;
  if (reinterpret_cast<Kernel*>(observed->kernel)->outputs < 0)
    return inspect(observed, operands, count, 0, results.object) ? results.release() : nullptr;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(results.object); ++index)
    if (!inspect(observed, operands, count, index, PyList_GET_ITEM(results.object, index))) return nullptr;
  return results.release();
}

PyObject* observed_vectorcall(PyObject* self, Operands operands, size_t flags, PyObject*) {
  return run_observed(reinterpret_cast<Observed*>(self), operands, PyVectorcall_NARGS(flags), false);
}

int observed_traverse(PyObject* self, visitproc visit, void* arg) {
  Observed* observed = reinterpret_cast<Observed*>(self);
  Py_VISIT(observed->kernel);
  Py_VISIT(observed->binding);
  Py_VISIT(observed->inspection);
  return 0;
}

int observed_clear(PyObject* self) {
  Observed* observed = reinterpret_cast<Observed*>(self);
  Py_CLEAR(observed->kernel);
  Py_CLEAR(observed->binding);
  Py_CLEAR(observed->inspection);
  return 0;
}

void observed_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  observed_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject ObservedType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* inspection_new(PyTypeObject* type, PyObject* given, PyObject* names) {
  static const char* keywords[] = {"inspect", "functions", "found", "take", "results",
                                   "written", "address", "row_bytes", "mask", nullptr};
  PyObject *inspect, *functions, *found, *take = Py_None, *results = Py_None, *written = Py_None;
  long long address = 0, row_bytes = 0, mask = 0;
  if (!PyArg_ParseTupleAndKeywords(
          given, names, "OOO|OOOLLL", const_cast<char**>(keywords), &inspect, &functions, &found, &take,
          &results, &written, &address, &row_bytes, &mask))
    return nullptr;
  Owned made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Inspection* inspection = reinterpret_cast<Inspection*>(made.object);
  inspection->inspect = Py_NewRef(inspect);
  inspection->functions = Py_NewRef(functions);
  inspection->found = Py_NewRef(found);
  if (take != Py_None) {
    inspection->take = Py_NewRef(take);
    inspection->results = Py_NewRef(results);
    inspection->written = Py_NewRef(written);
  }
  inspection->address = address, inspection->row_bytes = row_bytes, inspection->mask = mask;
  return made.release();
}

int inspection_traverse(PyObject* self, visitproc visit, void* arg) {
  Inspection* inspection = reinterpret_cast<Inspection*>(self);
  Py_VISIT(inspection->inspect);
  Py_VISIT(inspection->functions);
  Py_VISIT(inspection->take);
  Py_VISIT(inspection->results);
  Py_VISIT(inspection->written);
  Py_VISIT(inspection->found);
  for (PyObject* function : inspection->of_dtype) Py_VISIT(function);
  return 0;
}

int inspection_clear(PyObject* self) {
  Inspection* inspection = reinterpret_cast<Inspection*>(self);
  Py_CLEAR(inspection->inspect);
  Py_CLEAR(inspection->functions);
  Py_CLEAR(inspection->take);
  Py_CLEAR(inspection->results);
  Py_CLEAR(inspection->written);
  Py_CLEAR(inspection->found);
  for (PyObject*& function : inspection->of_dtype) Py_CLEAR(function);
  return 0;
}

void inspection_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  inspection_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject InspectionType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMemberDef inspection_members[] = {
    {"watched", T_INT, offsetof(Inspection, watched), 0, nullptr}, {nullptr, 0, 0, 0, nullptr}};

PyObject* observed_new(PyTypeObject* type, PyObject* given, PyObject* names) {
  static const char* keywords[] = {"kernel", "binding", "inspection", nullptr};
  PyObject *kernel, *binding, *inspection;
  if (!PyArg_ParseTupleAndKeywords(
          given, names, "O!OO!", const_cast<char**>(keywords), &KernelType, &kernel, &binding, &InspectionType,
          &inspection))
    return nullptr;
  Observed* observed = reinterpret_cast<Observed*>(type->tp_alloc(type, 0));
  if (observed == nullptr) return nullptr;
  observed->vectorcall = observed_vectorcall;
  observed->kernel = Py_NewRef(kernel);
  observed->binding = Py_NewRef(binding);
  observed->inspection = Py_NewRef(inspection);
  return reinterpret_cast<PyObject*>(observed);
}

// -- the operands of a statement --------------------------------------------------------------

struct Gather {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<Py_ssize_t>* slots;
  std::vector<Py_ssize_t>* dropped;  // dropped before the statement
  std::vector<bool>* last;           // for each operand, whether nothing reads its slot afterwards
  PyObject* evicted;                 // the content of a dropped slot
};

// Stores a value in a slot, and takes its reference.
void store(PyObject* slots, Py_ssize_t slot, PyObject* value) {
  PyObject* before = PyList_GET_ITEM(slots, slot);
  PyList_SET_ITEM(slots, slot, value);
  Py_XDECREF(before);
}

void drop_dead(const Gather* gather, PyObject* slots) {
  for (const Py_ssize_t slot : *gather->dropped) store(slots, slot, Py_NewRef(gather->evicted));
}

PyObject* gather_vectorcall(PyObject* self, Operands given, size_t flags, PyObject*) {
  if (PyVectorcall_NARGS(flags) != 1 || !PyList_CheckExact(given[0])) {
    PyErr_SetString(PyExc_TypeError, "operands are gathered from one list");
    return nullptr;
  }
  const Gather* gather = reinterpret_cast<Gather*>(self);
  drop_dead(gather, given[0]);
  Owned made(PyTuple_New(Py_ssize_t(gather->slots->size())));
  for (size_t index = 0; made && index < gather->slots->size(); ++index)
    PyTuple_SET_ITEM(made.object, index, Py_NewRef(PyList_GET_ITEM(given[0], (*gather->slots)[index])));
  return made.release();
}

// Returns the numbers of a tuple; an exception may be set.
std::vector<Py_ssize_t> numbers_of(PyObject* tuple) {
  std::vector<Py_ssize_t> numbers;
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(tuple); ++index)
    numbers.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, index)));
  return numbers;
}

PyObject* gather_new(PyTypeObject* type, PyObject* given, PyObject* names) {
  static const char* keywords[] = {"slots", "dropped", "last", "evicted", nullptr};
  PyObject *slots, *dropped, *last, *evicted;
  if (!PyArg_ParseTupleAndKeywords(
          given, names, "O!O!O!O", const_cast<char**>(keywords), &PyTuple_Type, &slots, &PyTuple_Type, &dropped,
          &PyTuple_Type, &last, &evicted))
    return nullptr;
  Owned made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Gather* gather = reinterpret_cast<Gather*>(made.object);
  gather->vectorcall = gather_vectorcall;
  gather->slots = new std::vector<Py_ssize_t>(numbers_of(slots));
  gather->dropped = new std::vector<Py_ssize_t>(numbers_of(dropped));
  const std::vector<Py_ssize_t> dying = numbers_of(last);
  gather->last = new std::vector<bool>();
  for (const Py_ssize_t slot : *gather->slots)
    gather->last->push_back(std::find(dying.begin(), dying.end(), slot) != dying.end());
  gather->evicted = Py_NewRef(evicted);
  return PyErr_Occurred() ? nullptr : made.release();
}

void gather_dealloc(PyObject* self) {
  Gather* gather = reinterpret_cast<Gather*>(self);
  delete gather->slots;
  delete gather->dropped;
  delete gather->last;
  Py_XDECREF(gather->evicted);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject GatherType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- the loop ---------------------------------------------------------------------------------

// Stores the results of a statement as `slots[target] = results`; returns false with an exception.
bool store_results(PyObject* slots, PyObject* target, Owned results) {
  if (PyLong_CheckExact(target)) {
    store(slots, PyLong_AsSsize_t(target), results.release());
    return true;
  }
  return PyObject_SetItem(slots, target, results.object) == 0;
}

// Runs a statement with the operands in its slots; returns the results, or null with an exception.
PyObject* run_gathered(PyObject* execute, const Gather* gather, PyObject* slots) {
  drop_dead(gather, slots);
  const Py_ssize_t count = Py_ssize_t(gather->slots->size());
  c10::SmallVector<PyObject*, 16> operands(count);
  for (Py_ssize_t index = 0; index < count; ++index)
    operands[index] = PyList_GET_ITEM(slots, (*gather->slots)[index]);
  Observed* observed = Py_TYPE(execute) == &ObservedType ? reinterpret_cast<Observed*>(execute) : nullptr;
  if (observed == nullptr && Py_TYPE(execute) != &KernelType)
    return PyObject_Vectorcall(execute, operands.data(), count, nullptr);
  Kernel* kernel = reinterpret_cast<Kernel*>(observed == nullptr ? execute : observed->kernel);
  const bool needs_operands =
      observed != nullptr && reinterpret_cast<Inspection*>(observed->inspection)->watched != 0;
  const Py_ssize_t place = kernel->replaced;
  const bool replace = place >= 0 && place < count && (*gather->last)[place] && !needs_operands &&
      is_sole_owner(operands.data(), count, place);
  PyObject* results = observed == nullptr ? run_kernel(kernel, operands.data(), count, replace)
                                          : run_observed(observed, operands.data(), count, replace);
  if (replace && results != nullptr) store(slots, (*gather->slots)[place], Py_NewRef(gather->evicted));
  return results;
}

// Runs the statement of one instruction; returns false with an exception.
bool run_instruction(PyObject* instruction, PyObject* slots) {
  PyObject *execute = PyTuple_GET_ITEM(instruction, 0), *gather = PyTuple_GET_ITEM(instruction, 1);
  Owned results;
  if (Py_TYPE(gather) == &GatherType) {
    results = Owned(run_gathered(execute, reinterpret_cast<Gather*>(gather), slots));
  } else {
    Owned gathered(PyObject_CallOneArg(gather, slots));
    Owned operands(gathered ? PySequence_Tuple(gathered.object) : nullptr);
    if (operands) results = Owned(PyObject_Call(execute, operands.object, nullptr));
  }
  return results && store_results(slots, PyTuple_GET_ITEM(instruction, 2), std::move(results));
}

// Returns the exception that is set, with its traceback.
PyObject* taken_exception() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

// run(instructions, slots, pc): runs statements up to the next instruction without `execute`.  Returns its
// number and None, or the number of the statement that raised and its exception.
PyObject* run(PyObject*, Operands given, Py_ssize_t count) {
  if (count != 3 || !PyList_CheckExact(given[0]) || !PyList_CheckExact(given[1])) {
    PyErr_SetString(PyExc_TypeError, "run takes a list of instructions, a list of slots and a number");
    return nullptr;
  }
  Py_ssize_t pc = PyLong_AsSsize_t(given[2]);
  if (pc == -1 && PyErr_Occurred()) return nullptr;
  PyObject* error = nullptr;
  while (pc < PyList_GET_SIZE(given[0])) {
    // Another thread may replace the instruction while the kernel runs.
    Owned instruction(Py_NewRef(PyList_GET_ITEM(given[0], pc)));
    if (PyTuple_GET_ITEM(instruction.object, 0) == Py_None) break;
    if (PyErr_CheckSignals() < 0 || !run_instruction(instruction.object, given[1])) {
      error = taken_exception();
      break;
    }
    ++pc;
  }
  return Py_BuildValue("nN", pc, error != nullptr ? error : Py_NewRef(Py_None));
}

// -- the module -------------------------------------------------------------------------------

PyMethodDef functions[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torch_kernels", nullptr, -1, functions};

// Fills in a type whose objects can be called with `Object::vectorcall`.
template <class Object>
void set_up(PyTypeObject& type, const char* name, newfunc make, destructor deallocate) {
  type.tp_name = name;
  type.tp_basicsize = sizeof(Object);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = make;
  type.tp_dealloc = deallocate;
  if constexpr (requires { &Object::vectorcall; }) {
    type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    type.tp_vectorcall_offset = offsetof(Object, vectorcall);
    type.tp_call = PyVectorcall_Call;
  }
}

void set_up_collection(PyTypeObject& type, traverseproc traverse, inquiry clear) {
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
}

}  // namespace

PyMODINIT_FUNC PyInit_torch_kernels() {
  set_up<Kernel>(KernelType, "torch_kernels.Kernel", kernel_new, kernel_dealloc);
  set_up_collection(KernelType, kernel_traverse, kernel_clear);
  set_up<Inspection>(InspectionType, "torch_kernels.Inspection", inspection_new, inspection_dealloc);
  set_up_collection(InspectionType, inspection_traverse, inspection_clear);
  InspectionType.tp_members = inspection_members;
  set_up<Observed>(ObservedType, "torch_kernels.Observed", observed_new, observed_dealloc);
  set_up_collection(ObservedType, observed_traverse, observed_clear);
  set_up<Gather>(GatherType, "torch_kernels.Gather", gather_new, gather_dealloc);
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  for (PyTypeObject* type : {&KernelType, &InspectionType, &ObservedType, &GatherType})
    if (PyModule_AddType(module, type) < 0) return nullptr;
  return module;
}
