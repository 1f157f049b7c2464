"""The player: legal orders of a schedule as programs, and what statements read in them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.comparison.launches import PlacedPlan, launches
from nncdbg.comparison.schedule_problems import ScheduleProblem
from nncdbg.engine.memory.plan_file import parse_plan
from nncdbg.engine.schedules.player import SchedulePlayer, played
from nncdbg.engine.schedules.races import Ordering
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.engine.schedules.validation import margins_of, validate, with_margins
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.memory.comparison import memory_plan
from nncdbg.nan_watch.schedules.order_search import observed
from tests.engine.schedules.random_schedules import layered, random_schedule
from tests.engine.schedules.test_planted import KINDS, wrong
from tests.laws import examples
from tests.presence import present

NUMBERS = np.random.default_rng(0)
INPUTS = {name: NUMBERS.normal(size=64).astype(np.float32) for name in ("x", "y")}
PLANTED = 50
ORDERS = 50


@cache
def correct_schedule(seed: int) -> tuple[Program, PlacedPlan | None]:
    """Return a program in which each value is read, with a schedule, and for odd seeds a memory plan."""
    program = Program.parse(layered(seed, joined=True))
    plan = memory_plan(program, INPUTS) if seed % 2 else None
    return with_schedule(program, streams=2 + seed % 4, plan=plan), plan


@examples(60)
@given(st.integers(0, 400), st.integers(0, 10_000))
def test_legal_orders_of_a_correct_schedule_give_equal_bits(program_seed: int, seed: int) -> None:
    program, plan = correct_schedule(program_seed)
    permuted = played(program, plan, seed=seed)
    assert "Remains" not in permuted.text()
    expected, found = observed(program, INPUTS), observed(permuted, INPUTS)
    assert found.values == expected.values
    assert Program.parse(permuted.text()) == permuted


@pytest.mark.parametrize("seed", range(100))
def test_orders_are_legal_and_equal_for_equal_seeds(seed: int) -> None:
    """A20: a seed replays its order, and no order breaks happens-before."""
    program = random_schedule(seed)
    player = SchedulePlayer(program)
    issued = launches(program)
    ordering = Ordering(issued)
    for number in range(5):
        orders = player.drawn(number)
        assert orders == player.drawn(number)
        assert player.program(orders) == played(program, seed=number)
        (order,) = orders
        place = {at: number for number, at in enumerate(order)}
        assert sorted(order) == list(range(len(issued)))
        for second in range(len(issued)):
            for first in range(len(issued)):
                assert not ordering.before(first, second) or place[first] < place[second]


@pytest.mark.parametrize("seed", range(60))
def test_each_race_has_an_order_that_reverses_it(seed: int) -> None:
    program = random_schedule(seed, statements=15)
    player = SchedulePlayer(program)
    for race in (each for each in validate(program).problems if each.kind == "race"):
        orders = player.showing(race)
        assert any(player.outcome(orders))
        assert "nncdbg.Remains" in player.program(orders).text()


def visible(program: Program, plan: PlacedPlan | None, most: int = ORDERS) -> bool:
    """Return whether one of the first orders has another value than the program without a schedule."""
    player = SchedulePlayer(program, plan)
    expected = observed(player.reference(), INPUTS)
    runs = (observed(player.program(player.drawn(seed)), INPUTS) for seed in range(most))
    return any(expected.first_difference(run) is not None for run in runs)


@pytest.mark.parametrize("kind", KINDS)
def test_planted_faults_show_within_50_orders(kind: str) -> None:
    """A12, A13: at least 95 % of the planted faults change a value."""
    found, shown = 0, 0
    for seed in range(10_000, 10_600):
        program, plan = correct_schedule(seed)
        margins = margins_of(program)
        names = [node.outputs[0].name for node in program.graph.nodes]
        if not any(each.waits for each in margins.values()):
            continue
        KINDS[kind](margins, random.Random(seed), names)
        planted = with_margins(program, margins)
        if not wrong(launches(planted, plan)):
            continue
        found += 1
        shown += visible(planted, plan)
        if found == PLANTED:
            assert shown >= 0.95 * PLANTED, shown
            return
    raise AssertionError(f"only {found} of the planted faults are faults")


TYPES = "%x: f32[2,2]"


def text_of(body: str, head: str = "") -> Program:
    return Program.parse(
        f"#nncdbg 1\nopset 18\n{head}\ngraph @main({TYPES}) -> (%y: f32[2,2]) {{\n{body}\n}}\n"
    )


def race_of(program: Program, plan: PlacedPlan | None = None) -> ScheduleProblem:
    """Return the first race of a program."""
    return next(each for each in validate(program, plan).problems if each.kind == "race")


def run(program: Program, **inputs: Any) -> Any:
    x = {"x": np.array([[-1, 2], [3, 4]], np.float32), **inputs}
    debugger = nncdbg.Debugger(program, x)
    assert debugger.run().reason == "end"
    return present(debugger.outputs)["y"]


def test_early_read_of_a_result_by_the_host_is_poison() -> None:
    program = text_of("  %y: f32[2,2] = Relu(%x) | s0\n  return %y | host")
    race = race_of(program)
    permuted = played(program, race=race)
    assert np.isnan(run(permuted)).all()
    assert [node.op for node in permuted.graph.nodes] == ["nncdbg.Remains", "Relu", "Identity"]
    assert permuted.graph.nodes[0].comment == "return reads %y before it is written"


PLAN = """{"nncdbg_plan": 1, "graphs": {"main": {
  "a": {"offset": 0, "size": 16}, "b": {"offset": 8, "size": 16}, "y": {"offset": 64, "size": 16}}}}"""


def test_overwritten_bytes_are_those_of_the_other_value() -> None:
    """A7: half of the bytes of %a are reused for %b while %a is read on another stream."""
    body = (
        "  %a: f32[2,2] = Relu(%x) | s0 record e1\n  %y: f32[2,2] = Neg(%a) | s1 wait e1 record e2\n"
        "  %b: f32[2,2] = Abs(%x) | s0 record e3\n  return %y | host wait e2 e3"
    )
    program = text_of(body)
    plan = parse_plan(PLAN, program)
    race = race_of(program, plan)
    assert race.cause == "reuse"
    permuted = played(program, plan, race=race)
    assert run(permuted).tolist() == [[-0.0, -2.0], [-1.0, -2.0]]
    assert run(played(program, plan)).tolist() == [[-0.0, -2.0], [-3.0, -4.0]]
    (remains,) = (node for node in permuted.graph.nodes if node.op == "nncdbg.Remains")
    assert remains.comment == "Neg reads %a after its memory was used for %b"


def test_freed_bytes_are_poison() -> None:
    body = (
        "  %a: f32[2,2] = Relu(%x) | s0 record e1\n  %y: f32[2,2] = Neg(%a) | s1 wait e1 record e2\n"
        "  %b: f32[2,2] = Abs(%x) | s0 free %a\n  return %y | host wait e2"
    )
    program = text_of(body)
    race = next(each for each in validate(program).problems if each.cause == "free")
    assert np.isnan(run(played(program, race=race))).all()


def test_states_keep_what_was_updated_last() -> None:
    body = (
        "  %new: f32[2,2] = Relu(%x) | s0\n  update %w = %new | s0 record e1\n"
        "  %y: f32[2,2] = Add(%w, %x) | s1 record e2\n  return %y | host wait e1 e2"
    )
    program = text_of(body, "state %w: f32[2,2] = [[1.0,1.0],[1.0,1.0]]")
    race = race_of(program)
    assert run(played(program)).tolist() == [[-1.0, 4.0], [6.0, 8.0]]
    assert run(played(program, race=race)).tolist() == [[0.0, 3.0], [4.0, 5.0]]


LAYERS = """#nncdbg 1
opset 18

graph @main(%x: f32[2,2]) -> (%y: f32[2,2]) {
  %h: f32[2,2] = @layer(%x) | s0 record e1
  %y: f32[2,2] = @layer(%h) | s0 wait e1 record e2
  return %y | host wait e2
}

graph @layer(%p: f32[2,2]) -> (%q: f32[2,2]) | s0 begin s1 {
  %two: f32[] = 2.0
  %a: f32[2,2] = Mul(%p, %two) | s0 record e11
  %b: f32[2,2] = Neg(%p) | s1 record e12
  %q: f32[2,2] = Sub(%a, %b) | s0
  return %q | s0
}
"""


def test_statements_of_called_graphs_interleave() -> None:
    program = Program.parse(LAYERS)
    player = SchedulePlayer(program)
    names = [node.outputs[0].name for node in player.program(player.issued()).graph.nodes]
    assert names == ["layer/a", "layer/b", "h", "layer.2/a", "layer.2/b", "y"]
    races = [each for each in validate(program).problems if each.kind == "race"]
    assert races
    assert np.array_equal(run(player.program(player.issued())), run(program))
    assert np.isnan(run(player.program(player.showing(races[0])))).all()


BLOCKS = """#nncdbg 1
opset 18

graph @main(%x: f32[2,2], %n: i64[]) -> (%y: f32[2,2]) {
  %go: bool[] = Greater(%n, 2) | s0 record e1
  if %go @more | host wait e1 {
    %a: f32[2,2] = Relu(%x) | s0
    %b: f32[2,2] = Neg(%x) | s1 record e2
    %c: f32[2,2] = Add(%a, %b) | s0 WAIT
    yield %c
  } else @less {
    %d: f32[2,2] = Abs(%x) | s0
    yield %d
  } -> (%z: f32[2,2])
  while @twice (%s: f32[2,2] = %z) times %n {
    %s.1: f32[2,2] = Add(%s, %x) | s1
    next %s = %s.1
  } -> (%y: f32[2,2] = %s)
  return %y
}
"""


@pytest.mark.parametrize("number", [1, 3])
def test_blocks_of_control_flow_keep_their_place(number: int) -> None:
    program = Program.parse(BLOCKS.replace("WAIT", "wait e2"))
    for seed in range(10):
        assert np.array_equal(run(played(program, seed=seed), n=number), run(program, n=number))


def test_races_inside_a_branch_show() -> None:
    program = Program.parse(BLOCKS.replace(" WAIT", ""))
    race = next(
        each for each in validate(program).problems if each.kind == "race" and each.second.site[0][1:]
    )
    assert np.isnan(run(played(program, race=race), n=3)).all()
    assert not np.isnan(run(played(program, race=race), n=1)).any()


def test_random_numbers_do_not_depend_on_the_order() -> None:
    body = (
        "  %a: f32[2,2] = RandomNormalLike(%x) | s0\n  %b: f32[2,2] = RandomNormalLike(%x) | s1 record e1\n"
        "  %y: f32[2,2] = Sub(%a, %b) | s0 wait e1 record e2\n  return %y | host wait e2"
    )
    program = text_of(body)
    plays = [played(program, seed=seed) for seed in range(20)]
    assert len({tuple(node.outputs[0].name for node in each.graph.nodes) for each in plays}) == 2
    assert {run(each).tobytes() for each in plays} == {run(program).tobytes()}


def test_random_numbers_of_a_part_do_not_depend_on_the_order() -> None:
    body = (
        "  %a: f32[2,2] = RandomNormalLike(%x) | s0\n  %y: f32[2,2] = RandomNormalLike(%x) | s1 record e1\n"
        "  return %y | host wait e1"
    )
    program = text_of(body)
    found = set()
    for seed in range(10):
        debugger = nncdbg.Debugger(
            played(program, seed=seed), {"x": np.ones((2, 2), np.float32)}, outputs=["y"]
        )
        debugger.run()
        found.add(present(debugger.outputs)["y"].tobytes())
    assert len(found) == 1


def test_values_of_unknown_size_are_refused() -> None:
    program = Program.parse(
        "#nncdbg 1\nopset 18\ngraph @main(%x: f32[N]) -> (%y: f32[N]) {\n  %a: f32[N] = Relu(%x) | s0\n"
        "  %y: f32[N] = Neg(%a) | s1 record e1\n  return %y | host wait e1\n}\n"
    )
    race = race_of(program)
    with pytest.raises(UsageError, match="Neg reads %a before it is written, and its size is unknown"):
        played(program, race=race)


def test_step_back_breakpoints_and_statistics_work_in_a_played_program() -> None:
    """A13: with statistics on, the planted race still shows."""
    program = nncdbg.load("examples/two_streams.nnc")
    race = race_of(program)
    debugger = nncdbg.Debugger(played(program, race=race), seed=1, statistics=True, allocator="debug")
    debugger.catch("nan")
    stop = debugger.run()
    assert stop.node is not None
    assert stop.node.op == "nncdbg.Remains"
    debugger.uncatch()
    debugger.break_at(op="Softmax")
    assert debugger.run().reason == "breakpoint"
    assert debugger.step_back().reason == "step"
    debugger.run()
    debugger.run()
    assert np.isnan(present(debugger.outputs)["y"]).all()


TWO_GRAPHS = """#nncdbg 1
opset 18
state %w: f32[2,2] = [[1.0,1.0],[1.0,1.0]]

graph @first(%x: f32[2,2]) -> (%y: f32[2,2]) {
  %a: f32[2,2] = Relu(%x) | s0 record e1
  %y: f32[2,2] = Neg(%a) | s1 wait e1 record e2
  update %w = %y | s1 record e3
  return %y | host wait e3
}

graph @second(%x: f32[2,2]) -> (%z: f32[2,2]) {
  %a: f32[2,2] = Abs(%x) | s0 record e1
  %b: f32[2,2] = Neg(%x) | s0
  %z: f32[2,2] = Add(%a, %w) | s1 wait e1 record e2
  return %z | host wait e2
}

run @first for %x
run @second for %x
"""


def test_graphs_of_several_runs_have_separate_values() -> None:
    program = Program.parse(TWO_GRAPHS)
    places = '"graphs": {"first": {"a": {"offset": 0, "size": 16}, "y": {"offset": 16, "size": 16}},'
    places += '"second": {"a": {"offset": 16, "size": 16}, "b": {"offset": 16, "size": 16}}}'
    plan = parse_plan(f'{{"nncdbg_plan": 1, {places}}}', program)
    inputs = {"x": np.array([[[-1, 2], [3, 4]]], np.float32)}
    race = next(each for each in validate(program, plan).problems if each.cause == "reuse")
    expected = observed(played(program), inputs)
    found = observed(played(program, plan), inputs)
    assert expected.first_difference(found) == "z"
    assert expected.first_difference(observed(played(program, plan, race=race), inputs)) is None
