"""onnxruntime's kernels, one node at a time: the debugger steps the kernels that are deployed.

A statement becomes a session of one node at its first execution, because the types of its operands
are only known then; statements with the same op, attributes and types share a session.  Operands are
bound in place and results are written into the allocator's buffers, so nothing is copied, and NaN
fill, guards and inspection see the kernel's own writes.  The machine runs control flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.dtypes import FROM_ONNX, NUMPY, ONNX, name_of
from nncdbg.engine.backends import Call, HostBackend, Kernels, refusal, way_past
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.backends.one_node import (
    TEXT,
    Kind,
    Kinds,
    fact,
    kind_of,
    model_of,
    output_names,
    refuse_packed,
    signature,
    takes_tensors_only,
    type_of,
    why_not,
)
from nncdbg.engine.ops.declaration import measure_of, result_of
from nncdbg.engine.ops.schema import split
from nncdbg.errors import NncdbgError, RunError, UnsupportedOp, UsageError
from nncdbg.ir.records import Map


class OnnxRuntime(HostBackend):
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
        if self._binding is None or (self._copies and _size_of(inputs) <= _SMALL):
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
        self._copies = all(_is_of_numpy(kind) for kind in kinds) and all(
            not type_.startswith(_FOREIGN) for type_ in results
        )
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


def _is_of_numpy(kind: Kind) -> bool:
    return kind is None or (isinstance(kind, np.dtype) and kind.isbuiltin == 1)


def _size_of(inputs: Sequence[Any]) -> int:
    return sum(value.nbytes for value in inputs if value is not None)


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
