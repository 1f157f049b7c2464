// The observer of the tier `native`: checks the results of each operator for NaN and Inf.
//
// It is a callback of at::RecordFunction on the thread of the training; autograd passes it on to its own
// threads.  Python is called for the first findings of a step only; the source lines of operators that make
// autograd nodes are read from Python's frames.  operator_watch.py describes the arguments.

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "elements.h"

// Functions of CPython 3.11 or later, found in the process: so the library does not depend on its version.
extern "C" {
struct _object;
using PyObject = _object;
int PyGILState_Ensure();
void PyGILState_Release(int);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
PyObject* PyEval_GetFrame();                 // borrowed
PyObject* PyFrame_GetBack(PyObject* frame);  // new references
PyObject* PyFrame_GetCode(PyObject* frame);
PyObject* PyFrame_GetLocals(PyObject* frame);
PyObject* PyMapping_GetItemString(PyObject* mapping, const char* key);
int PyFrame_GetLasti(PyObject* frame);
}

namespace {

enum Kinds : uint8_t { NONE = 0, NAN_KIND = 1, INF_KIND = 2, BOTH = 3 };
enum Phase : int32_t { FORWARD = 0, BACKWARD = 1, OPTIMIZER = 2, PHASES = 3 };

struct Operand {
  int32_t argument;  // its position in the schema
  int32_t position;  // in a list of tensors, otherwise -1
  int64_t nans, infinities, count;
};

struct Finding {
  const char* name;
  const char* overload;
  const char* node;  // the innermost autograd node, or nullptr
  int64_t sequence;  // of this node
  int32_t phase;
  int32_t value;       // NAN_KIND or INF_KIND
  int32_t originates;  // 0 if an operand has the value
  int64_t nans, infinities, count;
  int32_t operands;  // how many operands have NaN or Inf
  const Operand* operand;
};

using FoundCallback = void (*)(const Finding*);
using ClassifyCallback = int64_t (*)(const char* name, const char* overload);
using CodeCallback = int (*)(PyObject* code);

// The place of a call that made the autograd nodes from `first` up to `end`; null without one.
struct MadeNodes {
  int64_t first, end;
  PyObject* code;    // of the innermost frame of the user
  int64_t position;  // of the instruction in it
  PyObject* module;  // the innermost one
};

// What `classify` returns: positions of the arguments that an operator writes to, and these.
constexpr int64_t UNCHECKED = int64_t(1) << 62;
constexpr int64_t OVERWRITES = int64_t(1) << 61;  // it reads nothing of what it writes to
constexpr int64_t COMPOSITE = int64_t(1) << 60;   // it calls operators that are checked
constexpr int64_t KEEPS_FINITE = int64_t(1) << 59;  // of finite operands, it makes finite results
constexpr int64_t SELECTS = int64_t(1) << 58;  // so it does if the first operand is finite
constexpr size_t MOST_ARGUMENTS = 58;

FoundCallback on_found = nullptr;
ClassifyCallback on_new_operator = nullptr;
CodeCallback on_new_code = nullptr;
PyObject* module_call = nullptr;  // the code that runs while a module is called: its variable `self`
std::atomic<bool> active{false};
std::atomic<bool> updating{false};

// The findings of this step: values that originated, in each phase, and those that an operand brought.
std::atomic<bool> originated[PHASES][BOTH];
std::atomic<bool> entered[BOTH];

// -- elements --------------------------------------------------------------------------------------------

constexpr int64_t BLOCK = 2048;

struct Counts {
  int64_t nans = 0, infinities = 0;
  Kinds kinds() const { return Kinds((nans ? NAN_KIND : 0) | (infinities ? INF_KIND : 0)); }
};

// Adds the NaN and Inf of a run of words; returns false as soon as all kinds of `until` were seen.
template <class F>
bool count_run(const typename F::Type* words, int64_t length, Kinds until, Counts& counts) {
  using Word = typename F::Type;
  for (int64_t start = 0; start < length; start += BLOCK) {
    const int64_t size = std::min(BLOCK, length - start);
    if (!has_special<F>(words + start, size)) continue;
    Word nans = 0, infinities = 0;  // of one block, so they fit
    for (int64_t i = start; i < start + size; ++i) {
      const Word magnitude = Word(words[i] & Word(~F::TOP));
      nans = Word(nans + (magnitude > F::FULL));
      infinities = Word(infinities + (magnitude == F::FULL));
    }
    counts.nans += nans;
    counts.infinities += infinities;
    if (until != NONE && (counts.kinds() & until) == until) return false;
  }
  return true;
}

// `per_element` is the number of words of an element: 2 for complex numbers.
template <class F>
Counts count_words(const c10::TensorImpl& tensor, int64_t per_element, Kinds until) {
  using Word = typename F::Type;
  Counts counts;
  const Word* data = static_cast<const Word*>(tensor.data());
  if (tensor.is_non_overlapping_and_dense_or_false()) {
    count_run<F>(data, tensor.numel() * per_element, until, counts);
    return counts;
  }
  // The elements of a repeated axis are counted once, and multiplied.
  std::vector<int64_t> sizes, strides, index;
  int64_t repeated = 1;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.stride(axis) == 0) {
      repeated *= tensor.size(axis);
    } else if (tensor.size(axis) != 1) {
      sizes.push_back(tensor.size(axis));
      strides.push_back(tensor.stride(axis) * per_element);
    }
  }
  index.resize(sizes.size());
  while (count_run<F>(data, per_element, until, counts)) {
    int64_t axis = int64_t(sizes.size()) - 1;
    for (; axis >= 0; --axis) {
      data += strides[axis];
      if (++index[axis] < sizes[axis]) break;
      data -= strides[axis] * sizes[axis];
      index[axis] = 0;
    }
    if (axis < 0) break;
  }
  counts.nans *= repeated;
  counts.infinities *= repeated;
  return counts;
}

Counts count_in(const c10::TensorImpl& tensor, Kinds until) {
  if (!readable(tensor)) return {};
  switch (c10::typeMetaToScalarType(tensor.dtype())) {
    case c10::ScalarType::Float: return count_words<F32>(tensor, 1, until);
    case c10::ScalarType::Double: return count_words<F64>(tensor, 1, until);
    case c10::ScalarType::Half: return count_words<F16>(tensor, 1, until);
    case c10::ScalarType::BFloat16: return count_words<BF16>(tensor, 1, until);
    case c10::ScalarType::ComplexFloat: return count_words<F32>(tensor, 2, until);
    case c10::ScalarType::ComplexDouble: return count_words<F64>(tensor, 2, until);
    case c10::ScalarType::ComplexHalf: return count_words<F16>(tensor, 2, until);
    default: return {};
  }
}

Kinds kinds_of(double number) {
  return std::isnan(number) ? NAN_KIND : std::isinf(number) ? INF_KIND : NONE;
}

// -- the operators of a thread ---------------------------------------------------------------------------

enum class Arithmetic : uint8_t { OTHER, MULTIPLIES, DIVIDES, ADDS };

// Which operators may have a number as the second argument.
Arithmetic arithmetic_of(std::string_view name) {
  if (name == "aten::mul" || name == "aten::mul_" || name == "aten::_foreach_mul_") return Arithmetic::MULTIPLIES;
  if (name == "aten::div" || name == "aten::div_" || name == "aten::_foreach_div_") return Arithmetic::DIVIDES;
  if (name == "aten::add" || name == "aten::add_" || name == "aten::_foreach_add_") return Arithmetic::ADDS;
  return Arithmetic::OTHER;
}

struct Operator {
  Operator(const char* name, const std::string& overload, int64_t written)
      : name(name), overload(overload), written(written), arithmetic(arithmetic_of(name)),
        is_operator(this->name.find("::") != std::string::npos) {}

  std::string name, overload;
  int64_t written;  // as `classify` returned it
  Arithmetic arithmetic;
  bool is_operator;  // not an autograd function of Python
  mutable std::atomic<bool> calls_many{false};  // its kernel calls several operators
};

// The content of a tensor when it was checked last.
struct Checked {
  // Keeps another tensor from having its address, but not its memory from being freed.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  const void* data = nullptr;
  uint32_t version = 0;
  uint64_t tick = 0;
  Kinds kinds = NONE;
};

// Holds the tensor: a boxed kernel drops its arguments before it ends.
struct TensorArgument {
  at::Tensor tensor;
  int32_t argument, position;
};

struct Frame {
  const Operator* called;  // nullptr inside of a kernel
  bool checked;            // its results are
  bool evaluates_node;     // it is no operator: the engine of autograd evaluates a node and its hooks
  bool silent;             // operators inside of it are not observed
  bool stays_finite;       // its operands are finite, and so are its results
  uint64_t tick;           // when it began
  int64_t sequence;        // the number of the next autograd node then
  size_t reads, writes, spoiled;  // how many entries the lists of the thread had then
  Kinds scalars;           // of numbers among the arguments
  bool outermost;
};

struct Node {
  const char* name;  // lives as long as the node is evaluated
  int64_t sequence;
};

constexpr size_t KEPT = 4096;
constexpr size_t KEPT_NAMES = 1024;
constexpr uint64_t MANY = 3;  // operators inside of a kernel that cost more than to turn observers off and on

struct NamedOperator {
  const char* name = nullptr;
  const Operator* found = nullptr;
};

struct Thread {
  std::vector<NamedOperator> operators = std::vector<NamedOperator>(KEPT_NAMES);
  std::vector<Checked> checked = std::vector<Checked>(KEPT);
  std::vector<Frame> frames;
  std::vector<TensorArgument> reads, writes;
  std::vector<Operand> spoiled;  // operands that are written to, and had NaN or Inf before
  std::vector<Node> nodes;
  uint64_t tick = 0;
  bool inside = false;  // Python code of nncdbg runs
  bool idle = false;    // no operator can be bad, so observers are off
};

thread_local Thread this_thread;

std::mutex operators_mutex;
std::unordered_map<std::string, std::unique_ptr<Operator>> all_operators;  // threads point to them

const Operator* operator_of(Thread& here, const at::RecordFunction& function) {
  const char* name = function.name();
  NamedOperator& known = here.operators[(reinterpret_cast<uintptr_t>(name) >> 3) * 0x9e3779b97f4a7c15ull >> 54];
  // The text at an address may be another one if it is no name of a schema.
  if (known.name == name && known.found->name == name) return known.found;
  const std::string overload = function.overload_name();
  const std::string key = std::string(name) + "." + overload;
  const Operator* found = nullptr;
  {
    std::lock_guard<std::mutex> lock(operators_mutex);
    const auto at = all_operators.find(key);
    if (at != all_operators.end()) found = at->second.get();
  }
  if (found == nullptr) {
    // Without the mutex: Python may run another thread.
    here.inside = true;
    const int64_t written = on_new_operator(name, overload.c_str());
    here.inside = false;
    std::lock_guard<std::mutex> lock(operators_mutex);
    auto& entry = all_operators[key];
    if (entry == nullptr) entry = std::make_unique<Operator>(name, overload, written);
    found = entry.get();
  }
  known = {name, found};
  return found;
}

uint32_t version_of(const c10::TensorImpl& tensor) {
  return const_cast<c10::TensorImpl&>(tensor).is_inference() ? 0 : tensor.version_counter().current_version();
}

Checked& entry_of(Thread& here, const c10::TensorImpl& tensor) {
  return here.checked[(reinterpret_cast<uintptr_t>(&tensor) >> 4) * 0x9e3779b97f4a7c15ull >> 52];
}

bool is_entered(const Checked& entry, const c10::TensorImpl& tensor) {
  return entry.tensor._unsafe_get_target() == &tensor && entry.data == tensor.data();
}

void enter(Thread& here, const at::Tensor& tensor, Kinds kinds, uint64_t tick) {
  const c10::TensorImpl& content = *tensor.unsafeGetTensorImpl();
  Checked& entry = entry_of(here, content);
  if (entry.tensor._unsafe_get_target() != &content) entry.tensor = tensor.getIntrusivePtr();
  entry.data = content.data();
  entry.version = version_of(content);
  entry.tick = tick;
  entry.kinds = kinds;
}

// Calls `visit(tensor, position in a list, or -1)` for the tensors of an argument or result.
template <class Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) visit(tensor, -1);
  } else if (value.isList()) {
    int32_t position = 0;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor(), position);
      ++position;
    }
  }
}

Kinds kinds_of_numbers(const c10::IValue& value) {
  uint8_t kinds = NONE;
  if (value.isDouble()) {
    kinds = kinds_of(value.toDouble());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    kinds = kinds_of(number.real()) | kinds_of(number.imag());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (item.isDouble()) kinds |= kinds_of(item.toDouble());
  }
  return Kinds(kinds);
}

// Enters the content of an operand that is written to: it is lost afterwards.
void read_before_write(Thread& here, const at::Tensor& written, int32_t argument, int32_t position) {
  const c10::TensorImpl& tensor = *written.unsafeGetTensorImpl();
  if (!readable(tensor)) return;
  const Checked& entry = entry_of(here, tensor);
  if (is_entered(entry, tensor) && entry.version == version_of(tensor) && entry.kinds == NONE) return;
  const Counts counts = count_in(tensor, NONE);
  enter(here, written, counts.kinds(), 0);
  if (counts.kinds() != NONE)
    here.spoiled.push_back({argument, position, counts.nans, counts.infinities, tensor.numel()});
}

void read_arguments(Thread& here, const at::RecordFunction& function, Frame& frame) {
  const auto inputs = function.inputs();
  uint8_t scalars = NONE;
  for (size_t argument = 0; argument < inputs.size(); ++argument) {
    const bool written = argument < MOST_ARGUMENTS && (frame.called->written >> argument & 1);
    scalars |= kinds_of_numbers(inputs[argument]);
    each_tensor(inputs[argument], [&](const at::Tensor& tensor, int32_t position) {
      (written ? here.writes : here.reads).push_back({tensor, int32_t(argument), position});
      if (written && !(frame.called->written & OVERWRITES))
        read_before_write(here, tensor, int32_t(argument), position);
    });
  }
  frame.scalars = Kinds(scalars);
}

// Returns the number of an argument, also of a tensor that Python made of a number; NaN for all else.
double number_of(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return double(value.toInt());
  if (!value.isTensor() || !value.toTensor().defined()) return NAN;
  const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
  if (!tensor.is_wrapped_number() || !readable(tensor)) return NAN;
  const auto type = c10::typeMetaToScalarType(tensor.dtype());
  if (type == c10::ScalarType::Double) return *static_cast<const double*>(tensor.data());
  return type == c10::ScalarType::Long ? double(*static_cast<const int64_t*>(tensor.data())) : NAN;
}

bool is_float(const c10::TensorImpl& tensor) {
  const auto type = c10::typeMetaToScalarType(tensor.dtype());
  return type == c10::ScalarType::Float || type == c10::ScalarType::Double || type == c10::ScalarType::Half ||
      type == c10::ScalarType::BFloat16;
}

// Whether the number keeps each finite float finite: engine/ops/aten/operators.py has the reasons.
bool keeps_finite(Arithmetic arithmetic, double number) {
  const double size = std::fabs(number);
  switch (arithmetic) {
    case Arithmetic::MULTIPLIES: return size <= 1;
    case Arithmetic::DIVIDES: return size >= 1 && size <= 1e4;
    case Arithmetic::ADDS: return size <= 1;
    default: return false;
  }
}

// Returns whether an operand is a tensor of floats, was checked, was finite, and was not written to since.
bool is_known_finite(Thread& here, const at::Tensor& operand) {
  const c10::TensorImpl& tensor = *operand.unsafeGetTensorImpl();
  const Checked& entry = entry_of(here, tensor);
  return is_float(tensor) && !operand.is_inference() && is_entered(entry, tensor) && entry.kinds == NONE &&
      entry.version == version_of(tensor);
}

// Returns whether all operands of floats that matter are finite, and have one type: no number is converted.
bool are_known_finite(Thread& here, const Frame& frame) {
  c10::ScalarType known = c10::ScalarType::Undefined;
  const auto is_harmless = [&](const TensorArgument& operand) {
    const auto type = operand.tensor.scalar_type();
    if (c10::isIntegralType(type, /*includeBool=*/true)) return true;
    if (known != c10::ScalarType::Undefined && type != known) return false;
    known = type;
    return is_known_finite(here, operand.tensor);
  };
  for (size_t i = frame.reads; i < here.reads.size(); ++i) {
    if ((frame.called->written & SELECTS) && here.reads[i].argument > 0) continue;
    if (!is_harmless(here.reads[i])) return false;
  }
  for (size_t i = frame.writes; i < here.writes.size(); ++i)
    if (!(frame.called->written & OVERWRITES) && !is_harmless(here.writes[i])) return false;
  return true;
}

// Returns whether the first argument and a number as the second one make a finite result, if the first is.
bool has_harmless_number(const at::RecordFunction& function, Arithmetic arithmetic) {
  const auto inputs = function.inputs();
  if (arithmetic == Arithmetic::OTHER || inputs.size() < 2 || inputs.size() > 3) return false;
  if (inputs.size() == 3 && !(inputs[2].isInt() && inputs[2].toInt() == 1)) return false;
  return keeps_finite(arithmetic, number_of(inputs[1]));
}

// Returns whether all results of an operator are finite, so that they need not be read.
bool stays_finite(Thread& here, const at::RecordFunction& function, const Frame& frame) {
  if (frame.scalars != NONE || here.spoiled.size() > frame.spoiled) return false;
  if (frame.called->written & (KEEPS_FINITE | SELECTS)) return are_known_finite(here, frame);
  if (!has_harmless_number(function, frame.called->arithmetic)) return false;
  for (size_t i = frame.reads; i < here.reads.size(); ++i) {
    const at::Tensor& read = here.reads[i].tensor;
    const bool is_number = here.reads[i].argument == 1 && read.unsafeGetTensorImpl()->is_wrapped_number();
    if (!is_number && !is_known_finite(here, read)) return false;
  }
  for (size_t i = frame.writes; i < here.writes.size(); ++i)
    if (!is_known_finite(here, here.writes[i].tensor)) return false;
  return true;
}

// Returns which of these kinds an operand has.
Kinds kinds_of_operands(Thread& here, const Frame& frame, Kinds wanted) {
  uint8_t kinds = NONE;
  for (size_t i = frame.spoiled; i < here.spoiled.size(); ++i)
    kinds |= (here.spoiled[i].nans ? NAN_KIND : NONE) | (here.spoiled[i].infinities ? INF_KIND : NONE);
  for (size_t i = frame.reads; i < here.reads.size() && (kinds & wanted) != wanted; ++i)
    kinds |= count_in(*here.reads[i].tensor.unsafeGetTensorImpl(), wanted).kinds();
  return Kinds(kinds & wanted);
}

std::vector<Operand> spoiled_operands(Thread& here, const Frame& frame) {
  std::vector<Operand> found(here.spoiled.begin() + frame.spoiled, here.spoiled.end());
  for (size_t i = frame.reads; i < here.reads.size(); ++i) {
    const TensorArgument& read = here.reads[i];
    const Counts counts = count_in(*read.tensor.unsafeGetTensorImpl(), NONE);
    if (counts.kinds() != NONE)
      found.push_back({read.argument, read.position, counts.nans, counts.infinities, read.tensor.numel()});
  }
  return found;
}

void report(Thread& here, const Frame& frame, const c10::TensorImpl& result, Phase phase, Kinds value, bool originates) {
  const Counts counts = count_in(result, NONE);
  const std::vector<Operand> operands = spoiled_operands(here, frame);
  const Node* node = here.nodes.empty() ? nullptr : &here.nodes.back();
  const Finding finding{
      frame.called->name.c_str(), frame.called->overload.c_str(), node ? node->name : nullptr,
      node ? node->sequence : -1, phase, value, originates, counts.nans, counts.infinities, result.numel(),
      int32_t(operands.size()), operands.data()};
  here.inside = true;
  on_found(&finding);
  here.inside = false;
}

// Reports a value of a result if it is the first one of its kind: one that originates here, or that
// an operand brings from outside of the step.  A number that the user gave, as for a mask, is neither.
void judge(Thread& here, const Frame& frame, const c10::TensorImpl& result, Kinds kinds) {
  const Phase phase = !here.nodes.empty() ? BACKWARD : updating ? OPTIMIZER : FORWARD;
  uint8_t open = NONE;
  for (const Kinds value : {NAN_KIND, INF_KIND}) {
    const bool known = entered[value] && (originated[phase][value] || (frame.scalars & value));
    if ((kinds & value) && !known) open |= value;
  }
  if (open == NONE) return;
  const Kinds of_operands = kinds_of_operands(here, frame, Kinds(open));
  for (const Kinds value : {NAN_KIND, INF_KIND}) {
    if (!(open & value)) continue;
    if (of_operands & value) {
      if (!entered[value].exchange(true)) report(here, frame, result, phase, value, false);
    } else if (frame.scalars & value) {
      entered[value] = true;
    } else if (!originated[phase][value].exchange(true)) {
      entered[value] = true;
      report(here, frame, result, phase, value, true);
    }
  }
}

void check_result(Thread& here, const Frame& frame, const at::Tensor& result) {
  const c10::TensorImpl& tensor = *result.unsafeGetTensorImpl();
  if (!readable(tensor)) return;
  Checked& entry = entry_of(here, tensor);
  if (is_entered(entry, tensor) && entry.tick > frame.tick) {
    entry.version = version_of(tensor);  // an operator inside of this one has returned it
    return;
  }
  const Kinds kinds = frame.stays_finite ? NONE : count_in(tensor, BOTH).kinds();
  enter(here, result, kinds, ++here.tick);
  if (kinds != NONE) judge(here, frame, tensor, kinds);
}

void check_results(Thread& here, const at::RecordFunction& function, const Frame& frame) {
  for (const c10::IValue& output : function.outputs())
    each_tensor(output, [&](const at::Tensor& tensor, int32_t) {
      check_result(here, frame, tensor);
    });
  for (size_t i = frame.writes; i < here.writes.size(); ++i) check_result(here, frame, here.writes[i].tensor);
}

// -- source lines of the operators that make autograd nodes ------------------------------------------------

constexpr size_t MOST_NODES = 100'000;  // if no step ends

// Both are used with Python's lock held.
std::vector<MadeNodes> all_made;
std::unordered_map<PyObject*, bool> user_codes;  // Python keeps these

bool is_user_code(Thread& here, PyObject* code) {
  const auto known = user_codes.find(code);
  if (known != user_codes.end()) return known->second;
  here.inside = true;
  const int found = on_new_code(code);
  here.inside = false;
  return found >= 0 && (user_codes[code] = found != 0);  // otherwise it was interrupted
}

// Returns the variable `self` of a frame, a new reference, or nullptr.
PyObject* self_of(PyObject* frame) {
  PyObject* locals = PyFrame_GetLocals(frame);
  PyObject* self = locals == nullptr ? nullptr : PyMapping_GetItemString(locals, "self");
  if (locals != nullptr) Py_DecRef(locals);
  if (PyErr_Occurred()) PyErr_Clear();
  return self;
}

// Keeps the place of a call that made autograd nodes: a value of their gradients may be bad.
void keep_place(Thread& here, int64_t first, int64_t end) {
  const int lock = PyGILState_Ensure();
  if (all_made.size() < MOST_NODES && !PyErr_Occurred()) {
    MadeNodes made{first, end, nullptr, 0, nullptr};
    PyObject* frame = PyEval_GetFrame();
    if (frame != nullptr) Py_IncRef(frame);
    while (frame != nullptr && (made.code == nullptr || made.module == nullptr)) {
      PyObject* code = PyFrame_GetCode(frame);
      if (made.module == nullptr && code == module_call) made.module = self_of(frame);
      if (made.code == nullptr && is_user_code(here, code)) {
        made.code = code;
        made.position = PyFrame_GetLasti(frame);
      } else {
        Py_DecRef(code);
      }
      PyObject* back = PyFrame_GetBack(frame);
      Py_DecRef(frame);
      frame = back;
    }
    if (frame != nullptr) Py_DecRef(frame);
    all_made.push_back(made);
  }
  PyGILState_Release(lock);
}

constexpr std::string_view EVALUATION = "autograd::engine::evaluate_function: ";

// Whether a kernel runs: the operators that it calls are parts of its own operator.  From torch 2.14 on, a
// custom operator whose kernel is Python code is not observed, so the operators of this code are.
bool in_kernel(const Thread& here) {
  const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  if (!excluded.has(c10::DispatchKey::AutogradFunctionality)) return false;
  const auto inner = std::find_if(here.frames.rbegin(), here.frames.rend(), [](const Frame& frame) {
    return frame.called == nullptr ? !frame.evaluates_node : frame.called->is_operator;
  });
  return inner != here.frames.rend() && (inner->called == nullptr || !(inner->called->written & COMPOSITE));
}

// Whether no profiler observes operators as well.
bool is_only_observer() {
  const auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return observers.has_value() && observers->callbacks_.size() == 1;
}

std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
  Thread& here = this_thread;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    here.nodes.push_back({function.name(), function.seqNr()});
    return nullptr;
  }
  Frame frame{nullptr, false, false, false, false, ++here.tick, -1, here.reads.size(), here.writes.size(),
              here.spoiled.size(), NONE, here.frames.empty()};
  if (std::string_view(function.name()).starts_with(EVALUATION)) {
    frame.evaluates_node = true;
    here.nodes.push_back({function.name() + EVALUATION.size(), -1});
  } else if (active && !here.inside && !in_kernel(here)) {
    frame.called = operator_of(here, function);
    if (frame.outermost && here.nodes.empty()) frame.sequence = function.seqNr();
    if (!(frame.called->written & UNCHECKED)) {
      frame.checked = true;
      read_arguments(here, function, frame);
      frame.stays_finite = stays_finite(here, function, frame);
    }
    // Operators inside of a kernel are not checked.  Without observers they cost nothing.
    if (frame.called->calls_many && is_only_observer()) {
      frame.silent = true;
      at::enableRecordFunction(false);
    }
  }
  here.frames.push_back(frame);
  return nullptr;
}

void ended(const at::RecordFunction& function, at::ObserverContext*) {
  Thread& here = this_thread;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (!here.nodes.empty()) here.nodes.pop_back();
    return;
  }
  if (here.frames.empty()) return;  // it began before the watch
  const Frame frame = here.frames.back();
  here.frames.pop_back();
  if (frame.silent) {
    at::enableRecordFunction(true);
  } else if (here.tick - frame.tick >= MANY && frame.called != nullptr && !(frame.called->written & COMPOSITE)) {
    frame.called->calls_many = true;
  }
  if (frame.evaluates_node) {
    if (!here.nodes.empty()) here.nodes.pop_back();
    return;
  }
  if (active && !here.inside) {
    if (frame.checked) check_results(here, function, frame);
    const int64_t next = frame.sequence < 0 ? -1 : int64_t(at::sequence_number::peek());
    if (next > frame.sequence) keep_place(here, frame.sequence, next);
  }
  here.reads.resize(frame.reads);
  here.writes.resize(frame.writes);
  here.spoiled.resize(frame.spoiled);
}

}  // namespace

extern "C" {

uint64_t nncdbg_begin(FoundCallback found, ClassifyCallback classify, CodeCallback code, PyObject* call) {
  on_found = found;
  on_new_operator = classify;
  on_new_code = code;
  module_call = call;
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(&started, &ended)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void nncdbg_end(uint64_t handle) {
  active = false;
  at::removeCallback(handle);
}

void nncdbg_set_active(int value) { active = value != 0; }

void nncdbg_set_updating(int value) { updating = value != 0; }

// Turns the observers of this thread off and on; they stay on if a profiler is one of them.
void nncdbg_set_idle(int value) {
  Thread& here = this_thread;
  const bool idle = value != 0 && is_only_observer();
  if (idle == here.idle) return;
  here.idle = idle;
  at::enableRecordFunction(!idle);
}

// Python's lock must be held.
void nncdbg_forget() {
  for (auto& phase : originated)
    for (auto& value : phase) value = false;
  for (auto& value : entered) value = false;
  std::vector<MadeNodes> made;
  made.swap(all_made);  // The last reference to a module may run any code.
  for (const MadeNodes& each : made) {
    if (each.code != nullptr) Py_DecRef(each.code);
    if (each.module != nullptr) Py_DecRef(each.module);
  }
  made.clear();
  if (all_made.empty()) made.swap(all_made);  // with its memory
}

// Returns the call that made the autograd node with this number, or nullptr.  Python's lock must be held.
const MadeNodes* nncdbg_made(int64_t sequence) {
  const auto after = std::upper_bound(
      all_made.begin(), all_made.end(), sequence,
      [](int64_t number, const MadeNodes& made) { return number < made.first; });
  return after == all_made.begin() || sequence >= (after - 1)->end ? nullptr : &*(after - 1);
}
}
