"""Harness for ONNX's own single-node cases: check the kernel and the type inference of an op.

A test module calls `cases_of(names)` for the cases and `check(case)` for each; `uncovered(names)`
returns the ops without a case, which need tests of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from nncdbg.dtypes import FLOATS, NUMPY, name_of
from nncdbg.engine.execution.random_streams import seeded_stream
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.ir.records import Inline, TensorType
from tests.presence import present

RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform"})
"""Ops with expected outputs from another random generator."""


@dataclass(frozen=True)
class NodeCase:
    """One node case: the op, its opset version, raw attributes, inputs (None: not given), outputs."""

    name: str
    op: str
    version: int
    attributes: dict[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    output_count: int
    rtol: float
    atol: float

    def __str__(self) -> str:
        return self.name


def _attribute(proto: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, onnx.TensorProto):
        return Inline(onnx.numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value


def _array(value: Any) -> Any:
    """A value as the array that a store returns, with strings as objects; None if it is not a tensor."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _node_case(case: Any) -> NodeCase | None:
    model = case.model
    if len(model.graph.node) != 1:
        return None
    node = model.graph.node[0]
    given, expected = case.data_sets[0]
    arrays = dict(zip((value.name for value in model.graph.input), map(_array, given), strict=False))
    results = list(map(_array, expected))
    if any(array is None for array in (*arrays.values(), *results)):
        return None
    # An output without a name is computed but not compared.
    outputs = tuple(results.pop(0) if name else None for name in node.output)
    version = next(entry.version for entry in model.opset_import if entry.domain == node.domain)
    return NodeCase(
        name=case.name,
        op=node.op_type,
        version=version,
        attributes={proto.name: _attribute(proto) for proto in node.attribute},
        inputs=tuple(arrays[name] if name else None for name in node.input),
        outputs=outputs,
        output_count=len(node.output),
        rtol=case.rtol,
        atol=case.atol,
    )


def collected() -> list[Any]:
    """Collect the cases of ONNX's backend test, which draw random numbers."""
    from onnx.backend.test.case.node import collect_testcases

    state = np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(collect_testcases(None))
    finally:
        np.random.set_state(state)


@lru_cache(maxsize=1)
def all_cases() -> tuple[NodeCase, ...]:
    """Every single-node case over tensors in ONNX's own domain; collected once per process."""
    own = (case for case in collected() if case.model.graph.node[0].domain in ("", "ai.onnx"))
    return tuple(found for found in map(_node_case, own) if found is not None)


def cases_of(names: Iterable[str], *, skip: Iterable[str] = ()) -> list[NodeCase]:
    """The cases of these ops, without the case names in `skip`."""
    wanted, left_out = set(names), set(skip)
    return [case for case in all_cases() if case.op in wanted and case.name not in left_out]


def uncovered(names: Iterable[str], *, tested: Iterable[str] = ()) -> list[str]:
    """Ops with neither a case nor a separate test (`tested`)."""
    covered = {case.op for case in all_cases() if case.op not in RANDOM} | set(tested)
    return sorted(set(names) - covered)


def type_of(array: Any) -> TensorType | None:
    """The concrete type of an array."""
    return None if array is None else TensorType(name_of(array.dtype), array.shape)


def assert_agrees(inferred: TensorType | None, array: Any) -> None:
    """Check the inferred type of an output against the array: dtype, rank and every known size."""
    assert inferred is not None
    assert inferred.dtype == name_of(array.dtype)
    if inferred.shape is None:
        return
    assert len(inferred.shape) == array.ndim, f"{inferred} for an array of shape {array.shape}"
    for dim, size in zip(inferred.shape, array.shape, strict=True):
        assert dim is None or dim == size, f"{inferred} for an array of shape {array.shape}"


def assert_close(actual: Any, expected: Any, rtol: float, atol: float) -> None:
    """Check for equal dtypes and shapes, NaN in the same elements, values within the case's tolerance."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert name_of(actual.dtype) == name_of(expected.dtype)
    if name_of(expected.dtype) in FLOATS | {"c64", "c128"}:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        rtol = max(rtol, _resolution(expected.dtype))
        np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(actual, expected)


def _resolution(dtype: Any) -> float:
    """The machine epsilon of a narrow float; 0 for f32 and wider, where the case's tolerance applies."""
    if dtype.kind == "c" or dtype.itemsize >= 4:
        return 0.0
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def execute(
    op: Op, version: int, attributes: dict[str, Any], inputs: Sequence[Any], output_count: int = 1
) -> tuple[Any, ...]:
    """Run the kernel as the machine does, and return its outputs as a tuple."""
    arguments = complete(op.name, version, attributes)
    if op.opset_version:
        arguments["opset"] = version
    if op.outputs_count:
        arguments["outputs_count"] = output_count
    if op.random:
        seed = arguments.get("seed")
        arguments["rng"] = seeded_stream(0, 7 if seed is None else seed, ())
    with np.errstate(all="ignore"):
        result = op.bind(np, arguments)(*inputs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def sizes_of(concrete: TensorType) -> tuple[int, ...]:
    """The shape of a concrete type."""
    assert concrete.shape is not None
    return tuple(size for size in concrete.shape if isinstance(size, int))


def execute_into(
    op: Op, version: int, attributes: dict[str, Any], inputs: Sequence[Any], inferred: TensorType
) -> Any:
    """Run the kernel into a buffer of the inferred type that is full of NaN or 0x7F bytes."""
    assert inferred.concrete, f"{op.name} accepts out, so its type must follow from its inputs' types"
    dtype, sizes = NUMPY[inferred.dtype], sizes_of(inferred)
    size = int(np.prod(sizes)) * dtype.itemsize
    out = np.full(size, 0x7F if dtype.kind in "biu" else 0xFF, np.uint8).view(dtype).reshape(sizes)
    with np.errstate(all="ignore"):
        returned = op.bind(np, complete(op.name, version, attributes), out=True)(*inputs, out)
    assert returned is out, f"{op.name} must return the buffer it was given"
    return out


def check(case: NodeCase) -> None:
    """Check the kernel, the kernel with a buffer, and type inference on one case, and unchanged inputs."""
    op = lookup(case.op, case.version)
    assert op is not None, f"{case.op} is not declared for opset {case.version}"
    before = [None if array is None else array.copy() for array in case.inputs]
    results = execute(op, case.version, case.attributes, case.inputs, case.output_count)
    assert op.infer is not None, f"{case.op} has no inference rule"
    types = op.infer(
        complete(case.op, case.version, case.attributes), [type_of(array) for array in case.inputs]
    )
    if op.ufunc is None:
        assert all(isinstance(result, np.ndarray) for result in results), f"{case.op} gave a scalar"
    for actual, expected in zip(results, case.outputs, strict=False):
        if expected is not None:
            assert_close(actual, expected, case.rtol, case.atol)
    for inferred, actual in zip(types, results, strict=False):
        assert_agrees(inferred, np.asarray(actual))
    if op.accepts_out and types[0] is not None and types[0].concrete and types[0].dtype != "str":
        into = execute_into(op, case.version, case.attributes, case.inputs, types[0])
        assert_close(into, case.outputs[0], case.rtol, case.atol)
    for array, copy in zip(case.inputs, before, strict=True):
        if array is not None and array.dtype.kind != "O":
            assert array.tobytes() == present(copy).tobytes(), f"{case.op} wrote to its input"
