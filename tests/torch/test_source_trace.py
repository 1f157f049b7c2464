"""The source trace of recorded steps, on a corpus of scripts, against `sys.settrace`.

The truth is a run without nncdbg: a trace function counts the executions of lines, and a dispatch mode takes the
tensors that the names hold when the first operator of an execution begins.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
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
from nncdbg.ir.source_trace import SourceTrace, SourceVisit  # noqa: E402
from nncdbg.ir.walk import executed  # noqa: E402

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

    def __init__(self, wanted: Sequence[Sequence[Sequence[str]]]) -> None:
        super().__init__()
        self.wanted = wanted
        self.steps: list[list[TrueFrame]] = []
        self._last: tuple[Any, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frames = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
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

    def _frame(self, frame: FrameType, depth: int, wanted: Sequence[Sequence[str]]) -> TrueFrame:
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


def true_steps(name: str, wanted: Sequence[Sequence[Sequence[str]]]) -> list[list[TrueFrame]]:
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


@cache
def recorded(name: str) -> Recorded:
    step = Script(name).record()
    found = step.program.saved.trace
    assert found is not None
    assert found.mistake(sum(1 for _ in executed(step.program))) is None
    steps: list[tuple[int, list[SourceVisit]]] = []
    before = None
    for first, visit in found.steps():
        stack = [each for each in found.stack(visit) if of_corpus(found.calls[each.call].file)]
        if stack and stack[0] is not before:
            steps.append((first, stack))
            before = stack[0]
    return Recorded(found, steps, [*values_before(step, [first for first, _ in steps])])


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
                        held[output.name] = array_bits(host_array(frame.slots[frame.code.slot_at(output.name, pc + 1)]))
        yield dict(held)


def array_bits(array: Any) -> Bits:
    return str(array.dtype), array.shape, array.tobytes()


# -- comparisons ---------------------------------------------------------------------------


@dataclass
class Names:
    """The tensor locals at all steps that the recording names, and does not name, and names that are wrong."""

    right: int = 0
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@cache
def comparison(name: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]], Names]:
    """Return the lines of a recording, those of the truth, and how the names compare."""
    found = recorded(name)
    named = [[found.trace.names_of(each.call, first) for each in stack] for first, stack in found.steps]
    truth = true_steps(name, named)
    names = Names()
    for (_, stack), values, step, frames in zip(found.steps, found.values, named, truth):
        if [found.trace.calls[each.call].function for each in stack] != [each.function for each in frames]:
            continue  # The lines differ too, or the stack does.
        for held, frame in zip(step, frames, strict=True):
            place = f"{frame.function}:{frames[0].line}"
            for spelled, value in held.items():
                if frame.evaluated[spelled] is None or frame.evaluated[spelled] != values.get(value):
                    names.wrong.append(f"{place} {spelled} -> {value}")
            names.right += len(frame.tensors.keys() & held.keys())
            names.missing += [f"{place} {each}" for each in frame.tensors.keys() - held.keys()]
    lines = [(found.trace.calls[stack[0].call].function, stack[0].line) for _, stack in found.steps]
    return lines, [(frames[0].function, frames[0].line) for frames in truth], names


def merged(name: str) -> list[str]:
    """Return the calls and executions of lines of a recording that are more than one in truth."""
    found = recorded(name)
    calls: dict[int, TracedCall] = {}
    visits: dict[int, int] = {}
    wrong = []
    for (_, stack), frames in zip(found.steps, true_steps(name, [])):
        for depth, (visit, frame) in enumerate(zip(stack, frames)):
            place = f"{frames[0].function}:{frames[0].line} at {depth}, line {frame.line}"
            if calls.setdefault(visit.call, frame.call) is not frame.call:
                wrong.append(f"call {place}")
            elif visits.setdefault(id(visit), frame.visit) != frame.visit:
                wrong.append(f"line {place}")
    return wrong


def stacks(name: str) -> tuple[list[Any], list[Any]]:
    """Return the stacks of a recording and of the truth, as (function, line)."""
    found = recorded(name)
    mine = [[(found.trace.calls[each.call].function, each.line) for each in stack] for _, stack in found.steps]
    return mine, [[(each.function, each.line) for each in frames] for frames in true_steps(name, [])]


@pytest.mark.parametrize("name", SCRIPTS)
def test_lines_that_ran_operators_are_those_of_settrace(name: str) -> None:
    mine, truth = stacks(name)
    assert len(truth) > 3
    assert mine == truth


@pytest.mark.parametrize("name", SCRIPTS)
def test_calls_and_executions_of_lines_are_apart(name: str) -> None:
    assert merged(name) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_name_is_wrong(name: str) -> None:
    assert comparison(name)[2].wrong == []


def test_nearly_all_tensor_locals_have_names() -> None:
    counts = [comparison(name)[2] for name in SCRIPTS if name != "lightning_module"]
    right, missing = sum(each.right for each in counts), sum(len(each.missing) for each in counts)
    assert right >= 0.97 * (right + missing), (right, missing)


# -- watching changes nothing --------------------------------------------------------------


def content(value: Any) -> Any:
    return bits(value) if isinstance(value, torch.Tensor) else repr(value)


def outcome(name: str, run: Callable[[Script], Any]) -> dict[str, Any]:
    """Return all that a step computes and leaves, with the number of storages that live after it."""
    script = Script(name)
    gc.collect()
    gc.freeze()  # Only what the step makes is listed.
    try:
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
        alive = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    finally:
        gc.unfreeze()
    return {
        "results": results,
        **left,
        "random": torch.get_rng_state().tolist(),
        "alive": len({each.untyped_storage()._cdata for each in alive}),
    }


def run_plainly(script: Script) -> None:
    script.result = script.run()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_recording_changes_no_result_and_no_lifetime(name: str) -> None:
    plain = outcome(name, run_plainly)
    watched = outcome(name, Script.record)
    assert watched == plain


if __name__ == "__main__":
    total = Names()
    for each in sys.argv[1:] or SCRIPTS:
        mine, true, names = comparison(each)
        same = "same lines" if stacks(each)[0] == stacks(each)[1] else "OTHER LINES"
        print(f"{each:20} {names.right:5} right {len(names.missing):4} missing {len(names.wrong):3} wrong  {same}")
        if sys.argv[1:]:
            print(*names.missing, *[f"WRONG {w}" for w in names.wrong], sep="\n")
            for a, b in zip(*stacks(each)):
                if a != b:
                    print("lines", a, "true", b)
                    break
        total.right += names.right
        total.missing += names.missing
        total.wrong += names.wrong
    print(total.right, len(total.missing), len(total.wrong), total.right / (total.right + len(total.missing)))
