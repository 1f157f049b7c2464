"""The name and the evidence of each cause, found from the operands."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.engine.diagnosis.explaining import cause_of, explained, legal
from nncdbg.engine.ops import declaration
from nncdbg.engine.ops.causes import NAMES, Birth
from nncdbg.engine.ops.schema import complete
from tests.engine.diagnosis.births import born, tensor

INF = np.inf
ONES = np.ones(4, np.float32)
ROW = tensor([[-INF, -INF], [0, 1], [-INF, -INF]])

CASES = [
    line for line in (Path(__file__).parent / "causes.txt").read_text().splitlines() if line[:1] not in "#"
]
NAMESPACE = {"INF": INF, "LARGE": 3e38, "ONES": ONES, "ROW": ROW, "ONNX": ONNX, "np": np}
"""Names that the table of cases may use, besides those of element types."""


def statement(text: str) -> Birth:
    """The birth of a line such as ``Log(f32([0]))``."""
    op, _, operands = text.partition("(")
    types = {dtype: partial(tensor, dtype=dtype) for dtype in NUMPY}
    birth: Birth = eval(f"born({op!r}, {operands}", {**NAMESPACE, **types, "born": born})
    return birth


@pytest.mark.parametrize(("text", "expected"), list(zip(CASES[::2], CASES[1::2], strict=True)))
def test_cause(text: str, expected: str) -> None:
    cause = cause_of(statement(text))
    name, _, evidence = expected.strip().partition(": ")
    assert cause.name == name, cause
    assert evidence in cause.evidence
    assert cause.hint
    assert cause.name in NAMES


MASK = np.array([[True, True], [False, False]])


@pytest.mark.parametrize("mask", [MASK, tensor([[0, 0], [-INF, -INF]])], ids=["bool", "float"])
def test_a_masked_query_of_attention(mask: Any) -> None:
    """A kernel without a check for fully masked rows gives NaN there; `onnx.reference` gives 0."""
    operands = [np.ones((1, 1, 2, 4), np.float32)] * 3
    output = np.ones((1, 1, 2, 4), np.float32)
    output[0, 0, 1] = np.nan
    cause = cause_of(
        Birth("nan", "Attention", 23, {"is_causal": 0}, ["q", "k", "v", "m"], [*operands, mask], output)
    )
    assert cause.name == "fully masked row"
    assert cause.evidence == "%m[1, :] masks every key, as 1 of 2 rows do"


@pytest.mark.parametrize(
    ("op", "operands", "output", "evidence"),
    [
        ("Log", [tensor([1, 2])], [0, np.nan], "the kernel of Log computed nan; NumPy computes 0.6931"),
        (
            "Mul",
            [tensor([1, 2]), tensor(2)],
            [INF, 4],
            "the kernel of Mul computed inf; NumPy computes 2",
        ),
        ("Relu", [tensor([1, -2])], [1, np.nan], "NumPy computes 0"),
        ("Transpose", [tensor([1, 2])], [1, np.nan], "NumPy computes 2"),
        ("ReduceSum", [tensor([1, 2])], [np.nan], "NumPy computes 3"),
        ("MatMul", [tensor([[1, 2]]), tensor([[3], [4]])], [[INF]], "NumPy computes 11"),
        ("Softmax", [tensor([1, 1])], [np.nan, 0.5], "NumPy computes 0.5"),
    ],
)
def test_the_kernel_is_the_cause_if_numpy_is_finite(
    op: str, operands: list[Any], output: Any, evidence: str
) -> None:
    result = tensor(output)
    kind = "nan" if np.isnan(result).any() else "inf"
    birth = Birth(kind, op, 21, complete(op, 21, {}), ["a", "b"], operands, result)
    cause = cause_of(birth)
    assert cause.name == "kernel"
    assert evidence in cause.evidence


def test_a_finite_result_has_an_unknown_cause() -> None:
    birth = Birth("nan", "Log", 13, {}, ["a"], [tensor([1])], tensor([0]))
    assert cause_of(birth).name == "unknown"
    assert explained(birth) is None


def test_an_unknown_op_has_an_unknown_cause_with_counts() -> None:
    birth = Birth("nan", "my.Op", 1, {}, ["a"], [tensor([1])], tensor([1, np.nan, np.nan]))
    cause = cause_of(birth)
    assert (cause.name, cause.evidence) == ("unknown", "2 of 3 elements of the result of my.Op are NaN")


def test_a_user_kernel_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(xp: Any, x: Any) -> Any:
        raise AssertionError("the kernel was run")

    monkeypatch.setitem(declaration._DECLARED, "my.Log", [declaration.Op("my.Log", kernel)])
    birth = Birth("nan", "my.Log", 1, {}, ["a"], [tensor([1e38])], tensor([np.nan]))
    assert cause_of(birth).name == "unknown"


def test_names_are_quoted_as_in_the_text_and_literals_named_by_position() -> None:
    birth = born("Div", tensor([1]), tensor([0]))
    assert "elements of" not in cause_of(replace(birth, names=["a", "/odd name"])).evidence
    assert '%"/odd name" is 0' in cause_of(replace(birth, names=["a", "/odd name"])).evidence
    assert "operand 2 is 0" in cause_of(replace(birth, names=["a", ""])).evidence


def test_a_numpy_scalar_is_treated_as_a_tensor_of_rank_0() -> None:
    result: Any = np.float32(-INF)
    birth = Birth("inf", "Log", 13, {}, ["a"], [np.float32(0)], result)
    assert cause_of(birth).evidence == "%a is 0"


def masked_scores(**attributes: int) -> Birth:
    """A birth in the fourth result of Attention, the scores after the mask."""
    return Birth("inf", "Attention", 23, attributes, ["q", "k", "v"], [ONES] * 3, tensor([-INF, 0]), 3)


LEGAL = [
    (born("ReduceMax", np.ones((2, 0), np.float32), np.array([1])), [None], True),
    (born("ReduceMin", np.ones((2, 0), np.float32), np.array([1])), [None], True),
    (born("ReduceLogSum", np.ones((2, 0), np.float32), np.array([1])), [None], True),
    (born("ReduceLogSum", tensor([[1, -1]]), np.array([1])), [None], False),
    (born("Log", tensor([0])), [("ReduceSum", [(1, 0), (1,)])], True),
    (born("Log", tensor([0])), [("ReduceSum", [(1, 4), (1,)])], False),
    (born("Log", tensor([0])), [("Softmax", [(1, 0)])], False),
    (born("Log", tensor([0])), [None], False),
    (born("Constant", value=tensor([0, -INF])), [], True),
    (born("Constant", value=tensor(INF)), [], True),
    (born("Constant", value=tensor([1, INF])), [], True),
    (born("Constant", value=tensor([1, np.nan])), [], False),
    (born("ConstantOfShape", np.array([2]), value=tensor([-INF])), [None], True),
    (born("Exp", tensor([100])), [None], False),
    (masked_scores(is_causal=1), [], True),
    (masked_scores(is_causal=0), [], False),
    (replace(masked_scores(is_causal=0), inputs=[*[ONES] * 3, MASK]), [], True),
    (replace(masked_scores(is_causal=1), output=tensor([INF, 0])), [], False),
]


@pytest.mark.parametrize(
    ("birth", "made_by", "wanted"), LEGAL, ids=[f"{i}-{c[0].op}" for i, c in enumerate(LEGAL)]
)
def test_infinities_that_are_legal_by_definition(birth: Birth, made_by: Any, wanted: bool) -> None:
    assert legal(birth, made_by) is wanted


LARGE_CASES = [
    ("Log", "f32", 0.0),
    ("Log", "f16", 0.0),
    ("Log", "bf16", 0.0),
    ("Exp", "f32", 100.0),
    ("ReduceSum", "f32", 3e38),
    ("ReduceLogSumExp", "f16", 65504.0),
    ("ReduceProd", "f32", 2.0),
    ("Softmax", "f32", -INF),
    ("Relu", "f32", 1.0),
]


@pytest.mark.parametrize(("op", "dtype", "value"), LARGE_CASES, ids=str)
def test_sixteen_million_elements_take_well_under_a_second(op: str, dtype: str, value: float) -> None:
    x = np.ones((4096, 4096), NUMPY[dtype])
    x[1:] = value
    shape = () if op.startswith("Reduce") else x.shape
    output = np.full(
        shape, np.nan if op in ("Softmax", "Relu") else -INF if op == "Log" else INF, NUMPY[dtype]
    )
    attributes = complete(op, 17, {}) if op != "ReduceSum" else {"axes": None, "keepdims": 0}
    kind = "nan" if op in ("Softmax", "Relu") else "inf"
    if op == "Softmax":
        output[0] = 0
    birth = Birth(kind, op, 17, attributes, ["a"], [x], output)
    tracemalloc.start()
    begin = time.thread_time()
    cause = cause_of(birth)
    seconds = time.thread_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cause.name != "unknown"
    assert cause.evidence
    assert seconds < 1
    assert peak < 4 * x.size


def test_complex_numbers_have_an_unknown_cause_with_counts() -> None:
    x = np.array([1 + 2j, complex(np.nan, 0)], np.complex64)
    cause = cause_of(Birth("nan", "Mul", 14, {}, ["a", "b"], [x[:1], x[:1]], x))
    assert (cause.name, cause.evidence) == ("unknown", "1 of 2 elements of the result of Mul is NaN")
