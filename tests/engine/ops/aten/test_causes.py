"""Rules for NaN and Inf of PyTorch's operators, on programs of one statement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="aten operators need PyTorch")

import nncdbg  # noqa: E402
from nncdbg.engine.ops import lookup  # noqa: E402
from nncdbg.nan_watch.records import Report  # noqa: E402
from nncdbg.text.torch_names import base_name  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def watched(body: str, *operands: Any) -> Report:
    """Watch a program of the statements `body`; the operands are %a, %b and so on: bool, or else f32."""
    arrays = [np.asarray(each) for each in operands]
    arrays = [each if each.dtype == bool else each.astype(np.float32) for each in arrays]
    inputs = dict(zip("abc", arrays, strict=False))
    types = [
        f"%{name}: {'bool' if each.dtype == bool else 'f32'}[{','.join(map(str, each.shape))}]"
        for name, each in inputs.items()
    ]
    text = f"#nncdbg 1\n\ngraph @main({', '.join(types)}) -> (%y) {{\n{body}\n  return %y\n}}\n"
    return nncdbg.watch(nncdbg.parse(text), inputs, backend="torch")


def first_cause(report: Report) -> tuple[str, str]:
    finding = next(finding for finding in report.findings if finding.first)
    return finding.cause, finding.kind


@pytest.mark.parametrize(
    ("call", "operands", "cause"),
    [
        ("aten.log.default(%a)", [[1, 0]], "log of zero"),
        ("aten.log.default(%a)", [[1, -2]], "log of a negative number"),
        ("aten.log1p.default(%a)", [[-1, 1]], "log of zero"),
        ("aten.log1p.default(%a)", [[-2, 1]], "log of a negative number"),
        ("aten.logit.default(%a)", [[0.5, 1]], "log of zero"),
        ("aten.logit.default(%a)", [[0.5, 1.5]], "outside of the domain"),
        ("aten.sqrt.default(%a)", [[-1, 4]], "square root of a negative number"),
        ("aten.rsqrt.default(%a)", [[0, 4]], "division by zero"),
        ("aten.rsqrt.default(%a)", [[-1, 4]], "square root of a negative number"),
        ("aten.reciprocal.default(%a)", [[0, 4]], "division by zero"),
        ("aten.exp.default(%a)", [[100, 4]], "overflow of the exponential"),
        ("aten.div.Tensor(%a, %b)", [[1, 2], [0, 1]], "division by zero"),
        ("aten.div.Tensor(%a, %b)", [[0, 2], [0, 1]], "zero divided by zero"),
        ("aten.div.Tensor(%a, %b)", [[1, 2], [1e-40, 1]], "division by zero"),
        ("aten.div.Scalar(%a, other=0.0)", [[0, 2]], "zero divided by zero"),
        ("aten.mul.Tensor(%a, %b)", [[3e38, 2], [2, 1]], "overflow"),
        ("aten.add.Tensor(%a, %b, alpha=2)", [[3e38, 2], [3e38, 1]], "overflow"),
        ("aten.pow.Tensor_Scalar(%a, exponent=0.5)", [[-1, 2]], "power of a negative number"),
        ("aten.pow.Tensor_Scalar(%a, exponent=-1)", [[0, 2]], "power of zero"),
        ("aten.acos.default(%a)", [[1.5, 0]], "outside of the domain"),
        ("aten.atanh.default(%a)", [[1, 0]], "outside of the domain"),
        ("aten.acosh.default(%a)", [[0.5, 2]], "outside of the domain"),
        ("aten.mm.default(%a, %b)", [[[3e38, 3e38]], [[2], [2]]], "overflow"),
        ("aten.addmm.default(%a, %b, %c)", [[0], [[3e38, 3e38]], [[2], [2]]], "overflow"),
        ("aten.sum.default(%a)", [[3e38, 3e38]], "overflow"),
        ("aten.mean.default(%a)", [np.zeros(0)], "empty reduction"),
        ("aten.var.correction(%a, dim=[0])", [[1]], "variance of one element"),
        ("aten.std.correction(%a, dim=[0])", [[[1, 2]]], "variance of one element"),
        ("aten.cumprod.default(%a, dim=0)", [np.full(50, 10)], "overflow of a product"),
        ('aten._to_copy.default(%a, dtype="f16")', [[1e5, 1]], "cast out of range"),
        (
            "aten.linalg_solve_triangular.default(%a, %b, upper=true)",
            [[[1, 1], [0, 0]], [[1], [1]]],
            "division by zero",
        ),
    ],
)
def test_cause_of_one_statement(call: str, operands: list[Any], cause: str) -> None:
    report = watched(f"  %y = {call}", *operands)
    assert report.status == "tripped"
    assert first_cause(report)[0] == cause


NORM = "%y, %m, %r = aten.native_layer_norm.default(%a, _, _, normalized_shape=[2], eps=0.0)"


@pytest.mark.parametrize(
    ("statement", "operands", "evidence"),
    [
        ("%y = aten.div.Tensor(%a, other=0)", [[1, 2]], "1 / 0 at [0]; other=0"),
        ("%y = aten.div.Scalar(%a, other=0.0)", [[1, 2]], "1 / 0 at [0]; other=0.0"),
        ("%y = aten.fmod.Scalar(%a, other=0)", [[1, 2]], "other=0"),
        ("%y = aten.mul.Tensor(%a, other=inf)", [[0, 2]], "%a * other is 0 * inf at [0]"),
        ("%y = aten.pow.Scalar(%a, self=0)", [[-1, 2]], "0 ** (-1) at [0]; self=0"),
        ("%y = aten.rsub.Scalar(%a, other=inf)", [["inf", 2]], "other - %a at [0] is inf - inf"),
        ("%y = aten.xlogy.Scalar_Other(%a, other=-1.0)", [[1, 2]], "other=-1.0 is negative"),
        (
            "%y = aten.xlogy.Scalar_Self(%a, self=2)",
            [[-1, 2]],
            "1 of 2 elements of %a is negative, the first",
        ),
        ("%y = aten.logit.default(%a, eps=0.0)", [[0, 0.5]], "eps=0.0 clips to [0, 1]"),
        (NORM, [[[1, 1]]], "the variance is 0, and eps=0.0"),
        (
            "%y, %z = aten._foreach_div.Scalar(%a, %b, n_self=2, scalar=0)",
            [[1], [2]],
            "1 / 0 at [0]; scalar=0",
        ),
    ],
)
def test_number_among_the_arguments_has_the_name_of_its_argument(
    statement: str, operands: list[Any], evidence: str
) -> None:
    report = watched(f"  {statement}", *operands)
    assert evidence in next(finding.evidence for finding in report.findings if finding.kind in ("nan", "inf"))


def test_fully_masked_row_of_softmax_is_named_and_its_mask_is_not() -> None:
    body = "  %m = aten.masked_fill.Scalar(%a, %b, value=-inf)\n"
    body += "  %y = aten._softmax.default(%m, dim=-1, half_to_float=false)"
    report = watched(body, [[1, 2], [3, 4]], [[True, True], [False, True]])
    assert first_cause(report) == ("fully masked row", "nan")


@pytest.mark.parametrize(
    ("body", "operands"),
    [
        ("  %x = aten.log.default(%a)\n  %y = aten.where.self(%b, %x, %a)", [[0, 1], [False, True]]),
        ("  %x = aten.reciprocal.default(%a)\n  %y = aten.reciprocal.default(%x)", [[0, 1]]),
        ("  %x = aten.log.default(%a)\n  %y = aten.sigmoid.default(%x)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.nan_to_num.default(%x)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.nansum.default(%x)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.ne.Tensor(%x, %x)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.isnan.default(%x)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.slice.Tensor(%x, dim=0, start=1)", [[0, 1]]),
        ("  %x = aten.empty_like.default(%a)\n  %y = aten.copy_.default(%x, %a)", [[0, 1]]),
        ("  %x = aten.empty_like.default(%a)\n  %y = aten.zeros_like.default(%x)", [[0, 1]]),
    ],
)
def test_bad_value_without_effect_raises_no_alarm(body: str, operands: list[Any]) -> None:
    assert watched(body, *operands).ok


@pytest.mark.parametrize(
    ("body", "operands"),
    [
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.slice.Tensor(%x, dim=0, start=0, end=1)", [[0, 1]]),
        ("  %x = aten.div.Tensor(%a, %a)\n  %y = aten.gt.Scalar(%x, other=0)", [[0, 1]]),
        ("  %x = aten.exp.default(%a)\n  %y = aten.mul.Scalar(%x, other=1e-3)", [[88.8, 1]]),
        ("  %x = aten.empty_like.default(%a)\n  %y = aten.add.Tensor(%x, %a)", [[0, 1]]),
    ],
)
def test_bad_value_with_effect_is_reported_at_its_origin(body: str, operands: list[Any]) -> None:
    report = watched(body, *operands)
    assert report.status == "tripped"
    finding = next(finding for finding in report.findings if finding.first)
    assert finding.site.value == "x"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten.add_.Tensor", "add"),
        ("aten._foreach_addcdiv_.ScalarList", "addcdiv"),
        ("aten._fused_adamw_.default", "_fused_adamw"),
        ("torch.view", "view"),
        ("torch.c10d.allreduce_.default", "allreduce"),
    ],
)
def test_base_name_has_no_overload(name: str, base: str) -> None:
    assert base_name(name) == base


def test_unknown_operator_has_no_declaration() -> None:
    assert lookup("aten.no_such_operator.default", 1) is None
    found = lookup("aten.add.Tensor", 1)
    assert found is not None
    assert found.kernel is None
