"""Every op over operands of all kinds: each birth has a cause, found in bounded time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.engine.diagnosis.explaining import cause_of, legal
from nncdbg.engine.ops import Op, lookup, names
from nncdbg.engine.ops.causes import NAMES, Birth, rule_of
from nncdbg.engine.ops.causes.evidence import flat, is_float
from nncdbg.engine.ops.declaration import DESCRIBED, declared
from nncdbg.engine.ops.influence import Content
from nncdbg.engine.ops.schema import complete, version_of
from nncdbg.errors import NncdbgError
from tests.conformance.cases import cases
from tests.engine.diagnosis.births import births
from tests.laws import examples

INTEGRAL = frozenset(
    {
        *("And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "ConvInteger", "Equal"),
        *(
            "Greater",
            "GreaterOrEqual",
            "IsInf",
            "IsNaN",
            "Less",
            "LessOrEqual",
            "MatMulInteger",
            "Multinomial",
        ),
        *("NonMaxSuppression", "NonZero", "Not", "OptionalHasElement", "Or", "SequenceLength", "Shape"),
        *("Size", "Xor", "SequenceEmpty", "Bernoulli", "EyeLike", "nncdbg.NoGradientRule"),
        *("nncdbg.KeepsCheckpoint", "nncdbg.EmptySequenceOf"),
    }
)
"""Ops with results that are not floats, or are only 0 and 1."""

COMPUTED_AGAIN = frozenset(
    {"GridSample", "Range", "Resize", "Scatter", "ScatterElements", "ScatterND", "Upsample"}
)
"""Ops without a rule, such as sums of products: their cause is found by computing them again."""

WITHOUT_A_RULE = {
    "com.microsoft.CropAndResize",
    "com.microsoft.DynamicQuantizeLSTM",
    "com.microsoft.Inverse",
}
WITHOUT_A_RULE |= {"StringNormalizer", "StringSplit"}
WITHOUT_A_RULE |= {f"ai.onnx.ml.{name}" for name in ("LabelEncoder", "OneHotEncoder", "SVMClassifier")}
WITHOUT_A_RULE |= {f"ai.onnx.ml.{name}" for name in ("CastMap", "CategoryMapper", "DictVectorizer", "ZipMap")}
WITHOUT_A_RULE |= {f"ai.onnx.ml.TreeEnsemble{kind}" for kind in ("", "Classifier", "Regressor")}
WITHOUT_A_RULE |= {f"nncdbg.{name}" for name in ("Cofactors", "Im2Col", "Positions", "ResizeTransposed")}
WITHOUT_A_RULE |= {f"nncdbg.{name}" for name in ("SGD", "SequenceSum", "SumAt", "SumWindows")}
"""Ops over strings, trees and indices, and of backward graphs, for which a NaN has the cause `unknown`."""


def test_every_op_has_a_rule_or_is_listed() -> None:
    known = INTEGRAL | COMPUTED_AGAIN
    # Other tests declare foreign ops in this process.
    own = {name for name in names() if not all(op.foreign for op in declared(name))}
    # An op that runs its formula has the causes of the formula's statements.
    composites = {name for name in own if all(op.kernel is None and op.formula for op in declared(name))}
    explained = {name for name in own if all(map(is_explained, declared(name)))}
    assert own - known - composites - explained == WITHOUT_A_RULE


def is_explained(op: Op) -> bool:
    """Whether an op has a rule, or its operands can be reduced to one element or already contain the NaN."""
    return op.cause is not None or op.pointwise or op.content in (Content.MOVED, Content.BOUNDED)


@pytest.mark.parametrize("field", ["cause", "zeros", "legal"])
def test_each_declared_rule_exists(field: str) -> None:
    rules = [getattr(op, field) for name in names() for op in declared(name)]
    assert lookup("Attention", 24) is not None  # imports the descriptions of ops that `onnx.reference` runs
    rules += [described.get(field) for described in DESCRIBED.values()]
    assert all(callable(rule_of(rule)) for rule in rules if rule is not None)


@dataclass(frozen=True, slots=True)
class Template:
    """A valid statement: op, attributes, and operands to fill with other numbers."""

    op: str
    opset: int
    attributes: dict[str, Any]
    operands: Sequence[Any]
    names: Sequence[str]
    outputs: int


@cache
def templates() -> tuple[Template, ...]:
    """ONNX's single-node cases, at most two per op."""
    found: dict[str, list[Template]] = {}
    for case in cases("node"):
        try:
            program = nncdbg.load(case.model)
        except NncdbgError:
            continue
        graph = program.graphs[program.entry]
        if len(graph.nodes) != 1:
            continue
        node = graph.nodes[0]
        opset = version_of(node.op, program.opsets)
        made = found.setdefault(node.op, [])
        op = lookup(node.op, opset)
        if len(made) == 2 or node.subgraphs or op is None:
            continue
        if op.kernel is None and op.ufunc is None:
            continue  # It runs by its formula, so births are at the statements inside.
        by_name = {value.name: array for value, array in zip(graph.inputs, case.sets[0][0], strict=True)}
        operands = [None if name is None else by_name.get(str(name)) for name in node.inputs]
        small = sum(value.size for value in flat(operands) if isinstance(value, np.ndarray)) < 3000
        if small and any(is_float(value) for value in flat(operands)):
            attributes = complete(node.op, opset, node.attributes)
            if node.op in ("Resize", "Upsample"):
                continue  # Their scales are floats and could give results of gigabytes.
            given = [str(name or "") for name in node.inputs]
            made.append(Template(node.op, opset, attributes, operands, given, len(node.outputs)))
    return tuple(each for made in found.values() for each in made)


def test_births_in_the_cases_of_onnx_are_legal() -> None:
    for template in templates():
        for birth in all_births(template, template.operands):
            assert legal(birth, [None] * len(birth.inputs)), birth


SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -3.0,
    1e-45,
    -1e-30,
    1e20,
    -1e20,
    3e38,
    -3e38,
    6e4,
    -6e4,
    88.8,
    1e308,
    -1e308,
)
INFINITE = (*SPECIAL, np.inf, -np.inf)

numbers = st.lists(st.sampled_from(INFINITE), min_size=1, max_size=12) | st.lists(
    st.sampled_from(SPECIAL), min_size=1, max_size=12
)


def filled(value: Any, numbers: Sequence[float], dtype: str | None) -> Any:
    """A float operand filled with these numbers repeatedly, in `dtype` unless it is None."""
    if isinstance(value, list):
        return [filled(item, numbers, dtype) for item in value]
    if not is_float(value):
        return value
    target = NUMPY[dtype] if dtype and value.dtype == np.float32 else value.dtype
    with np.errstate(all="ignore"):
        made = np.resize(np.array(numbers), value.shape).astype(target)
    # Some narrow types convert numbers out of range to NaN.
    return np.where(made == made, made, made.dtype.type(1)) if made.size else made


def check(birth: Birth) -> None:
    begin = time.thread_time()
    cause = cause_of(birth)
    assert time.thread_time() - begin < 5
    assert cause.name in NAMES
    assert cause.evidence
    assert cause.hint
    assert cause_of(birth) == cause
    if legal(birth, [None] * len(birth.inputs)):
        return
    # The kernel is nncdbg's own, so it must not be the cause.
    assert cause.name not in ("unknown", "kernel"), (birth, cause)


def all_births(template: Template, operands: Sequence[Any]) -> list[Birth]:
    """The births of a statement; none if it refuses these operands."""
    try:
        return list(
            births(
                template.op, operands, template.attributes, template.opset, template.outputs, template.names
            )
        )
    except (NncdbgError, ValueError, TypeError, RuntimeError, LookupError, ArithmeticError):
        return []  # `onnx.reference` raises various errors for unexpected numbers and types.


@pytest.mark.parametrize("dtype", [None, "f16", "bf16", "f64"])
def test_each_op_over_each_special_number(dtype: str | None) -> None:
    """Operands filled with one number, and with pairs of numbers in turn."""
    seen: set[str] = set()
    rows = [(number,) for number in INFINITE] + [
        (a, b) for a, b in zip(INFINITE, INFINITE[5:] + INFINITE[:5], strict=True)
    ]
    for template in templates()[:: 1 if dtype is None else 4]:
        for row in rows[:: 1 if dtype is None else 3]:
            operands = [filled(value, row, dtype) for value in template.operands]
            for birth in all_births(template, operands):
                check(birth)
                seen.add(birth.op)
    assert len(seen) > (60 if dtype is None else 20)


@examples(400)
@given(data=st.data(), row=numbers, dtype=st.sampled_from([None, None, "f16", "bf16", "f64"]))
def test_any_op_over_any_operands(data: st.DataObject, row: list[float], dtype: str | None) -> None:
    template = data.draw(st.sampled_from(templates()))
    which = data.draw(st.integers(0, 2 ** len(template.operands) - 1)) or -1
    operands = [
        filled(value, row, dtype) if which >> number & 1 else filled(value, [1.0, 0.5, 2.0], dtype)
        for number, value in enumerate(template.operands)
    ]
    for birth in all_births(template, operands):
        check(birth)


REDUCTIONS = sorted(name for name in names() if name.startswith("Reduce"))

shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@examples(300)
@given(
    op=st.sampled_from(
        [
            name
            for name in names()
            if declared(name)[-1].pointwise
            and declared(name)[-1].cause
            and name not in ("Cast", "CastLike", "BitCast", "Mod")
        ]
    ),
    pair=arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    row=numbers,
    others=numbers,
    dtype=st.sampled_from(["f32", "f16", "bf16", "f64"]),
)
@example(op="Pow", pair=arrays.BroadcastableShapes(((2,), (1,)), (2,)), row=[0.0], others=[-1.0], dtype="f16")
def test_pointwise_ops_with_broadcasting(op: str, pair: Any, row: Any, others: Any, dtype: str) -> None:
    operands = [
        filled(np.ones(shape, NUMPY[dtype]), values, None)
        for shape, values in zip(pair.input_shapes, (row, others), strict=True)
    ]
    binary = op in ("Add", "Sub", "Mul", "Div", "Pow", "Sum", "Mean")
    template = Template(op, 24, {}, operands if binary else operands[:1], ["a", "b"], 1)
    for birth in all_births(template, template.operands):
        check(birth)


@examples(200)
@given(
    op=st.sampled_from(REDUCTIONS),
    shape=shapes,
    row=numbers,
    data=st.data(),
    dtype=st.sampled_from(["f32", "f16", "bf16", "f64"]),
)
def test_reductions_over_any_axes(op: str, shape: Any, row: Any, data: st.DataObject, dtype: str) -> None:
    axes = data.draw(st.sets(st.sampled_from(range(-len(shape), 0)) if shape else st.nothing()))
    attributes = {
        "keepdims": data.draw(st.integers(0, 1)),
        "noop_with_empty_axes": data.draw(st.integers(0, 1)),
    }
    x = filled(np.ones(shape, NUMPY[dtype]), row, None)
    template = Template(op, 18, attributes, [x, np.array(sorted(axes), np.int64)], ["x", "axes"], 1)
    for birth in all_births(template, template.operands):
        check(birth)


@examples(200)
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 3),
    batch=arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=2),
    row=numbers,
    others=numbers,
    dtype=st.sampled_from(["f32", "f16", "f64"]),
)
def test_products_of_matrices(sizes: Any, batch: Any, row: Any, others: Any, dtype: str) -> None:
    m, k, n = sizes
    left, right = batch.input_shapes
    a = filled(np.ones((*left, m, k), NUMPY[dtype]), row, None)
    b = filled(np.ones((*right, k, n), NUMPY[dtype]), others, None)
    for birth in all_births(Template("MatMul", 13, {}, [a, b], ["a", "b"], 1), [a, b]):
        check(birth)
    flat_a, flat_b = a.reshape(-1, m, k)[0], b.reshape(-1, k, n)[0]
    gemm = {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}
    for birth in all_births(
        Template("Gemm", 13, gemm, [], ["a", "b", "c"], 1), [flat_a.T, flat_b.T, flat_a[:, :1]]
    ):
        check(birth)
