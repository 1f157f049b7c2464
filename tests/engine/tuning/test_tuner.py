"""Autotune: measured kernels run on private copies, are verified, and leave the run as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.kernels import MeasuredKernel, TunedStatement, Tuning
from nncdbg.engine.backends import Backend, Call, Kernels
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.tuning import KernelTuner, available_backends
from nncdbg.engine.values.checksum import same_bits
from nncdbg.errors import UnsupportedOp, UsageError

TEXT = """
graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %h = Exp(%x)
  %y = Softmax(%h)
  return %y
}
"""

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Clock:
    """Seconds that pass only while a backend of `Planted` computes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Planted(NumPy):
    """NumPy's kernels with a planted fault, which take `seconds` of `clock`."""

    def __init__(
        self, name: str, clock: Clock, seconds: float, fault: Callable[..., Any] | None = None
    ) -> None:
        self.name, self._clock, self._seconds, self._fault = name, clock, seconds, fault

    def bind(self, call: Call) -> Kernels:
        kernels = super().bind(call)

        def run(*inputs: Any) -> Any:
            self._clock.now += self._seconds
            results = kernels.run(*inputs)
            return results if self._fault is None else self._fault(results, *inputs)

        return Kernels(run)


def wrong(results: Any, *inputs: Any) -> Any:
    return results * np.float32(1.01)


def widened(results: Any, *inputs: Any) -> Any:
    return results.astype(np.float64)


def without_a_row(results: Any, *inputs: Any) -> Any:
    return results[:1]


def accumulating(results: Any, *inputs: Any) -> Any:
    inputs[0][...] += 1
    return results


def raising(results: Any, *inputs: Any) -> Any:
    raise ZeroDivisionError("planted")


def lacking(results: Any, *inputs: Any) -> Any:
    raise UnsupportedOp("no kernel on planted")


def tuned(
    text: str, candidates: Callable[[Clock], list[Backend]], **fields: Any
) -> tuple[Tuning, Mapping[str, Any]]:
    """Return the tuning of a program on a fake clock, and the outputs of its run."""
    clock = Clock()
    fields = {"backend": Planted("own", clock, 1.0), **fields}
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": X.copy()}, **fields)
    tuner = KernelTuner(debugger, {each.name: each for each in candidates(clock)}, clock=clock)
    assert debugger.run().reason == "end", debugger.stop
    assert debugger.outputs is not None
    return tuner.tuning, debugger.outputs


def test_the_fastest_kernel_is_chosen() -> None:
    tuning, _ = tuned(TEXT, lambda clock: [Planted("slow", clock, 2.0), Planted("fast", clock, 0.5)])
    assert tuning.kernels == {"%h": "fast", "%y": "fast"}
    [first, _] = tuning.statements
    assert [(each.backend, each.seconds) for each in first.kernels] == [
        ("own", 1.0),
        ("slow", 2.0),
        ("fast", 0.5),
    ]
    assert first.saved == 0.5


def test_a_small_advantage_keeps_the_backend_of_the_run() -> None:
    tuning, _ = tuned(TEXT, lambda clock: [Planted("faster", clock, 0.95)])
    assert tuning.kernels == {"%h": "own", "%y": "own"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (wrong, "it differs from numpy: 8 elements, at "),
        (widened, "it differs from numpy: f64[2,4] against f32[2,4]"),
        (without_a_row, "it differs from numpy: f32[1,4] against f32[2,4]"),
        (accumulating, "it writes to its operand %x"),
        (raising, "it fails: ZeroDivisionError: planted"),
    ],
)
def test_a_planted_wrong_kernel_is_rejected(fault: Callable[..., Any], words: str) -> None:
    """E7: a kernel that is fast but wrong is rejected by the comparison with the reference."""
    tuning, outputs = tuned(TEXT, lambda clock: [Planted("planted", clock, 0.1, fault)])
    assert tuning.kernels == {"%h": "own", "%y": "own"}
    rejected = tuning.statements[0].kernels[1]
    assert rejected.rejected.startswith(words)
    assert rejected.seconds is None
    assert outputs["y"].tobytes() == nncdbg.run(nncdbg.parse(TEXT), {"x": X})["y"].tobytes()


def test_a_wrong_kernel_of_the_run_itself_is_rejected() -> None:
    clock = Clock()
    debugger = nncdbg.Debugger(
        nncdbg.parse(TEXT), {"x": X}, backend=Planted("own", clock, 0.1, wrong), allocator="plain"
    )
    tuner = KernelTuner(debugger, {"numpy": Planted("numpy", clock, 1.0)}, clock=clock)
    debugger.run()
    assert tuner.tuning.kernels == {"%h": "numpy", "%y": "numpy"}


def test_a_backend_without_a_kernel_is_not_chosen() -> None:
    tuning, _ = tuned(TEXT, lambda clock: [Planted("planted", clock, 0.1, lacking)])
    assert tuning.statements[0].kernels[1] == MeasuredKernel("planted", lacks="no kernel on planted")
    assert tuning.kernels == {"%h": "own", "%y": "own"}


_EXECUTIONS: list[int] = []


@nncdbg.op("tuning.test.Accumulate")
def accumulate(xp: Any, x: Any) -> Any:
    """Return x plus the number of executions so far: the kernel keeps state."""
    _EXECUTIONS.append(1)
    return x + xp.float32(len(_EXECUTIONS))


@pytest.fixture
def counter() -> list[int]:
    """Return the list of executions of `accumulate`, empty."""
    _EXECUTIONS.clear()
    return _EXECUTIONS


ACCUMULATING = """
graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %a = tuning.test.Accumulate(%x)
  %b = tuning.test.Accumulate(%a)
  %r = RandomNormalLike(%b)
  %c = Add(%b, %r)
  %d = Dropout(%c)
  %y = Exp(%d)
  return %y
}
"""


@pytest.mark.parametrize("allocator", ["debug", "plain", "arena"])
def test_an_accumulating_op_gives_the_same_bits_with_autotune(counter: list[int], allocator: str) -> None:
    """E9: a kernel with state runs as often as without autotune, so no bit of an output changes."""
    fields = {"allocator": allocator, "seed": 3, "backend": "numpy"}
    plain = nncdbg.Debugger(nncdbg.parse(ACCUMULATING), {"x": X}, **fields)  # type: ignore[arg-type]
    plain.run()
    assert plain.outputs is not None
    executions = len(counter)
    counter.clear()
    tuning, outputs = tuned(
        ACCUMULATING, lambda clock: [Planted("planted", clock, 0.1, accumulating)], **fields
    )
    assert outputs["y"].tobytes() == plain.outputs["y"].tobytes()
    assert len(counter) == executions
    left_out = {each.selector: each.left_out for each in tuning.statements if each.left_out}
    assert left_out == {
        "%a": "a custom kernel may keep state between its executions",
        "%b": "a custom kernel may keep state between its executions",
        "%r": "it draws random numbers",
    }
    assert {*tuning.kernels} == {"%c", "%d", "%y"}


def test_a_loop_and_a_called_graph_are_measured_once() -> None:
    text = """
graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  while @rounds (%s: f32[2,4] = %x) count %i: i64[] times 5 {
    %t = @half(%s)
    next %s = %t
  } -> (%y = %s)
  return %y
}
graph @half(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %k = Tanh(%x)
  %y = Neg(%k)
  return %y
}
"""
    tuning, outputs = tuned(text, lambda clock: [Planted("fast", clock, 0.5)])
    assert [each.selector for each in tuning.statements] == ["%k", "%y"]
    again = nncdbg.run(nncdbg.parse(text), {"x": X})
    assert outputs["y"].tobytes() == again["y"].tobytes()


def test_a_training_ends_with_the_same_states() -> None:
    program = nncdbg.load("examples/train_mlp.nnc", steps=3)
    plain = nncdbg.Debugger(program)
    plain.run()
    measured = nncdbg.Debugger(program)
    clock = Clock()
    tuner = KernelTuner(measured, {"planted": Planted("planted", clock, 0.1, accumulating)}, clock=clock)
    assert measured.run().reason == "end", measured.stop
    kernels = tuner.tuning.kernels
    assert {"%b1", "%l.sum", "@layer.backward.%d_w1"} <= {*kernels}
    again = nncdbg.Debugger(program, kernels=kernels)
    chosen = [each for each in again.loaded.kernels() if each.reason == "chosen"]
    assert sorted(each.selector for each in chosen) == sorted(kernels)
    assert {name: each.tobytes() for name, each in plain.states.items()} == {
        name: each.tobytes() for name, each in measured.states.items()
    }


def test_a_choice_of_the_user_stays() -> None:
    tuning, _ = tuned(TEXT, lambda clock: [Planted("fast", clock, 0.5)], kernels={"Exp": "numpy"})
    assert tuning.statements[0].left_out == "its kernel is chosen already"
    assert tuning.kernels == {"%y": "fast"}


def test_the_choice_can_be_given_to_a_run() -> None:
    pytest.importorskip("onnxruntime")
    backends, _ = available_backends(["numpy", "onnxruntime"])
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X})
    tuner = KernelTuner(debugger, backends)
    debugger.run()
    kernels = tuner.tuning.kernels
    assert {*kernels} == {"%h", "%y"}
    found = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels=kernels)
    assert {f"%{each.value}": each.backend for each in found.loaded.kernels()} == kernels
    assert found.run().reason == "end"


def test_a_device_is_measured_through_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured kernels of a device receive copies there, and a read of one element waits for them."""
    from tests.engine.backends.stand_in import StandIn

    space = StandIn()
    monkeypatch.setattr("nncdbg.engine.backends.cupy._library", lambda: space)
    clock = Clock()
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, backend="cupy")
    tuner = KernelTuner(debugger, {"planted": Planted("planted", clock, 0.1, wrong)}, clock=clock)
    assert debugger.run().reason == "end"
    assert tuner.tuning.kernels == {"%h": "cupy", "%y": "cupy"}
    assert all(each.kernels[1].rejected for each in tuner.tuning.statements)


def test_available_backends_report_the_others() -> None:
    found, reasons = available_backends()
    assert "numpy" in found
    assert not {*found} & {*reasons}
    with pytest.raises(UsageError, match="unknown backend 'nowhere'"):
        available_backends(["nowhere"])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (np.array([1, np.nan], np.float32), np.array([1, np.nan], np.float32), True),
        (np.array([0.0], np.float32), np.array([-0.0], np.float32), False),
        (np.array([1], np.float32), np.array([1], np.float64), False),
        (np.array([[1]], np.float32), np.array([1], np.float32), False),
        ([np.array([1], np.int64)], [np.array([1], np.int64)], True),
        ([np.array([1], np.int64)], [np.array([1], np.int64)] * 2, False),
        (np.array(["a"], object), np.array(["b"], object), False),
        (None, None, True),
        (None, np.array([1], np.float32), False),
    ],
)
def test_same_bits(one: Any, other: Any, equal: bool) -> None:
    assert same_bits(one, other) is equal


def test_a_statement_without_a_choice_saves_nothing() -> None:
    assert TunedStatement(1, "Exp", "%h", left_out="why").saved == 0
