"""Verdicts of the comparison of two runs on a sample of the corpora.

`benchmarks/bench_diff.py` runs all of them.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import onnx
import pytest

import nncdbg
from tests.engine.divergence.good import Good, architectures
from tests.engine.divergence.planted import Planted, planted
from tests.engine.planted import Planted as WrongKernel
from tests.engine.planted import x_of
from tests.models.forms import inputs_of
from tests.presence import present

SAMPLE = list(islice(architectures(), 0, None, 5))
QUICK = [each for each in planted() if not each.name.startswith("deep")][::4]


@pytest.mark.parametrize("good", SAMPLE, ids=lambda good: good.name)
def test_equivalent_models_do_not_differ(good: Good) -> None:
    pytest.importorskip("onnxruntime")
    report = good.report()
    assert not report.trips()
    assert report.causes == []


@pytest.mark.parametrize("difference", QUICK, ids=lambda difference: difference.name)
def test_a_planted_difference_is_reported_at_its_statement(difference: Planted) -> None:
    a, b, truth = difference.sides()
    report = nncdbg.diff(nncdbg.load(a), nncdbg.load(b), inputs_of(a))
    assert report.cause is not None
    assert report.cause.site.node == truth


def test_paths_and_models_are_loaded(tmp_path: object) -> None:
    a, b, truth = planted()[0].sides()
    onnx.save(b, f"{tmp_path}/b.onnx")
    report = nncdbg.diff(a, f"{tmp_path}/b.onnx", inputs_of(a))
    assert (present(report.cause).kind, present(report.cause).text) == ("attribute", "Softmax axis -1 / 0")
    assert (present(present(report.cause).a).node, report.status) == (truth, "diverged")


ROI = (
    "%b: f32[1,4] = [[1.0, 1.0, 4.0, 5.0]]\n  %n: i64[1] = [0]\n  %y = RoiAlign(%x, %b, %n, "
    "output_height=2, output_width=2, sampling_ratio=2{})"
)
CHANGED = ": the default of axis changed from 1 to -1 in opset 13"
BETWEEN_VERSIONS = [
    (11, 13, "%y = Softmax(%x{})", "", "", "Softmax axis 1 / -1" + CHANGED),
    (13, 11, "%y = Softmax(%x{})", "", "", "Softmax axis -1 / 1" + CHANGED),
    (18, 12, "%y = Hardmax(%x{})", "", "", "Hardmax axis -1 / 1" + CHANGED),
    (11, 13, "%y = Softmax(%x{})", "", ", axis=2", "Softmax axis 1 / 2"),
    (10, 16, ROI, "", "", "opset 16 added coordinate_transformation_mode, half_pixel by default"),
    (22, 10, ROI, "", "", "opset 16 added coordinate_transformation_mode, half_pixel by default"),
    (16, 16, ROI, "", ', coordinate_transformation_mode="output_half_pixel"',
     "RoiAlign coordinate_transformation_mode half_pixel / output_half_pixel"),
]  # fmt: skip


@pytest.mark.parametrize(("opset_a", "opset_b", "statement", "a", "b", "text"), BETWEEN_VERSIONS)
def test_a_difference_between_versions_of_an_op_is_named(
    opset_a: int, opset_b: int, statement: str, a: str, b: str, text: str
) -> None:
    one, other = (
        nncdbg.parse(
            f"#nncdbg 1\nopset {opset}\ngraph @main(%x: f32[1,1,6,6]) -> (%y) {{\n"
            f"  {statement.format(more)}\n  return %y\n}}\n"
        )
        for opset, more in ((opset_a, a), (opset_b, b))
    )
    x = np.random.default_rng(0).standard_normal((1, 1, 6, 6)).astype(np.float32)
    cause = present(nncdbg.diff(one, other, {"x": x}).cause)
    assert cause.text == text or (cause.kind, cause.text.partition("; ")[2]) == ("kernel", text)


def chain(*ops: str) -> str:
    """A program in which each statement reads the previous result, with numbered values."""
    lines = [f"  %v{i + 1} = {op}(%v{i})" for i, op in enumerate(ops)]
    header = f"#nncdbg 1\nopset 18\n\ngraph @main(%v0: f32[8]) -> (%v{len(ops)}: f32[8]) {{"
    return "\n".join([header, *lines, f"  return %v{len(ops)}", "}", ""])


@pytest.mark.parametrize(
    ("extra", "place"), [("Neg", 1), ("Neg", 3), ("Abs", 2), ("Softplus", 5), ("Cos", 0), ("Cos", 6)]
)
@pytest.mark.parametrize("in_b", [True, False])
def test_an_extra_op_that_shifts_the_names_is_reported(extra: str, place: int, in_b: bool) -> None:
    ops = ["Tanh", "Sin", "Tanh", "Sin", "Tanh", "Sin"]
    texts = chain(*ops), chain(*ops[:place], extra, *ops[place:])
    a, b = texts if in_b else texts[::-1]
    report = nncdbg.diff(nncdbg.parse(a), nncdbg.parse(b), {"v0": x_of(8)})
    assert report.cause is not None
    assert report.cause.kind == ("only_b" if in_b else "only_a")
    assert (report.cause.site.op, report.cause.site.value) == (extra, f"v{place + 1}")


def test_the_error_of_a_failing_side_names_the_earlier_difference() -> None:
    text = """#nncdbg 1
opset 18

graph @main(%x: f32[2,3]) -> (%y: f32[...]) {
  %a = Tanh(%x)
  %t = Transpose(%a, perm=[0,1])
  %n = Neg(%t)
  %y = Mul(%n, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
  return %y
}
"""
    other = text.replace("perm=[0,1]", "perm=[1,0]").replace("%x: f32[2,3]", "%x: f32[...]")
    with pytest.raises(nncdbg.NncdbgError, match="side B: Mul") as caught:
        nncdbg.diff(nncdbg.parse(text), nncdbg.parse(other), {"x": x_of(2, 3)})
    assert caught.value.hint == "the sides differ earlier: Transpose perm [0, 1] / [1, 0] (%t, line 6)"


ROUNDED = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h = Tanh(%x)
  %q = Round(%h)
  %y = Mul(%q, 3.0)
  return %y
}
"""


def test_a_tie_that_rounds_differently_is_not_a_difference_of_the_outputs() -> None:
    # tanh(x) is the f32 nearest to 0.5; side B gives the next number above.
    inputs = {"x": np.array([0.5493061, 1, 2, 3], np.float32)}

    def nudged(array: np.ndarray) -> np.ndarray:
        return np.where(np.abs(array - 0.5) < 1e-6, np.float32(0.5000001), array)

    report = nncdbg.diff(
        nncdbg.parse(ROUNDED), None, inputs, backend_b=WrongKernel("Tanh", nudged), allocator_b="plain"
    )
    assert (report.status, report.causes, report.trips()) == ("rounding", [], False)
    assert [match.a.op for match in report.ties] == ["Round"]
    assert report.trips(strict=True)
    explicit = nncdbg.diff(
        nncdbg.parse(ROUNDED), None, inputs, backend_b=WrongKernel("Tanh", nudged), allocator_b="plain", ulp=0
    )
    assert (explicit.status, present(explicit.first).a.op) == ("diverged", "Tanh")


WIDE = """#nncdbg 1

graph @main(%x: f32[2048]) -> (%y: f32[2048]) {
  %h = Tanh(%x)
  %y = Neg(%h)
  return %y
}
"""


@pytest.mark.parametrize(("elements", "times", "equal"), [(1, 1.2, True), (1, 6.0, False), (64, 1.2, False)])
def test_few_elements_a_little_beyond_the_tolerance_are_marginal(
    elements: int, times: float, equal: bool
) -> None:
    def moved(array: np.ndarray) -> np.ndarray:
        array[:elements] += np.float32(times * (1e-5 + 1e-4 * np.abs(array[:elements]).max()))
        return array

    report = nncdbg.diff(
        nncdbg.parse(WIDE), None, {"x": x_of(2048)}, backend_b=WrongKernel("Tanh", moved), allocator_b="plain"
    )
    assert report.equal == equal
    assert bool(report.marginal) == equal
    if not equal:
        assert (present(report.first).a.op, present(report.cause).kind) == ("Tanh", "kernel")
        assert present(present(report.first).ulps) > 100


def test_a_large_tensor_widens_the_absolute_tolerance() -> None:
    text = WIDE.replace("Tanh(%x)", "Mul(%x, 1000.0)")

    def moved(array: np.ndarray) -> np.ndarray:
        return array + np.float32(1e-3)

    report = nncdbg.diff(
        nncdbg.parse(text), None, {"x": x_of(2048)}, backend_b=WrongKernel("Mul", moved), allocator_b="plain"
    )
    assert report.equal
