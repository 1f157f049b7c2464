"""A NaN in an input or parameter that a product gives weight 0: 0 * NaN is NaN, so the mask does not work."""

import numpy as np
import pytest

import nncdbg

NAN = np.nan


def evidence(body: str, first: list[list[float]], second: list[list[float]]) -> tuple[str, str]:
    """Return the evidence and hint of the first finding of a product of %a and %b."""
    a, b = np.array(first, np.float32), np.array(second, np.float32)
    types = (f"%{name}: f32[{x.shape[0]},{x.shape[1]}]" for name, x in (("a", a), ("b", b)))
    text = f"opset 18\ngraph @main({', '.join(types)}) -> (%y) {{\n  %y = {body}\n  return %y\n}}\n"
    finding = next(each for each in nncdbg.watch(nncdbg.parse(text), {"a": a, "b": b}).findings if each.first)
    return finding.evidence, finding.hint


@pytest.mark.parametrize(
    ("body", "first", "second", "weight"),
    [
        ("MatMul(%a, %b)", [[1, 0], [2, 0]], [[1, 2], [NAN, 3]], "%a"),
        ("MatMul(%a, %b)", [[1, NAN], [2, 1]], [[1, 2], [0, 0]], "%b"),
        ("Gemm(%a, %b, transA=1)", [[1, 2], [0, 0]], [[1, 2], [NAN, 3]], "%a"),
        ("Gemm(%a, %b, transB=1)", [[1, NAN], [2, 1]], [[1, 0], [2, 0]], "%b"),
        ("Mul(%a, %b)", [[1, NAN], [2, 1]], [[1, 0], [2, 0]], "%b"),
        ("MatMul(%a, %b)", [[1, 0], [2, 1]], [[1, 2], [NAN, 3]], ""),
        ("Mul(%a, %b)", [[1, NAN], [NAN, 1]], [[1, 0], [2, 0]], ""),
    ],
)
def test_nan_under_weight_0_is_described(
    body: str, first: list[list[float]], second: list[list[float]], weight: str
) -> None:
    words, hint = evidence(body, first, second)
    assert (f"multiplies each of these elements by 0 in {weight}, and 0 * NaN is NaN" in words) == bool(
        weight
    )
    value = {"%a": "%b", "%b": "%a"}.get(weight)
    assert (
        value is None
        or hint == f"set the masked elements of {value} to 0 first, as in Where(IsNaN({value}), 0, {value})"
    )
