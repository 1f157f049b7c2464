"""Kernels of single statements on other backends: selectors, kernels, the record of the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import Call, Kernels, backend
from nncdbg.engine.backends.kernel_choice import ExactSelectors, kernel_statements, parse_selector
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.errors import UnsupportedOp, UsageError
from nncdbg.ir.records import Program
from tests.engine.backends.stand_in import StandIn

TEXT = """
graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %a = @layer(%x)
  %h = Exp(%x)
  %s = Softmax(%h)
  %"odd name" = Add(%a, %s)
  %y = @layer(%"odd name")
  return %y
}
graph @layer(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %h = Exp(%x)
  %y = Tanh(%h)
  return %y
}
"""

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Recording(NumPy):
    """NumPy's kernels under the name `recording`; `ran` lists the ops that they executed."""

    name = "recording"
    ran: list[str]

    def __init__(self) -> None:
        self.ran = []

    def bind(self, call: Call) -> Kernels:
        kernels = super().bind(call)

        def run(*inputs: Any) -> Any:
            self.ran.append(call.node.op)
            return kernels.run(*inputs)

        return Kernels(run)


class Refusing(NumPy):
    """A backend without kernels."""

    name = "refusing"

    def bind(self, call: Call) -> Kernels:
        def refuse(*inputs: Any) -> Any:
            raise UnsupportedOp(f"{call.node.op} has no kernel on refusing")

        return Kernels(refuse)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    made = Recording()
    plant(monkeypatch, made, Refusing())
    return made


def plant(monkeypatch: pytest.MonkeyPatch, *backends: Any) -> None:
    """Add these backends to those that can be chosen by name."""
    known = {each.name: each for each in backends}
    monkeypatch.setattr(
        "nncdbg.engine.backends.kernel_choice.backend", lambda name: known.get(name) or backend(name)
    )


@pytest.mark.parametrize(
    ("kernels", "ran"),
    [
        ({}, []),
        ({"Exp": "recording"}, ["Exp"] * 3),
        ({"%h": "recording"}, ["Exp"] * 3),
        ({"@layer.%h": "recording"}, ["Exp"] * 2),
        ({"@main.%h": "recording"}, ["Exp"]),
        ({"4": "recording"}, ["Exp"]),
        ({"4 Exp": "recording"}, ["Exp"]),
        ({'%"odd name"': "recording"}, ["Add"]),
        ({"Exp": "recording", "%h": "numpy"}, []),
        ({"%h": "numpy", "@layer.%h": "recording"}, ["Exp"] * 2),
        ({"%h": "recording", "4": "numpy"}, ["Exp"] * 2),
        ({"4": "recording", "Exp": "numpy", "%h": "numpy"}, ["Exp"]),
    ],
)
def test_the_most_specific_selector_decides(
    recording: Recording, kernels: dict[str, str], ran: list[str]
) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels=kernels)
    assert debugger.run().reason == "end"
    assert recording.ran == ran


@pytest.mark.parametrize(
    ("selector", "message", "hint"),
    [
        ("Epx", "no statement with a kernel matches Epx", "did you mean Exp?"),
        ("%odd_name", "no statement with a kernel matches %odd_name", 'did you mean %"odd name"?'),
        ("%x", "no statement with a kernel matches %x", "%x is no result of a kernel"),
        ("%a", "no statement with a kernel matches %a", "%a is no result of a kernel"),
        ("@layer.%s", "no statement with a kernel matches @layer.%s", "%s is in @main"),
        ("1", "no statement with a kernel matches 1", "choose the line of a statement"),
        ("4 Tanh", "no statement with a kernel matches 4 Tanh", "line 4 has Exp"),
        ("@layer", '"@layer" selects no statement', "write, for example"),
        ("", '"" selects no statement', "write, for example"),
        (r'%"\q"', "is quoted incorrectly", "use the escapes"),
    ],
)
def test_a_selector_of_no_statement_is_an_error(selector: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels={selector: "numpy"})
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_an_unknown_backend_names_the_selector() -> None:
    with pytest.raises(UsageError, match="cannot choose the kernel of Exp: unknown backend 'nowhere'"):
        nncdbg.run(nncdbg.parse(TEXT), {"x": X}, kernels={"Exp": "nowhere"})


def test_each_exact_selector_selects_one_statement() -> None:
    program = nncdbg.parse(
        "graph @main(%x: f32[2], %go: bool[]) -> (%y: f32[2]) {\n"
        "  if %go {\n    %h = Exp(%x)\n    yield %h\n  } else {\n"
        "    %h = Neg(%x)\n    yield %h\n  } -> (%r)\n"
        "  %y = @layer(%r)\n  return %y\n}\n"
        "graph @layer(%x: f32[2]) -> (%y: f32[2]) {\n  %k = Exp(%x)\n  %y = Neg(%k)\n  return %y\n}\n"
    )
    selectors = ExactSelectors(program)
    statements = [*kernel_statements(program)]
    for path, node, line in statements:
        assert line is not None
        text = selectors.selector(path, node, line)
        assert [each for each in statements if parse_selector(text).selects(*each)] == [(path, node, line)]


def test_the_choice_of_each_statement_is_recorded(recording: Recording) -> None:
    """E7: the kernel of each statement is recorded, with the reason."""
    kernels = {"Softmax": "refusing", "@layer.%h": "recording"}
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels=kernels, fallback=True)
    found = {(each.line, each.op): (each.backend, each.reason) for each in debugger.loaded.kernels()}
    assert found == {
        (4, "Exp"): ("numpy", "default"),
        (5, "Softmax"): ("refusing", "chosen"),
        (6, "Add"): ("numpy", "default"),
        (11, "Exp"): ("recording", "chosen"),
        (12, "Tanh"): ("numpy", "default"),
    }
    assert debugger.run().reason == "end"
    [softmax] = [each for each in debugger.loaded.kernels() if each.op == "Softmax"]
    assert (softmax.backend, softmax.reason, softmax.lacking) == ("numpy", "fallback", "refusing")
    assert softmax.as_dict() == {
        "line": 5,
        "op": "Softmax",
        "value": "s",
        "backend": "numpy",
        "reason": "fallback",
        "selector": "Softmax",
        "lacking": "refusing",
    }


def test_a_chosen_kernel_that_is_missing_fails_without_fallback(recording: Recording) -> None:
    stop = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels={"Softmax": "refusing"}).run()
    assert isinstance(stop.error, UnsupportedOp)
    assert stop.line == 5


def test_a_micro_program_keeps_its_own_kernels(recording: Recording) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels={"Exp": "recording"})
    debugger.run_to(line=5)
    recording.ran.clear()
    debugger.step_into(micro=True)
    debugger.step_out()
    assert recording.ran == []


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_a_choice_of_the_same_kernels_changes_no_bit(recording: Recording, allocator: str) -> None:
    expected = nncdbg.run(nncdbg.parse(TEXT), {"x": X})
    kernels = {"Exp": "recording", "Softmax": "recording", "Tanh": "recording"}
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels=kernels, allocator=allocator)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    assert debugger.outputs["y"].tobytes() == expected["y"].tobytes()


def test_a_choice_in_a_training_covers_each_step(recording: Recording) -> None:
    program = nncdbg.load("examples/train_mlp.nnc", steps=3)
    plain = nncdbg.Debugger(program)
    plain.run()
    op = next(node.op for _, node, _ in kernel_statements(program) if node.op == "MatMul")
    chosen = nncdbg.Debugger(program, kernels={op: "recording"})
    assert chosen.run().reason == "end"
    assert len(recording.ran) >= 3
    assert {name: each.tobytes() for name, each in plain.states.items()} == {
        name: each.tobytes() for name, each in chosen.states.items()
    }


def test_a_partial_run_accepts_selectors_of_the_whole_program(recording: Recording) -> None:
    found = nncdbg.run(nncdbg.parse(TEXT), {"x": X}, outputs=["s"], kernels={"Tanh": "recording"})
    assert [*found] == ["s"]
    assert recording.ran == []


def test_a_program_runs_again_with_another_choice(recording: Recording) -> None:
    """The code that a program keeps is that of its kernels."""
    program = nncdbg.parse(TEXT)
    counts = []
    for kernels in ({}, {"Exp": "recording"}, {"Exp": "recording"}, {}):
        nncdbg.run(program, {"x": X}, kernels=kernels)
        counts.append(len(recording.ran))
    assert counts == [0, 3, 6, 6]


def test_a_kernel_of_torch_runs_between_kernels_of_numpy() -> None:
    pytest.importorskip("torch", reason="needs torch")
    expected = nncdbg.run(nncdbg.parse(TEXT), {"x": X})
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, kernels={"Softmax": "torch", "Exp": "torch"})
    assert debugger.run().reason == "end"
    assert isinstance(debugger.value("h"), np.ndarray)
    np.testing.assert_allclose(debugger.value("y"), expected["y"], rtol=1e-5)
    debugger.step_back()
    debugger.reverse_continue()
    assert debugger.run().reason == "end"


def test_a_kernel_of_numpy_runs_between_kernels_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, backend="torch", kernels={"Exp": "numpy"})
    assert debugger.run().reason == "end"
    [frame] = debugger.control.machine.frames
    assert isinstance(frame.slots[frame.code.slot_of["h"]], torch.Tensor)
    assert {each.op for each in debugger.loaded.kernels() if each.backend == "numpy"} == {"Exp"}


def test_results_of_a_host_kernel_return_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    space = StandIn()
    monkeypatch.setattr("nncdbg.engine.backends.cupy._library", lambda: space)
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, backend="cupy", kernels={"Exp": "numpy"})
    assert debugger.run().reason == "end"
    np.testing.assert_allclose(debugger.value("h"), np.exp(X), rtol=1e-6)
    [frame] = debugger.control.machine.frames
    assert isinstance(frame.slots[frame.code.slot_of["h"]], space.ndarray)


def outputs_of(program: Program, outputs: Sequence[str] | None) -> dict[str, bytes]:
    return {name: each.tobytes() for name, each in nncdbg.run(program, {"x": X}, outputs=outputs).items()}


def test_no_outputs_named_means_the_full_run() -> None:
    """E8: None and an empty list of outputs run all statements."""
    program = nncdbg.parse(TEXT)
    whole = nncdbg.Debugger(program, {"x": X})
    whole.run()
    assert whole.outputs is not None
    expected = {name: each.tobytes() for name, each in whole.outputs.items()}
    unnamed: tuple[Sequence[str] | None, ...] = (None, [], ())
    for outputs in unnamed:
        assert outputs_of(program, outputs) == expected
        partial = nncdbg.Debugger(program, {"x": X}, outputs=outputs)
        partial.run()
        assert partial.timeline.tick == whole.timeline.tick
    assert outputs_of(program, ["s"]) != expected
