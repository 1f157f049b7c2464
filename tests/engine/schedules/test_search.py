"""Search over the orders of a schedule: outcomes, hidden state, sync points, replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.launches import launches
from nncdbg.engine.ops.declaration import declared_together
from nncdbg.engine.schedules.player import SchedulePlayer
from nncdbg.engine.schedules.races import Ordering
from nncdbg.ir.records import Program
from nncdbg.nan_watch.schedules.order_search import (
    ScheduleSearch,
    observed,
    replica_differences,
    smallest_syncs,
)
from tests.engine.schedules.random_schedules import random_schedule

INPUTS = {"x": np.arange(1, 9, dtype=np.float32)}


def all_orders(count: int, ordering: Ordering) -> Iterator[tuple[int, ...]]:
    """Yield every legal order of a few launches."""
    for order in itertools.permutations(range(count)):
        place = {at: number for number, at in enumerate(order)}
        pairs = itertools.permutations(range(count), 2)
        if all(place[a] < place[b] for a, b in pairs if ordering.before(a, b)):
            yield order


@pytest.mark.parametrize("seed", range(60))
def test_outcomes_are_the_classes_of_all_orders(seed: int) -> None:
    """Orders with one outcome have equal values, and `outcomes` yields each outcome once."""
    program = random_schedule(seed, statements=5, streams=3)
    player = SchedulePlayer(program)
    (segment,) = player.segments
    count = len(launches(program))
    found = [segment.outcome(order) for order in segment.outcomes()]
    legal = [*all_orders(count, segment.ordering)]
    assert len(found) == len({*found})
    assert {*found} == {segment.outcome(order) for order in legal}
    values: dict[tuple[bool, ...], dict[str, list[int]]] = {}
    for order in legal[:: max(1, len(legal) // 20)]:
        run = observed(player.program((order,)), INPUTS)
        kept = {name: digests for name, digests in run.values.items() if "." not in name}
        assert values.setdefault(segment.outcome(order), kept) == kept


def text_of(body: str) -> Program:
    return Program.parse(f"#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[8]) -> (%y: f32[8]) {{\n{body}\n}}\n")


TWO_RACES = """  %a: f32[8] = Relu(%x) | s0
  %b: f32[8] = Neg(%a) | s1 record e1
  %c: f32[8] = Abs(%x) | s0
  %d: f32[8] = Sqrt(%x) | s0
  %e: f32[8] = Add(%c, %d) | s2 wait e1 record e2
  %y: f32[8] = Add(%e, %b) | s1 wait e2 record e3
  return %y | host wait e3"""


def test_each_outcome_is_played_once() -> None:
    found = ScheduleSearch(text_of(TWO_RACES), None, INPUTS).run(1000)
    assert found.complete
    assert found.outcomes == found.total == len(found.differing) + 1
    assert {each.name for each in found.differing} == {"b", "e"}
    assert all(each.reversed for each in found.differing)


def test_search_without_all_outcomes_says_so() -> None:
    found = ScheduleSearch(text_of(TWO_RACES), None, INPUTS).run(1)
    assert found.total is None
    assert not found.complete


def test_smallest_set_of_sync_points() -> None:
    """A14: the race of %b needs a point before it, and those of %e one more."""
    program = text_of(TWO_RACES)
    search = ScheduleSearch(program, None, INPUTS)
    places = smallest_syncs(search)
    assert [(each.after[1], each.before[1]) for each in places] == [(0, 1), (3, 4)]
    for syncs in ([places[0]], [places[1]]):
        points = [each.point for each in syncs]
        assert ScheduleSearch(program, None, INPUTS, syncs=points).run(1000).differing
    points = [each.point for each in places]
    assert not ScheduleSearch(program, None, INPUTS, syncs=points).run(1000).differing


def test_hidden_state_of_a_kernel_is_named() -> None:
    calls = itertools.count()
    with declared_together():

        @nncdbg.op("com.example.Counted")
        def counted(xp: Any, x: Any) -> Any:
            """x times the number of earlier calls."""
            return x * np.float32(next(calls) % 2)

    body = (
        "  %a: f32[8] = com.example.Counted(%x) | s0 record e1\n"
        "  %b: f32[8] = com.example.Counted(%x) | s1 record e2\n"
        "  %y: f32[8] = Sub(%a, %b) | s0 wait e1 e2 record e3\n  return %y | host wait e3"
    )
    found = ScheduleSearch(text_of(body), None, INPUTS).run(100)
    assert found.complete
    assert found.hidden is not None
    assert found.hidden.name == "a"
    assert found.hidden.reversed == ()


REPLICAS = """#nncdbg 1
opset 18

state %w: f32[4,2] = RandomNormal(seed=1.0, shape=[4,2])
state %g0: f32[4,2] = zeros for %w
state %g1: f32[4,2] = zeros for %w
state %g2: f32[4,2] = zeros for %w
state %g3: f32[4,2] = zeros for %w

graph @step(%x: f32[2,4], %t: f32[2,2]) -> (%n0: f32[4,2], %n1: f32[4,2], %n2: f32[4,2], %n3: f32[4,2]) {
  %one: f32[] = 1.0
  %ten: f32[] = 10.0
  %n0 = @replica(%x, %t, %g0, %one) | s0
  %n1 = @replica(%x, %t, %g1, %one) | s0
  %n2 = @replica(%x, %t, %g2, %one) | s0
  %n3 = @replica(%x, %t, %g3, SCALE) | s0
  update %g0 = %n0, %g1 = %n1, %g2 = %n2, %g3 = %n3 | s0 record e1
  return %n0, %n1, %n2, %n3 | host wait e1
}

graph @replica(%a: f32[2,4], %b: f32[2,2], %g: f32[4,2], %scale: f32[]) -> (%sum: f32[4,2]) {
  %h: f32[2,2] = MatMul(%a, %w) | s0
  %error: f32[2,2] = Sub(%h, %b) | s0
  %d_h: f32[2,2] = Mul(%error, %scale) | s0
  %d_w: f32[4,2] = Gemm(%a, %d_h, transA=1) | s0
  %sum: f32[4,2] = Add(%g, %d_w) | s0
  return %sum | s0
}

run @step for %x, %t batch 2
"""


def test_replicas_are_compared_statement_by_statement() -> None:
    """A15: one of four accumulated gradients is ten times too large after five steps."""
    inputs = {
        "x": np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32),
        "t": np.zeros((10, 2), np.float32),
    }
    search = ScheduleSearch(Program.parse(REPLICAS.replace("SCALE", "%ten")), None, inputs)
    found = replica_differences(search)
    assert (found[0].site, found[0].call, found[0].iteration) == ((("replica",), 2), (("step",), 3), 0)
    assert found[0].ratio == pytest.approx(10)
    (accumulated,) = (each for each in found if each.site == (("replica",), 4) and each.iteration == 4)
    assert accumulated.call == (("step",), 3)
    assert accumulated.ratio == pytest.approx(10, rel=1e-4)
    same = ScheduleSearch(Program.parse(REPLICAS.replace("SCALE", "%one")), None, inputs)
    assert replica_differences(same) == []
