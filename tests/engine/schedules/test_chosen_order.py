"""A program in an order of its schedule, chosen by a seed: the same order as `nncdbg races` plays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import UsageError
from nncdbg.ir.records import Location
from nncdbg.nan_watch.commands.races import main as races

EXAMPLES = Path(__file__).parents[3] / "examples"
TWO_STREAMS = EXAMPLES / "two_streams.nnc"


@pytest.mark.parametrize("seed", range(6))
def test_an_order_is_the_one_that_races_writes(seed: int, tmp_path: Path) -> None:
    """A20: a seed replays the same order, from `nncdbg races` and from `in_order`."""
    written = tmp_path / "order.nnc"
    races([str(TWO_STREAMS), "--order", str(seed), "-o", str(written)])
    ordered = nncdbg.in_order(nncdbg.load(TWO_STREAMS), order=seed)
    assert ordered.text(locations=False) == nncdbg.load(written).text(locations=False)


def test_statements_of_an_order_are_located_at_the_lines_of_the_text() -> None:
    ordered = nncdbg.in_order(nncdbg.load(TWO_STREAMS), 2)
    found = {node.outputs[0].name: node.location for node in ordered.graph.nodes}
    assert found.pop("scaled.stale") is None
    lines = {"shift": 8, "scale": 9, "scaled": 10, "sum": 11, "y": 12}
    assert found == {name: Location(str(TWO_STREAMS), line) for name, line in lines.items()}


def test_a_breakpoint_on_a_line_of_the_text_stops_the_order_there() -> None:
    ordered = nncdbg.in_order(nncdbg.load(TWO_STREAMS), 2)
    debugger = nncdbg.Debugger(ordered, inputs={"x": np.ones((4, 8), np.float32)})
    debugger.break_at(source=(str(TWO_STREAMS), 10))
    debugger.run()
    frame = debugger.control.stack[-1]
    assert frame.code.nodes[frame.pc].outputs[0].name == "scaled"


def test_a_program_without_a_schedule_has_no_order() -> None:
    with pytest.raises(UsageError, match="first_steps.nnc has no schedule"):
        nncdbg.in_order(nncdbg.load(EXAMPLES / "first_steps.nnc"), 1)
