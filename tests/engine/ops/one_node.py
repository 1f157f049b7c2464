"""One op evaluated in four ways: kernel, formula run by the machine, type inference, ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

import nncdbg
from nncdbg.dtypes import NUMPY, ONNX, name_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.engine.ops.schema import complete
from tests.engine.ops.onnx_cases import assert_agrees, execute, execute_into, type_of
from tests.presence import present

OPSET = 21

Arrays = Sequence[Any]


def declared(name: str, version: int = OPSET) -> Op:
    """The declared op of an opset."""
    found = lookup(name, version)
    assert found is not None
    return found


def by_kernel(
    name: str, inputs: Arrays, attributes: dict[str, Any], *, count: int = 1, version: int = OPSET
) -> tuple[Any, ...]:
    """Run the kernel and return its results."""
    results = execute(declared(name, version), version, attributes, inputs, count)
    return tuple(map(np.asarray, results))


def by_formula(
    name: str, inputs: Arrays, attributes: dict[str, Any], *, version: int = OPSET
) -> tuple[Any, ...]:
    """Run the formula statement by statement on the machine and return its results."""
    op = declared(name, version)
    assert op.formula is not None
    types = [type_of(array) for array in inputs]
    program = nncdbg.parse(op.formula(complete(name, version, attributes), types))
    graph = program.graphs[program.entry]
    given = (array for array in inputs if array is not None)
    bound = {value.name: array for value, array in zip(graph.inputs, given, strict=True)}
    debugger = nncdbg.Debugger(program, inputs=bound, allocator="plain", statistics=False)
    with np.errstate(all="ignore"):
        debugger.run()
    return tuple(np.asarray(present(debugger.outputs)[value.name]) for value in graph.outputs)


def by_runtime(
    name: str, inputs: Arrays, attributes: dict[str, Any], *, count: int = 1, version: int = OPSET
) -> tuple[Any, ...]:
    """Run ONNX Runtime on one thread without optimizations and return its results."""
    import onnxruntime

    names = [f"i{index}" if array is not None else "" for index, array in enumerate(inputs)]
    results = [f"o{index}" for index in range(count)]
    given = {key: array for key, array in zip(names, inputs, strict=True) if key}
    values = [
        onnx.helper.make_tensor_value_info(key, ONNX[name_of(array.dtype)], array.shape)
        for key, array in given.items()
    ]
    node = onnx.helper.make_node(name, names, results, **attributes)
    graph = onnx.helper.make_graph([node], name, values, [onnx.ValueInfoProto(name=key) for key in results])
    imports = [onnx.helper.make_opsetid("", version)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return tuple(onnxruntime.InferenceSession(model.SerializeToString(), options).run(results, given))


def assert_same(actual: Arrays, expected: Arrays, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Check for equal dtypes and shapes, NaN and Inf in the same elements, values within the tolerance."""
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        wide = np.float64 if is_narrow(got.dtype) or got.dtype.kind == "f" else got.dtype
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=rtol, atol=atol)


def check_kernel(
    name: str, inputs: Arrays, attributes: dict[str, Any], *, count: int = 1, version: int = OPSET
) -> tuple[Any, ...]:
    """Return the kernel's outputs after checking type inference, the `out` buffer and unchanged inputs."""
    op = declared(name, version)
    before = [None if array is None else array.tobytes() for array in inputs]
    results = by_kernel(name, inputs, attributes, count=count, version=version)
    assert len(results) == count
    assert op.infer is not None
    types = op.infer(complete(name, version, attributes), [type_of(array) for array in inputs])
    for inferred, result in zip(types, results, strict=False):
        assert_agrees(inferred, result)
    # The machine passes a buffer only to statements with one output.
    if op.accepts_out and count == 1 and types[0] is not None and types[0].concrete:
        assert_same([execute_into(op, version, attributes, inputs, types[0])], results[:1])
    assert before == [None if array is None else array.tobytes() for array in inputs]
    return results


def check_all(
    name: str,
    inputs: Arrays,
    attributes: dict[str, Any],
    *,
    count: int = 1,
    version: int = OPSET,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Check that the kernel, the formula if any, and ONNX Runtime agree."""
    results = check_kernel(name, inputs, attributes, count=count, version=version)
    expected = by_runtime(name, inputs, attributes, count=count, version=version)
    assert_same(results, expected, rtol, atol)
    if declared(name, version).formula is not None:
        micro = by_formula(name, inputs, attributes, version=version)
        assert_same(micro[:count], results[: len(micro)], rtol, atol)


def normal(seed: int, *shape: int, dtype: str = "f32") -> Any:
    """Normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])
