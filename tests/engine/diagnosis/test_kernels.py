"""A NaN from a bug in a backend's kernel has the cause `kernel`; a NaN by definition does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from tests.engine.planted import Planted

TEXT = """#nncdbg 1
opset 18
graph @main(%x: f32[4]) -> (%y) {
  %r = Relu(%x)
  %h = OP
  %y = Add(%h, 1.0)
  return %y
}
"""


class Foreign(Planted):
    """NumPy's kernels under another name, one with a planted bug."""

    name = "planted"


def with_nan(array: Any) -> Any:
    changed = np.array(array)
    changed[2] = np.nan
    return changed


def first(statement: str, backend: Any, x: Any) -> Any:
    program = nncdbg.parse(TEXT.replace("OP", statement))
    report = nncdbg.watch(program, {"x": np.array(x, np.float32)}, backend=backend)
    assert report.error is None
    return next((finding for finding in report.findings if finding.first), None)


@pytest.mark.parametrize("statement", ["Sqrt(%r)", "Softmax(%r)", "Mul(%r, %r)", "Gelu(%r)"])
def test_a_nan_from_a_kernel_bug_has_the_cause_kernel(statement: str) -> None:
    op = statement.partition("(")[0]
    program_opset = TEXT.replace("opset 18", "opset 20").replace("OP", statement)
    report = nncdbg.watch(
        nncdbg.parse(program_opset), {"x": np.ones(4, np.float32)}, backend=Foreign(op, with_nan)
    )
    found = next(finding for finding in report.findings if finding.first)
    assert (found.cause, found.site.op) == ("kernel", op)
    assert found.evidence.startswith("from planted, 1 of 4 elements is NaN, the first at [2]; by the")


@pytest.mark.parametrize(
    ("statement", "x", "cause"),
    [
        ("Log(%x)", [1, 2, -1, 3], "log of a negative number"),
        ("Div(%r, %r)", [1, 2, -1, 3], "zero divided by zero"),
        ("Exp(%x)", [1, 100, 0, 0], "overflow of the exponential"),
    ],
)
def test_a_nan_by_definition_has_its_mathematical_cause(statement: str, x: Any, cause: str) -> None:
    pytest.importorskip("onnxruntime")
    found = first(statement, "onnxruntime", x)
    assert found.cause == cause
