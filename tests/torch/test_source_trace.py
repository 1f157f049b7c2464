"""The source trace of recorded steps, on a corpus of scripts, against `sys.settrace`.

The truth is a run without nncdbg: a trace function counts the executions of lines, and a dispatch mode takes
the tensors that the names hold when the first operator of an execution begins.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.ir.source_trace import NO_VISIT, SourceTrace, SourceVisit  # noqa: E402
from nncdbg.ir.walk import misfit  # noqa: E402
from nncdbg.target.program import ProgramTarget  # noqa: E402

SOURCES = Path(__file__).parent / "sources"
SCRIPTS = sorted(each.stem for each in SOURCES.glob("*.py"))

PLAIN = (torch.Tensor, torch.nn.Parameter)

Bits = tuple[str, tuple[int, ...], bytes]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(value: Any) -> Bits | None:
    """Return what identifies the content of a tensor; None for another object, or one without data."""
    if type(value) not in PLAIN or value.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return None
    array = host_array(value.detach())
    return str(array.dtype), array.shape, array.tobytes()


class Script:
    """A script of the corpus, loaded anew, with its state."""

    def __init__(self, name: str) -> None:
        if name == "lightning_module":
            pytest.importorskip("lightning", reason="needs lightning")
        path = SOURCES / f"{name}.py"
        self.names: dict[str, Any] = {"__name__": "script"}
        self.result: Any = None
        if name == "script":
            code = compile(path.read_text(), str(path), "exec")
            self.state = None
            self.step: Callable[[Any], Any] = lambda _: exec(code, self.names)
            return
        spec = importlib.util.spec_from_file_location(f"corpus_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # As dataclasses need it.
        spec.loader.exec_module(module)
        self.state, self.step = module.setup(), module.step

    def run(self) -> Any:
        torch.manual_seed(1)
        return self.step(self.state)

    def parts(self, kind: type[Any]) -> list[Any]:
        return [each for each in tree_leaves(self.state) if isinstance(each, kind)]

    def record(self) -> nncdbg.torch.RecordedStep:
        with nncdbg.torch.record(self.parts(torch.nn.Module), self.parts(torch.optim.Optimizer)) as step:
            self.result = self.run()
        return step


def of_corpus(file: str) -> bool:
    return os.path.abspath(file).startswith(str(SOURCES)) or file.startswith(("<layer", "<string>"))


# -- truth ---------------------------------------------------------------------------------


@dataclass
class TrueFrame:
    """A call on the stack: what its locals held, and what the names of the recording are."""

    call: TracedCall
    visit: int
    function: str
    line: int
    tensors: dict[str, Bits]
    evaluated: dict[str, Bits | None]


class TracedCall:
    """A call of a function, which counts its executions of lines."""

    def __init__(self) -> None:
        self.visit = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> TracedCall:
        self.visit += event == "line"
        _ = frame.f_locals  # Python renews the dictionary, which holds what the dispatch mode has read.
        return self


def trace(frame: FrameType, event: str, argument: Any) -> TracedCall | None:
    if not of_corpus(frame.f_code.co_filename):
        return None
    return frame.f_trace if isinstance(frame.f_trace, TracedCall) else TracedCall()


class Truth(TorchDispatchMode):
    """The stacks at the first operators of executions of lines; `wanted` are the names to look up at each."""

    def __init__(self, wanted: Sequence[Sequence[Iterable[str]]]) -> None:
        super().__init__()
        self.wanted = wanted
        self.steps: list[list[TrueFrame]] = []
        self._last: tuple[Any, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frames = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not Script.run.__code__:
            if of_corpus(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        new: list[TrueFrame] | None = None
        if frames and func.namespace != "profiler":
            call = frames[0].f_trace
            assert isinstance(call, TracedCall)
            if self._last != (call, call.visit):
                number = len(self.steps)
                wanted = self.wanted[number] if number < len(self.wanted) else []
                new = [self._frame(each, depth, wanted) for depth, each in enumerate(frames)]
        result = func(*args, **(kwargs or {}))
        if new is not None:  # An operator that raises runs on no line.
            self.steps.append(new)
            self._last = new[0].call, new[0].visit
        return result

    def _frame(self, frame: FrameType, depth: int, wanted: Sequence[Iterable[str]]) -> TrueFrame:
        code, local = frame.f_code, frame.f_locals
        names = local if code.co_flags & 1 else [each for each in code.co_names if each in local]
        tensors = {name: found for name in names if (found := bits(local[name])) is not None}
        evaluated = {}
        for name in wanted[depth] if depth < len(wanted) else ():
            try:
                value = eval(name, dict(frame.f_globals), dict(local))
            except Exception:  # noqa: BLE001
                value = None
            evaluated[name] = bits(value)
        call = frame.f_trace
        assert isinstance(call, TracedCall)
        return TrueFrame(call, call.visit, code.co_qualname, frame.f_lineno, tensors, evaluated)


def true_steps(name: str, wanted: Sequence[Sequence[Iterable[str]]]) -> list[list[TrueFrame]]:
    script = Script(name)
    truth = Truth(wanted)
    before = sys.gettrace()
    with truth:
        sys.settrace(trace)
        try:
            script.run()
        finally:
            sys.settrace(before)
    return truth.steps


# -- recordings ----------------------------------------------------------------------------


@dataclass
class Recorded:
    """The recording of a script."""

    trace: SourceTrace
    steps: list[tuple[int, list[SourceVisit]]]
    """The first statement and the stack of each execution of a line of the corpus, innermost first."""
    values: list[dict[str, Bits]]
    """What each value holds before each of these statements."""


def record(name: str) -> Recorded:
    step = Script(name).record()
    found = step.program.saved.trace
    assert found is not None
    assert misfit(step.program, found) is None
    steps: list[tuple[int, list[SourceVisit]]] = []
    before = None
    for first, visit in executions(found):
        outer = takewhile(lambda each: found.calls[each.call].function != "Script.run", found.stack(visit))
        # What autograd computes belongs to the line that called it.
        ran = (each for each in outer if each.of == NO_VISIT)
        stack = [each for each in ran if of_corpus(found.calls[each.call].file)]
        if stack and stack[0] is not before:
            steps.append((first, stack))
            before = stack[0]
    return Recorded(found, steps, [*values_before(step, [first for first, _ in steps])])


def executions(trace: SourceTrace) -> Iterator[tuple[int, int]]:
    """Yield (first statement, visit) of consecutive statements of one line, but no derivatives."""
    before = None
    for number, visit in enumerate(trace.statements):
        while visit != NO_VISIT and (trace.visits[visit].of != NO_VISIT or trace.visits[visit].parameter):
            visit = trace.calls[trace.visits[visit].call].caller
        if visit != before:
            yield number, visit
        before = visit


def values_before(step: Any, statements: Sequence[int]) -> Iterator[dict[str, Bits]]:
    """Yield what the values of a program hold before statements, by the numbers of these."""
    debugger = nncdbg.Debugger(step, statistics=False)
    held = {value.name: array_bits(debugger.value(value.name)) for value in step.program.graph.inputs}
    held |= {name: array_bits(array) for name, array in debugger.states.items()}
    number = 0
    for statement in statements:
        while True:
            frame, pc = debugger.control.stack[-1], debugger.control.stack[-1].pc
            if pc == len(frame.code.nodes):
                debugger.step_into()
                continue
            node = frame.code.nodes[pc]
            if node.called is None and number == statement:
                break
            debugger.step_into()
            if node.called is None:
                number += 1
                for output in node.outputs:
                    if output.name:
                        slot = frame.code.slot_at(output.name, pc + 1)
                        assert slot is not None
                        held[output.name] = array_bits(host_array(frame.slots[slot]))
        yield dict(held)


def array_bits(array: Any) -> Bits:
    return str(array.dtype), array.shape, array.tobytes()


# -- comparisons ---------------------------------------------------------------------------


@dataclass
class Comparison:
    """A recording and the truth: the stacks as (function, line), and the names of all steps and calls."""

    mine: list[list[tuple[str, int]]]
    truth: list[list[tuple[str, int]]]
    merged: list[str]
    """The calls and executions of lines of the recording that are several in truth."""
    right: int = 0
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def compare(name: str) -> Comparison:
    found = record(name)
    calls = found.trace.calls
    named = [[found.trace.names_of(each.call, first) for each in stack] for first, stack in found.steps]
    truth = true_steps(name, named)
    compared = Comparison(
        [[(calls[each.call].function, each.line) for each in stack] for _, stack in found.steps],
        [[(each.function, each.line) for each in frames] for frames in truth],
        [],
    )
    true_calls: dict[int, TracedCall] = {}
    true_visits: dict[int, int] = {}
    for (_, stack), values, names, frames in zip(found.steps, found.values, named, truth, strict=False):
        for visit, held, frame in zip(stack, names, frames, strict=False):
            place = f"{frames[0].function}:{frames[0].line} {frame.function}:{frame.line}"
            if true_calls.setdefault(visit.call, frame.call) is not frame.call:
                compared.merged.append(f"call {place}")
            elif true_visits.setdefault(id(visit), frame.visit) != frame.visit:
                compared.merged.append(f"line {place}")
            for spelled, value in held.items():
                if frame.evaluated[spelled] is None or frame.evaluated[spelled] != values.get(value):
                    compared.wrong.append(f"{place} {spelled} -> {value}")
            compared.right += len(frame.tensors.keys() & held.keys())
            compared.missing += [f"{place} {each}" for each in frame.tensors.keys() - held.keys()]
    return compared


@pytest.mark.parametrize("name", SCRIPTS)
def test_lines_and_names_are_those_of_settrace(name: str) -> None:
    compared = compare(name)
    assert len(compared.truth) > 3
    assert compared.mine == compared.truth
    # A loop of one line that changes no variable is one execution of this line.
    assert compared.merged == (["line noise:27 step:53"] * 2 if name == "generation" else [])
    assert compared.wrong == []
    if name == "uses_locals":  # Reading the locals would change what these functions get.
        unread = "forward", "evaluated", "plain", "listed"
        compared.missing = [each for each in compared.missing if not each.rpartition(":")[0].endswith(unread)]
    assert compared.right >= 0.97 * (compared.right + len(compared.missing)), compared.missing


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_back_go_through_the_lines_of_the_steps_forward(name: str) -> None:
    """Steps go through all executions of lines, also of those that only call functions, and derivatives."""
    target = ProgramTarget(nncdbg.Debugger(Script(name).record(), statistics=False))
    source = target.source
    assert source is not None
    visits = [each.visit for each in source.order.arrivals]

    def walk(move: Callable[[], Any]) -> Iterator[int]:
        while not target.now.ended:
            yield source.visit
            try:
                move()
            except UsageError:
                return

    assert [*walk(source.step)] == visits
    source.back(into=True)
    assert [*walk(lambda: source.back(into=True))] == visits[::-1]


# -- watching changes nothing --------------------------------------------------------------


def content(value: Any) -> Any:
    return bits(value) if isinstance(value, torch.Tensor) else repr(value)


def outcome(name: str, run: Callable[[Script], Any]) -> dict[str, Any]:
    """Return all that a step computes and leaves, with the number of storages that live after it."""
    script = Script(name)
    gc.freeze()  # Only what the step makes is listed; a collection of all other objects takes seconds.
    run(script)
    result = script.result if script.state is not None else script.names["result"]
    tensors = [each for each in tree_leaves([script.state, result]) if isinstance(each, torch.Tensor)]
    for module in script.parts(torch.nn.Module):
        tensors += [*module.parameters(), *module.buffers()]
    for optimizer in script.parts(torch.optim.Optimizer):
        tensors += tree_leaves(optimizer.state_dict()["state"])
    gradients = [each.grad for each in tensors if isinstance(each, torch.Tensor) and each.is_leaf]
    results = [content(each) for each in tree_leaves(result)]
    left = {
        "tensors": [content(each) for each in tensors],
        "gradients": [content(each) for each in gradients],
    }
    # The graph of a result holds tensors that may have objects of Python.
    del result, tensors
    script.result = None
    script.names.pop("result", None)
    gc.collect()
    live = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return {
        "results": results,
        **left,
        "random": torch.get_rng_state().tolist(),
        "live": len({each.untyped_storage()._cdata for each in live}),
    }


def run_plainly(script: Script) -> None:
    script.result = script.run()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_recording_changes_no_result_and_no_lifetime(name: str) -> None:
    plain = outcome(name, run_plainly)
    watched = outcome(name, Script.record)
    assert watched == plain
