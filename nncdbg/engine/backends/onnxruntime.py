"""onnxruntime's kernels, one node at a time: the debugger steps the kernels that are deployed.

A statement becomes a session of one node at its first execution, because the types of its operands
are only known then; statements with the same op, attributes and types share a session.  Operands are
bound in place and results are written into the allocator's buffers, so nothing is copied, and NaN
fill, guards and inspection see the kernel's own writes.  The machine runs control flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import FROM_ONNX, NUMPY, ONNX, name_of
from nncdbg.engine.backends import Backend, Call, Kernels, refusal, way_past
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.ops.declaration import measure_of, result_of
from nncdbg.engine.ops.onnx_schemas import attribute_data, type_proto
from nncdbg.engine.ops.schema import schema, split
from nncdbg.errors import NncdbgError, RunError, UnsupportedOp, UsageError
from nncdbg.ir.records import Inline, Map, Node, SequenceType, TensorType, Type

NEWEST_OPSET = 26
"""The newest opset of ONNX's own domain that onnxruntime 1.31 reads."""

NEWEST_IR = 13
"""The newest IR version that onnxruntime 1.31 reads."""

SEQUENCE = "sequence"
TEXT = np.dtype(object)

Kind: TypeAlias = "np.dtype[Any] | tuple[str, np.dtype[Any]] | None"
"""The property of an operand that selects a session: dtype, or (SEQUENCE, dtype); None if not given.

Sizes and ranks stay unknown: onnxruntime's inference requires full shapes if a part is known.
"""

Kinds: TypeAlias = "tuple[Kind, ...]"

_PACKED = frozenset({"u4", "i4", "u2", "i2", "f4e2m1fn"})


def kind_of(value: Any) -> Kind:
    """Return the kind of an operand.  Runs at every execution, so it builds no types."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return SEQUENCE, value[0].dtype if value else np.dtype(np.float32)
    dtype: np.dtype[Any] = value.dtype
    return dtype


def type_of(kind: Kind) -> Type | None:
    """Return a kind as a type without sizes."""
    if isinstance(kind, tuple):
        return SequenceType(TensorType(name_of(kind[1])))
    return None if kind is None else TensorType(name_of(kind))


def output_names(node: Node) -> list[str]:
    """Return ``output_0`` and so on, empty for an output that the statement does not name."""
    return [f"output_{index}" if value.name else "" for index, value in enumerate(node.outputs)]


def why_not(call: Call) -> str | None:
    """Return why onnxruntime cannot run a statement, as far as known without its operands; else None."""
    if call.op.draws(call.node.inputs):
        return "its random numbers would differ when a statement is executed again"
    if opset_for(call.node.op, call.version) is None:
        return f"onnxruntime reads opsets up to {NEWEST_OPSET}, which lack this version of the op"
    return None


@cache
def opset_for(op: str, version: int) -> int | None:
    """Return the opset that a model of one node imports for the op's domain.

    This is the program's opset, or `NEWEST_OPSET` if the op had the same signature then (newer versions
    that only add element types); None if the signature differs.
    """
    domain, _ = split(op)
    if domain or version <= NEWEST_OPSET:
        return version
    now, then = schema(op, version), schema(op, NEWEST_OPSET)
    if now is None or then is None or now.since == then.since:
        return NEWEST_OPSET if now is not None and then is not None else None
    same = now.inputs == then.inputs and now.outputs == then.outputs and now.attributes == then.attributes
    return NEWEST_OPSET if same else None


def refuse_packed(dtype_name: str, call: Call) -> None:
    """Raise UnsupportedOp for elements smaller than a byte, which runtimes store packed."""
    if dtype_name in _PACKED:
        raise UnsupportedOp(
            f"{call.node.op} has no kernel on onnxruntime for {dtype_name}: onnxruntime packs its elements",
            hint="use --fallback to run this op on NumPy",
        )


def signature(call: Call) -> tuple[Any, ...]:
    """Return the parts of a call, besides its operands, that a session depends on."""
    node = call.node
    attributes = tuple((name, _frozen(value)) for name, value in sorted(node.attributes.items()))
    return node.op, call.version, attributes, tuple(bool(value.name) for value in node.outputs)


def _frozen(value: Any) -> Any:
    """Convert an attribute to a dictionary key; equal numbers of different types stay different."""
    if isinstance(value, Inline):
        array = value.array
        content = tuple(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
        return name_of(array.dtype), array.shape, content
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


@cache
def takes_tensors_only(op: str, version: int) -> bool:
    """Return False if an operand or result may be a sequence or an optional, or the op has no schema."""
    found = schema(op, version)
    return found is not None and all(formal.tensor for formal in (*found.inputs, *found.outputs))


def model_of(call: Call, kinds: Kinds) -> Any:
    """Return the ModelProto of one node, with its operands as inputs ``input_0`` and so on."""
    from onnx import AttributeProto, helper

    node = call.node
    domain, local = split(node.op)
    inputs = [f"input_{index}" if kind is not None else "" for index, kind in enumerate(kinds)]
    outputs = output_names(node)
    proto = helper.make_node(local, inputs, outputs, domain=domain)
    formal = schema(node.op, call.version)
    for name, value in node.attributes.items():
        # The type is from the schema: the value does not show it for an empty list.
        kind = None if formal is None else formal.kinds.get(name)
        data = attribute_data(value)
        # Program text may have 1 where ONNX requires a float.
        if kind == "FLOAT":
            data = float(data)
        elif kind == "FLOATS":
            data = [float(item) for item in data]
        number = None if kind is None else AttributeProto.AttributeType.Value(kind)
        proto.attribute.append(helper.make_attribute(name, data, attr_type=number))
    graph = helper.make_graph(
        [proto],
        "statement",
        [
            helper.make_value_info(name, type_proto(type_of(kind)))
            for name, kind in zip(inputs, kinds, strict=True)
            if kind is not None
        ],
        # Without a type, so that the runtime infers it.
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    imports = [helper.make_opsetid(domain, opset_for(node.op, call.version))]
    if domain:
        imports.append(helper.make_opsetid("", NEWEST_OPSET))
    oldest = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=imports, ir_version=min(NEWEST_IR, max(oldest, 10)))


def fact(error: Exception) -> str:
    """Return the cause from an onnxruntime message, without codes and node names."""
    text = " ".join(str(error).split())
    _, _, status = text.rpartition(" Status Message: ")
    if status != text:
        # "file:line function condition was false. what it means"
        _, _, meaning = status.partition(" was false. ")
        return meaning or status
    # "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : what it is"
    return text.split(" : ", 3)[-1]


class OnnxRuntime(Backend):
    """Sessions of one node.  `threads` is the number of threads of each kernel.

    Raises UsageError if onnxruntime is not installed.
    """

    name = "onnxruntime"
    runs_op_kernels = False

    def __init__(self, *, threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                "the backend onnxruntime needs the package onnxruntime, which is not installed",
                hint="pip install onnxruntime",
            ) from error
        self._library = onnxruntime
        # Below the public binding, which takes as long per operand as a small kernel: it checks for
        # devices that are not used here.
        native = onnxruntime.capi.onnxruntime_pybind11_state
        self.make_value = native.OrtValue.ortvalue_from_numpy_with_onnx_type
        """(contiguous array, ONNX's number of its type) -> value over the array's memory, not owning it."""
        self.binding = native.SessionIOBinding
        self.host = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        self.run_options = onnxruntime.RunOptions()
        self._options = _options(onnxruntime, threads)
        self._own = NumPy()
        self.sessions: dict[tuple[Any, Kinds], Any] = {}
        """Sessions by op, version, attributes, outputs and kinds of operands."""

    def bind(self, call: Call) -> Kernels:
        if call.node.op.startswith("nncdbg."):
            return self._own.bind(call)  # The debugger's own ops are no part of any model.
        reason = why_not(call)
        if reason is not None:
            fact = f"{call.node.op} has no kernel on onnxruntime: {reason}"
            return refusal(fact, lambda: way_past(call.node, _OTHER))
        statement = _Statement(self, call)
        return Kernels(statement.run, statement.into if _has_one_tensor(call) else None)

    def session(self, call: Call, kinds: Kinds) -> Any:
        """Return the session for a statement and the kinds of its operands.

        Raises UnsupportedOp if onnxruntime has no kernel for them.
        """
        key = (signature(call), kinds)
        if key not in self.sessions:
            content = model_of(call, kinds).SerializeToString()
            try:
                made = self._library.InferenceSession(
                    content, self._options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:
                raise UnsupportedOp(
                    f"{call.node.op} has no kernel on onnxruntime for these operands: {fact(error)}",
                    operands=[str(type_of(kind)) for kind in kinds if kind is not None],
                    hint=way_past(call.node, _OTHER),
                ) from error
            self.sessions[key] = made
        return self.sessions[key]


_OTHER = "use --fallback to run it on NumPy"

_NUMBERS = {NUMPY[name]: number for name, number in ONNX.items()}
"""NumPy dtype to ONNX's number for it."""

_CHANGED = object()
"""Marks operands that differ from those of the previous execution."""

_SMALL = 1 << 16
"""Bytes of operands up to which binding memory takes longer than copying a result."""


def _options(library: Any, threads: int) -> Any:
    """Return session options for a single kernel: no optimization, memory planning or parallel nodes."""
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Failures are raised, so they need not be logged too.
    options.log_severity_level = 4
    return options


def _has_one_tensor(call: Call) -> bool:
    """Return whether the result is one tensor made from tensors, so that it can go into a buffer."""
    return not call.several and call.op.infer is not None and takes_tensors_only(call.node.op, call.version)


def _sizes_follow(call: Call) -> bool:
    """Return whether the sizes of the one result follow from those of the operands."""
    return _has_one_tensor(call) and measure_of(call.op, call.attributes) is None


class _Statement:
    """One statement's kernel: the session for its operands, and the binding to their memory."""

    def __init__(self, backend: OnnxRuntime, call: Call) -> None:
        self._backend = backend
        self._call = call
        self._names = [f"input_{index}" for index in range(len(call.node.inputs))]
        self._packed_result = True
        """Whether the result's elements may be packed, until that is checked."""
        self._outputs = [name for name in output_names(call.node) if name]
        self._kinds: Kinds | None = None
        self._session: Any = None
        self._copies = False
        self._binding: Any = None
        self._operands: list[tuple[int, str, Any, int]] = []
        """(index, name, dtype, ONNX's number of the dtype) of each given operand."""
        self._constants: list[Any] = []
        """By index the constant operand with bound memory; `_CHANGED` for the others."""
        self._sizes_follow = _sizes_follow(call)
        self._planned_for: list[Any] = []
        self._planned: tuple[tuple[int, ...], np.dtype[Any]] | None = None

    def run(self, *inputs: Any) -> Any:
        """Return the results, in memory of NumPy if their sizes are known, else of onnxruntime.

        NumPy's memory is faster: onnxruntime returns its memory to the system and allocates it each time.
        """
        plan = self._plan(inputs) if self._sizes_follow else None
        if plan is not None:
            return self.into(*inputs, np.empty(*plan))
        self._prepare(inputs)
        size = sum(value.nbytes for value in inputs if value is not None) if self._copies else 0
        if self._binding is None or (self._copies and size <= _SMALL):
            return self._ordered(self._run_by_name(inputs))
        held = self._bind(inputs)
        binding = self._binding
        for name in self._outputs:
            binding.bind_output(name, self._backend.host)
        try:
            self._execute()
            results = binding.get_outputs()
            # An item shares ownership of the result; what an iterator yields does not.
            shares = [results[index] for index in range(len(results))]
            return self._ordered([_borrowed(value, self._call) for value in shares])
        finally:
            # The history drops results when memory gets short, so no reference is kept here.
            binding.clear_binding_outputs()
            del held

    def into(self, *arguments: Any) -> Any:
        """Write the one result into the buffer given last, and return it."""
        buffer = arguments[-1]
        # Operands are mostly of the same kinds as last time, which `_bind` checks as it binds them.
        held = self._bind(arguments) if self._binding is not None else _CHANGED
        if held is _CHANGED:
            inputs = arguments[:-1]
            self._prepare(inputs)
            if self._binding is None:
                np.copyto(buffer, self._ordered(self._run_by_name(inputs)))
                return buffer
            held = self._bind(inputs)
        if self._packed_result:
            refuse_packed(name_of(buffer.dtype), self._call)
            self._packed_result = False
        make = self._backend.make_value
        self._binding.bind_ortvalue_output("output_0", make(buffer, _NUMBERS[buffer.dtype]))
        self._execute()
        del held
        return buffer

    def _plan(self, inputs: Sequence[Any]) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Return shape and dtype of the result for these operands; None if only the kernel computes them."""
        key = [None if value is None else (value.shape, value.dtype) for value in inputs]
        if key != self._planned_for:
            self._planned = result_of(self._call.op, self._call.attributes, inputs)
            self._planned_for = key
        return self._planned

    def _prepare(self, inputs: Sequence[Any]) -> None:
        """Select the session and binding for these operands, mostly those of the last time."""
        kinds = (*map(kind_of, inputs),)
        if kinds == self._kinds:
            return
        for kind in kinds:
            if kind is not None and not isinstance(kind, tuple):
                refuse_packed(name_of(kind), self._call)
        session = self._backend.session(self._call, kinds)
        self._session = session._sess
        self._kinds = kinds
        results = [value.type for value in session.get_outputs()]
        # Text and sequences have no memory that could be bound.
        bindable = all(kind != TEXT and not isinstance(kind, tuple) for kind in kinds) and all(
            type_.startswith("tensor(") and type_ != "tensor(string)" for type_ in results
        )
        # Number types of NumPy itself can be requested by name, which copies the results.
        of_numpy = [kind is None or (isinstance(kind, np.dtype) and kind.isbuiltin == 1) for kind in kinds]
        self._copies = all(of_numpy) and not any(type_.startswith(_FOREIGN) for type_ in results)
        self._binding = self._backend.binding(self._session) if bindable else None
        if bindable:
            given = [(index, kind) for index, kind in enumerate(kinds) if isinstance(kind, np.dtype)]
            self._operands = [(i, self._names[i], kind, _NUMBERS[kind]) for i, kind in given]
            self._constants = [_CHANGED] * len(kinds)

    def _bind(self, inputs: Sequence[Any]) -> Any:
        """Bind the operands in place; return `_CHANGED` if their kinds differ from the last time.

        The returned object must live as long as the kernel runs, because a binding holds no references.
        """
        bind, make = self._binding.bind_ortvalue_input, self._backend.make_value
        constants = self._constants
        held: list[Any] = []
        for index, name, dtype, number in self._operands:
            value = inputs[index]
            if value is constants[index]:
                continue
            if value.__class__ is not np.ndarray or not value.flags.c_contiguous:
                value = np.ascontiguousarray(value).reshape(np.shape(value))
                held.append(value)
            if value.dtype != dtype:
                return _CHANGED
            bind(name, make(value, number))
            if index in self._call.constants and value is inputs[index]:
                constants[index] = value
        return held

    def _execute(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._backend.run_options)
        except Exception as error:
            raise self._failure(error) from error

    def _run_by_name(self, inputs: Sequence[Any]) -> list[Any]:
        feeds = {
            name: np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in zip(self._names, inputs, strict=True)
            if value is not None
        }
        try:
            results = self._session.run(self._outputs, feeds, self._backend.run_options)
        except Exception as error:
            raise self._failure(error) from error
        return [_converted(result) for result in results]

    def _failure(self, error: Exception) -> NncdbgError:
        op = self._call.node.op
        if type(error).__name__ == "NotImplemented":
            return UnsupportedOp(
                f"{op} has no kernel on onnxruntime: {fact(error)}", hint=way_past(self._call.node, _OTHER)
            )
        return RunError(f"{op} failed in onnxruntime: {fact(error)}")

    def _ordered(self, results: list[Any]) -> Any:
        """Return results as the machine takes them: one bare, several in order, None for a gap."""
        if not self._call.several:
            return results[0]
        remaining = iter(results)
        return [next(remaining) if name else None for name in output_names(self._call.node)]


_FOREIGN = tuple(
    f"tensor({name}" for name in ("bfloat16", "float8", "float4", "uint4", "int4", "uint2", "int2")
)


class _Memory:
    """The bytes of an OrtValue, as memory for a NumPy array; the array keeps a reference to it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__array_interface__ = {
            "shape": (value.tensor_size_in_bytes(),),
            "typestr": "|u1",
            "data": (value.data_ptr(), False),
            "version": 3,
        }


def _borrowed(value: Any, call: Call) -> Any:
    """Return an array over the memory of an OrtValue of numbers."""
    name = FROM_ONNX[value.element_type()]
    refuse_packed(name, call)
    shape, dtype = tuple(value.shape()), NUMPY[name]
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(value)).view(dtype).reshape(shape)


def _converted(result: Any) -> Any:
    """Convert a result to the machine's form: text as objects, sequences as lists, maps as `Map`."""
    if isinstance(result, dict):
        # The maps of onnxruntime's ops have values of f32.
        return Map([_converted(np.array([*result])), np.array([*result.values()], np.float32)])
    if result is None or isinstance(result, (list, tuple)):
        return None if result is None else [_converted(item) for item in result]
    array = np.asarray(result)
    return array.astype(object) if array.dtype.kind in "US" else array


def has_kernel(op: str, version: int) -> bool:
    """Return whether onnxruntime, if installed, has a CPU kernel for an op in an opset of its domain."""
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as native
    except ImportError:
        return False
    domain, local = split(op)
    return any(
        kernel.op_name == local
        and kernel.domain == domain
        and kernel.provider == "CPUExecutionProvider"
        and kernel.version_range[0] <= version <= kernel.version_range[1]
        for kernel in native.get_all_opkernel_def()
    )
