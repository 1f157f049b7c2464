"""A1: the happens-before relation of a schedule equals that of a device that executes it."""

import pytest

from nncdbg.comparison.launches import launches
from nncdbg.engine.schedules.races import Ordering, conflict, races
from nncdbg.ir.records import Program
from tests.engine.schedules.random_schedules import begun_without_end_of, random_schedule


@pytest.mark.parametrize("part", range(8))
def test_order_is_that_of_a_device_on_random_schedules(part: int) -> None:
    """2,000 schedules of up to 40 statements on 5 streams, the host and events that are used again."""
    for seed in range(part * 250, part * 250 + 250):
        issued = launches(random_schedule(seed))
        ordering = Ordering(issued)
        for first in range(len(issued)):
            begun = begun_without_end_of(first, issued)
            found = {at for at in range(len(issued)) if at == first or not ordering.before(first, at)}
            assert found == begun, (seed, first)


@pytest.mark.parametrize("part", range(4))
def test_races_are_all_unordered_pairs(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        issued = launches(random_schedule(seed))
        ordering = Ordering(issued)
        expected = {
            (first, second)
            for second in range(len(issued))
            for first in range(second)
            if not ordering.ordered(first, second)
            and any(conflict(a, b) for a in issued[first].accesses for b in issued[second].accesses)
        }
        assert {(race.first, race.second) for race in races(issued, ordering)} == expected, seed


def order_of(margins: list[str]) -> list[str]:
    """Return the pairs that are ordered, as `0<2`, of statements with these margins."""
    lines = [f"  %v{at}: f32[] = Neg(%x){margin}" for at, margin in enumerate(margins)]
    text = "graph @main(%x: f32[]) -> (%v0: f32[]) {\n" + "\n".join(lines) + "\n  return %v0\n}"
    ordering = Ordering(launches(Program.parse(text)))
    pairs = [(a, b) for b in range(len(margins)) for a in range(b)]
    return [f"{a}<{b}" for a, b in pairs if ordering.before(a, b)]


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        pytest.param([" | s0", " | s1"], [], id="streams"),
        pytest.param([" | s0", " | s0"], ["0<1"], id="one stream"),
        pytest.param([" | s0 record e1", " | s1 wait e1"], ["0<1"], id="event"),
        pytest.param([" | s0 record e1", " | s1 wait e2"], [], id="wrong event"),
        pytest.param([" | s0", " | s1 begin s0", " | s0"], ["0<2"], id="begin"),
        pytest.param([" | s0", " | host", " | s1"], ["1<2"], id="host"),
        pytest.param([" | s0 record e1", " | host wait e1", " | s1"], ["0<1", "0<2", "1<2"], id="host waits"),
        pytest.param([" | s0", "", " | s1"], ["0<1", "0<2", "1<2"], id="no margin"),
        pytest.param([" | s0 record e1", " | s1 record e1", " | s2 wait e1"], ["1<2"], id="A18"),
        pytest.param([" | s1 wait e1", " | s0 record e1"], [], id="waits too early"),
    ],
)
def test_margins_order_statements(margins: list[str], expected: list[str]) -> None:
    assert order_of(margins) == expected
