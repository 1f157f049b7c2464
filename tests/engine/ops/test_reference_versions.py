"""Every version of every op that `onnx.reference` has: nncdbg against onnxruntime or the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.defs
import pytest

import nncdbg
from nncdbg.dtypes import ONNX, name_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import joined, split
from tests.engine.ops.one_node import by_formula
from tests.engine.ops.reference_samples import ML, SAMPLES, Sample, floats, integers, sample, texts

onnxruntime = pytest.importorskip("onnxruntime")

WITHOUT_SAMPLE = {
    f"{ML}TreeEnsembleClassifier 5": "deprecated: ONNX refuses it in this version",
    f"{ML}TreeEnsembleRegressor 5": "deprecated: ONNX refuses it in this version",
}


def model_of(row: Sample) -> Any:
    """The ONNX model with the one statement."""
    domain, local = split(row.op)
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(row.inputs)]
    while not names[-1]:
        names.pop()
    results = [f"o{index}" for index in range(row.outputs)]
    node = onnx.helper.make_node(local, names, results, domain=domain, **row.attributes)
    values = [
        onnx.helper.make_tensor_value_info(name, ONNX[name_of(array.dtype)], array.shape)
        for name, array in fed(row).items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    graph = onnx.helper.make_graph([node], "node", values, outputs)
    imports = [onnx.helper.make_opsetid("", 21 if domain else row.version)]
    if domain:
        imports.append(onnx.helper.make_opsetid(domain, row.version))
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def fed(row: Sample) -> dict[str, Any]:
    return {f"i{index}": array for index, array in enumerate(row.inputs) if array is not None}


def by_runtime(row: Sample) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model_of(row).SerializeToString(), options)
    return list(map(np.asarray, session.run(None, fed(row))))


def by_nncdbg(row: Sample) -> list[Any]:
    program = nncdbg.load(model_of(row))
    assert nncdbg.parse(str(program)).graphs.keys() == program.graphs.keys()
    debugger = nncdbg.Debugger(program, fed(row), allocator="plain", statistics=False)
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    assert debugger.outputs is not None
    return list(map(np.asarray, debugger.outputs.values()))


@pytest.mark.parametrize("row", SAMPLES, ids=str)
def test_version_agrees_with_onnxruntime_or_the_specification(row: Sample) -> None:
    expected = row.expected or by_runtime(row.twin or row)
    for got, wanted in zip(by_nncdbg(row), map(np.asarray, expected), strict=True):
        assert got.shape == wanted.shape
        if row.expected is None:
            assert name_of(got.dtype) == name_of(wanted.dtype)
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("row", [row for row in SAMPLES if row.op == f"{ML}SVMClassifier"], ids=str)
def test_formula_agrees_with_the_kernel(row: Sample) -> None:
    formula = by_formula(row.op, row.inputs, {key: _tupled(value) for key, value in row.attributes.items()})
    for got, wanted in zip(formula, by_nncdbg(row), strict=True):
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, wanted)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_version_that_runs_through_the_reference_has_a_sample() -> None:
    sampled = {(row.op, row.version) for row in SAMPLES}
    missing = []
    for found in onnx.defs.get_all_schemas_with_history():
        name = joined(found.domain, found.name)
        op = lookup(name, found.since_version)
        listed = {name, f"{name} {found.since_version}"} & WITHOUT_SAMPLE.keys()
        if op is not None and op.reference and (name, found.since_version) not in sampled and not listed:
            missing.append((name, found.since_version))
    assert not missing


TWO: dict[str, Any] = {"classlabels_ints": [0, 1], "outputs": 2}
REFUSED = [
    (
        sample(
            f"{ML}LinearClassifier", 1, floats([1, 2]), coefficients=[1.0] * 5, intercepts=[0.0] * 3, **TWO
        ),
        "5 coefficients for 3 classes and 2 features",
    ),
    (
        sample(
            f"{ML}LinearClassifier",
            1,
            floats([1, 2]),
            coefficients=[1.0, 2.0],
            intercepts=[0.0],
            post_transform="PROBIT",
            **TWO,
        ),
        "PROBIT is not defined",
    ),
    (
        sample(f"{ML}LabelEncoder", 2, texts("a"), keys_strings=["a"], values_int64s=[1, 2]),
        "1 keys, but 2 values",
    ),
    (sample(f"{ML}OneHotEncoder", 1, integers(5), cats_int64s=[0, 1], zeros=0), "not among the 2 categories"),
    (sample("STFT", 17, floats(1, 2), np.array(1)), r"shape \[batch, length, 1\]"),
]


@pytest.mark.parametrize(("row", "message"), REFUSED, ids=lambda item: str(item)[:40])
def test_statement_without_a_defined_result_is_refused(row: Sample, message: str) -> None:
    with pytest.raises((nncdbg.NncdbgError, AssertionError), match=message):
        by_nncdbg(row)


def test_a_tree_with_a_cycle_ends_with_an_error() -> None:
    row = next(row for row in SAMPLES if row.op == f"{ML}TreeEnsemble")
    looped = replace(row, attributes={**row.attributes, "nodes_falsenodeids": [0, 2, 4]})
    with pytest.raises(AssertionError, match="form a cycle"):
        by_nncdbg(looped)
