"""The statement of a micro program at which a NaN or Inf originates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.composite_op_origin import Within, diagnose
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.machine import Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.engine.ops.causes import Birth
from nncdbg.ir.records import type_of
from nncdbg.textual_repr.printer import listing
from tests.engine.diagnosis.births import births, tensor

INF = np.inf


def loaded_with(call: str, operands: list[Any], opset: int, outputs: int = 1) -> tuple[Code, Loaded]:
    """The code of a program with `call` as its first statement and inputs %a, %b, %c, ..."""
    given = {name: value for name, value in zip("abcdef", operands, strict=False) if value is not None}
    inputs = ", ".join(f"%{name}: {type_of(value)}" for name, value in given.items())
    results = ", ".join(f"%y{number}" for number in range(outputs))
    head = f"#nncdbg 1\nopset {opset}\n\ngraph @main({inputs}) -> ({results}) {{"
    return code_of(f"{head}\n  {results} = {call}\n  return {results}\n}}\n", [*given.values()])


def code_of(text: str, inputs: list[Any]) -> tuple[Code, Loaded]:
    program = nncdbg.parse(text)
    loaded = Loaded(program, listing(program), Linker(NumPy(), Allocation(), generator_of(Running(), 0)))
    return loaded.entry(inputs), loaded


def diagnosed(call: str, *operands: Any, opset: int = 24, outputs: int = 1, kind: str | None = None) -> Any:
    """Return the birth of the statement, its cause, and the statement within the micro program."""
    code, loaded = loaded_with(call, list(operands), opset, outputs)
    node = code.nodes[0]
    names = [name if isinstance(name, str) else "" for name in node.inputs]
    by_name = dict(zip("abcdef", operands, strict=False))
    values = [by_name.get(name) for name in names]
    found = births(node.op, values, node.attributes, opset, outputs, names)
    birth = next(each for each in found if kind in (None, each.kind))
    return birth, *diagnose(birth, code, 0, loaded)


CASES = [
    ("Softmax(%a)", [tensor([-INF, -INF])], "fully masked row", "Sub"),
    ("Softmax(%a)", [tensor([1, INF])], "infinity minus infinity", "Sub"),
    ("LogSoftmax(%a)", [tensor([[-60000, 60000]], "f16")], "overflow", "Cast"),
    (
        "LayerNormalization(%a, %b, epsilon=0.0)",
        [tensor([[1, 1]]), tensor([1, 1])],
        "zero variance",
        "Reciprocal",
    ),
    ("LayerNormalization(%a, %b)", [tensor([[3e38, 3e38]]), tensor([1, 1])], "overflow", "ReduceSum"),
    (
        "InstanceNormalization(%a, %b, %b, epsilon=0.0)",
        [tensor([[[1, 1]]]), tensor([1])],
        "zero variance",
        "Div",
    ),
    (
        "BatchNormalization(%a, %b, %b, %b, %c)",
        [tensor([[1]]), tensor([1]), tensor([-1])],
        "square root of a negative number",
        "Sqrt",
    ),
    ("RMSNormalization(%a, %b, epsilon=0.0)", [tensor([[0, 0]]), tensor([1, 1])], "zero variance", "Div"),
    ("HardSwish(%a)", [tensor([1, -INF])], "zero times infinity", "Mul"),
    ("Celu(%a, alpha=0.0)", [tensor([-1, 0])], "division by zero", "Div"),
    ("MatMul(%a, %b)", [tensor([[300]], "f16"), tensor([[300]], "f16")], "overflow", "Cast"),
    ("MatMul(%a, %b)", [tensor([[1e30]]), tensor([[1e30]])], "overflow", "Mul"),
    ("Gemm(%a, %b)", [tensor([[1e30]]), tensor([[1e30]])], "overflow", "Mul"),
    ("Conv(%a, %b)", [tensor([[[0, 1]]]), tensor([[[INF, 1]]])], "zero times infinity", "Mul"),
    ("SoftmaxCrossEntropyLoss(%a, %b)", [tensor([[-INF, -INF]]), np.array([0])], "fully masked row", "Sub"),
    ("Mean(%a, %b)", [tensor(3e38), tensor(3e38)], "overflow", "Add"),
    ("ReduceMean(%a)", [np.ones((0,), np.float32)], "empty reduction", "Div"),
    ("AveragePool(%a, kernel_shape=[2])", [tensor([[[INF, -INF]]])], "infinity minus infinity", "ReduceSum"),
    ("ReduceLogSum(%a, %b)", [tensor([[1, -1]]), np.array([1])], "log of zero", "Log"),
    ("MeanVarianceNormalization(%a, axes=[0])", [tensor([INF, 1])], "infinity minus infinity", "Sub"),
    (
        "RNN(%a, %b, %c, hidden_size=1)",
        [tensor([[[INF]]]), tensor([[[0]]]), tensor([[[1]]])],
        "zero times infinity",
        "Mul",
    ),
]


@pytest.mark.parametrize(
    ("call", "operands", "name", "op"), CASES, ids=[f"{i}-{c[0][:24]}" for i, c in enumerate(CASES)]
)
def test_the_statement_within_a_micro_program(call: str, operands: list[Any], name: str, op: str) -> None:
    birth, cause, within = diagnosed(call, *operands)
    assert cause.name == name, cause
    assert isinstance(within, Within)
    node = within.code.nodes[within.pc]
    assert node.op == op
    assert within.code.formula is not None
    assert within.birth.op == op


def test_an_infinity_that_causes_the_nan_is_the_origin() -> None:
    birth, cause, within = diagnosed("Gemm(%a, %b, alpha=0.0)", tensor([[1e30]]), tensor([[1e30]]))
    assert birth.kind == "nan"
    assert (within.birth.kind, within.birth.op) == ("inf", "Mul")
    assert cause.name == "overflow"


def test_an_infinity_that_becomes_finite_is_not_the_origin() -> None:
    """Within Sigmoid exp(100) is infinite, but 1 / (1 + inf) is 0: only the other element is bad."""
    x = tensor([-100, 1])
    code, loaded = loaded_with("Sigmoid(%a)", [x], 13)
    bad = Birth("nan", "Sigmoid", 13, {}, ["a"], [x], tensor([0, np.nan]))
    cause, within = diagnose(bad, code, 0, loaded)
    assert within is None
    assert cause.name == "kernel"
    assert "the kernel of Sigmoid computed nan at [1], and its micro program 0.7311" in cause.evidence


def test_the_kernel_is_the_cause_if_the_micro_program_is_finite() -> None:
    birth, *_ = diagnosed("Softmax(%a)", tensor([-INF, -INF]))
    code, loaded = loaded_with("Softmax(%a)", [tensor([1, 1])], 22)
    cause, within = diagnose(replace(birth, inputs=[tensor([1, 1])]), code, 0, loaded)
    assert (cause.name, within) == ("kernel", None)
    assert "its micro program 0.5" in cause.evidence


def test_a_primitive_has_no_micro_program() -> None:
    _, cause, within = diagnosed("Log(%a)", tensor([0]))
    assert (cause.name, within) == ("log of zero", None)


def test_random_ops_are_not_run_again() -> None:
    _, cause, within = diagnosed("Dropout(%a, %b, %c)", tensor([INF] * 40), tensor(0.5), np.array(True))
    assert (cause.name, within) == ("zero times infinity", None)


def test_only_the_first_bad_element_is_diagnosed() -> None:
    x = np.ones(1 << 23, np.float32)
    x[12345] = -INF
    _, cause, within = diagnosed("Gelu(%a)", x)
    assert within.birth.op == "Mul"
    assert within.birth.output.size == 1
    assert "%a at [12345] is -inf" in cause.evidence


def test_a_product_too_large_to_rerun_is_explained_by_its_rule() -> None:
    a = np.full((256, 512), 1e20, np.float32)
    _, cause, within = diagnosed("MatMul(%a, %b)", a, a.T)
    assert within is None
    assert cause.evidence.startswith("the product of %a[0, :] and %b[:, 0] (512 terms) is 5.12e42")


def test_a_diagnosis_does_not_change_the_program() -> None:
    x = tensor([[1, INF]])
    code, loaded = loaded_with("LogSoftmax(%a)", [x], 13)
    before, blocks = [*code.instructions], len(loaded.linker.codes)
    birth = next(births("LogSoftmax", [x], {}, 13, 1, ["a"]))
    diagnose(birth, code, 0, loaded)
    assert code.instructions == before
    assert len(loaded.linker.codes) == blocks
    np.testing.assert_array_equal(x, tensor([[1, INF]]))


def test_a_statement_inside_a_loop_of_a_micro_program() -> None:
    """The state of a recurrent layer grows until a product overflows in the first iterations."""
    operands = [tensor(np.ones((3, 1, 1))), tensor([[[1]]]), tensor([[[3e38]]])]
    _, cause, within = diagnosed('RNN(%a, %b, %c, hidden_size=1, activations=["Relu"])', *operands)
    assert cause.name == "overflow"
    assert (within.birth.kind, within.birth.op) == ("inf", "Mul")


def test_a_final_cast_that_overflows_is_reported_as_an_overflow() -> None:
    weights = [tensor([[[0], [4], [1]]], "f16"), tensor([[[0], [0], [30]]], "f16")]
    call = 'GRU(%a, %b, %c, activations=["Sigmoid", "Relu"], hidden_size=1)'
    _, cause, within = diagnosed(call, tensor(np.ones((6, 1, 1)), "f16"), *weights)
    assert within.birth.op == "Cast"
    assert cause.name == "overflow"
    assert cause.evidence.startswith("the result of GRU: ")
    assert "the largest f16 is 65504" in cause.evidence
