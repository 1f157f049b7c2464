"""Times of statements: what is counted, what is not, and that measuring changes no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.observers.statement_times import (
    LATEST,
    Durations,
    TimedBlock,
    TimedStatement,
)

EXAMPLES = (
    "first_steps", "refine_loop", "attention", "overflow_f16", "nan_softmax", "train_mlp", "uninitialized"
)  # fmt: skip
ALLOCATORS = ("debug", "arena", "poison", "plain")


def _debugger(repository: Path, name: str, allocator: str = "plain") -> nncdbg.Debugger:
    steps = 3 if name.startswith("train") else None
    program = nncdbg.load(str(repository / "examples" / f"{name}.nnc"), steps=steps)
    return nncdbg.Debugger(program, allocator=allocator)


def _to_the_end(debugger: nncdbg.Debugger) -> dict[str, bytes]:
    debugger.uncatch()
    while debugger.run().reason != "end":
        pass
    return {name: np.asarray(value).tobytes() for name, value in (debugger.outputs or {}).items()}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_measuring_changes_no_bit_of_an_output(repository: Path, name: str, allocator: str) -> None:
    plain, timed = (_debugger(repository, name, allocator) for _ in range(2))
    timed.times.measure(True)
    assert _to_the_end(plain) == _to_the_end(timed)
    assert timed.times.executed > 0
    assert plain.times.statements == {}


def test_off_the_instructions_are_those_of_a_run_without_measurement(repository: Path) -> None:
    debugger = _debugger(repository, "first_steps")
    kernels = [each[0] for each in debugger.loaded.codes[0].instructions]
    listeners = len(debugger.control.machine.listeners)
    debugger.times.measure(True)
    assert [each[0] for each in debugger.loaded.codes[0].instructions] != kernels
    assert len(debugger.control.machine.listeners) == listeners + 1
    debugger.times.measure(False)
    assert len(debugger.control.machine.listeners) == listeners
    names = [getattr(each[0], "__qualname__", "") for each in debugger.loaded.codes[0].instructions]
    assert not [name for name in names if "StatementTimes" in name]


def test_each_statement_is_counted_once_per_execution(repository: Path) -> None:
    debugger = _debugger(repository, "refine_loop")
    debugger.times.measure(True)
    _to_the_end(debugger)
    times = debugger.times
    loop = [each for (path, _), each in times.statements.items() if len(path) > 1]
    iterations = times.blocks["main", 2, 0].iterations.calls
    assert {each.kernel.calls for each in loop} == {iterations + 1}, "the last iteration ends at `break`"
    assert times.executed == sum(
        each.kernel.calls for each in times.statements.values() if each.code.runs_kernel(each.pc)
    )


def test_the_time_of_a_call_is_the_sum_of_the_kernels_inside(repository: Path) -> None:
    debugger = _debugger(repository, "train_mlp")
    debugger.times.measure(True)
    _to_the_end(debugger)
    times = debugger.times
    kernels = [each for each in times.statements.values() if each.code.runs_kernel(each.pc)]
    assert times.kernels == sum(each.kernel.total for each in kernels)
    assert times.around == sum(each.around for each in kernels)
    for path, block in times.blocks.items():
        inside = [each for (at, _), each in times.statements.items() if at == path]
        assert block.inside.total == sum(each.kernel.total for each in inside), path


def test_going_back_measures_no_replay_and_counts_what_runs_again(repository: Path) -> None:
    debugger = _debugger(repository, "first_steps", "arena")
    debugger.times.measure(True)
    debugger.step_over()
    debugger.step_over()
    calls = {place: each.kernel.calls for place, each in debugger.times.statements.items()}
    debugger.step_back()
    assert {place: each.kernel.calls for place, each in debugger.times.statements.items()} == calls
    debugger.step_over()
    assert debugger.times.statements[("main",), 1].kernel.calls == calls[("main",), 1] + 1


def test_a_pause_is_not_part_of_a_call(repository: Path) -> None:
    import time

    debugger = _debugger(repository, "first_steps")
    debugger.times.measure(True)
    debugger.step_into()
    time.sleep(0.2)
    debugger.step_out()
    call = debugger.times.statements[("main",), 0].kernel
    assert call.calls == 1
    assert 0 < call.total < 200_000_000


def test_statements_of_a_micro_program_are_not_measured(repository: Path) -> None:
    debugger = _debugger(repository, "first_steps")
    debugger.times.measure(True)
    debugger.step_over()
    debugger.step_over()
    while (debugger.stop.node.op if debugger.stop.node else "") != "Softmax":
        debugger.step_into()
    before = debugger.times.executed
    debugger.step_into(micro=True)
    assert debugger.frames[0].code.formula is not None
    debugger.step_out()
    assert debugger.times.executed == before
    assert all(each.code.formula is None for each in debugger.times.statements.values())


def test_blocks_of_the_timeline_contain_their_statements(repository: Path) -> None:
    debugger = _debugger(repository, "train_mlp")
    debugger.times.timeline = []
    debugger.times.measure(True)
    _to_the_end(debugger)
    events = debugger.times.timeline
    steps = [each for each in events if isinstance(each, TimedBlock) and each.iteration is not None]
    assert [each.iteration for each in steps] == [0, 1, 2]
    for each in events:
        assert each.begin <= each.end
        if isinstance(each, TimedStatement) and each.kernel is not None:
            assert each.begin <= each.kernel[0] <= each.kernel[1] <= each.end
        if isinstance(each, TimedStatement) and each.code.path[0] == "train":
            assert sum(step.begin <= each.begin and each.end <= step.end for step in steps) == 1


def test_the_time_of_a_slow_kernel_is_counted_at_its_statement_only(tmp_path: Path) -> None:
    library = tmp_path / "slow.py"
    library.write_text(
        "import time\nimport nncdbg\nfrom nncdbg.engine.ops.types import same_as\n\n\n"
        '@nncdbg.op("timing.Slow", infer=same_as(0))\n'
        "def slow(xp, x):\n    time.sleep(0.05)\n    return x + 1\n"
    )
    nncdbg.load_op_library(str(library))
    text = """#nncdbg 1
graph @main(%x: f32[4]) -> (%c: f32[4]) {
  %a = Neg(%x)
  %b = timing.Slow(%a)
  %c = Neg(%b)
  return %c
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), allocator="plain")
    debugger.times.measure(True)
    _to_the_end(debugger)
    first, slow, last = [debugger.times.statements[("main",), pc].kernel.total for pc in range(3)]
    assert slow >= 50_000_000
    assert first < slow / 10
    assert last < slow / 10


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=50))
def test_durations_are_those_of_a_list(given: list[int]) -> None:
    durations = Durations()
    for each in given:
        durations.add(each)
    assert (durations.calls, durations.total, durations.least) == (len(given), sum(given), min(given))
    assert durations.median == round(float(np.median(given)))


def test_the_median_is_that_of_the_latest_calls() -> None:
    durations = Durations()
    for each in range(3 * LATEST):
        durations.add(each)
    assert durations.median == round(3 * LATEST - LATEST / 2 - 0.5)
    assert len(durations.latest) == LATEST


def test_the_cost_of_measuring_is_measured_and_counted_nowhere(repository: Path) -> None:
    debugger = _debugger(repository, "first_steps")
    assert debugger.times.cost() == (0, 0), "nothing was measured"
    debugger.times.measure(True)
    _to_the_end(debugger)
    before = debugger.times.executed, debugger.times.kernels, debugger.times.around
    added, empty = debugger.times.cost()
    assert 0 < empty < added < 50_000
    assert (debugger.times.executed, debugger.times.kernels, debugger.times.around) == before
