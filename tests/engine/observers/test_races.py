"""The kind `race`: a program stops after a statement that its schedule does not order with another one."""

from pathlib import Path

import pytest

import nncdbg

EXAMPLE = Path(__file__).parents[3] / "examples" / "two_streams.nnc"


def test_stops_after_the_second_statement_of_a_race() -> None:
    debugger = nncdbg.Debugger(EXAMPLE)
    debugger.uncatch()
    debugger.catch("race")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 11)
    assert "s1 writes %scaled, and s0 reads %scaled; no event orders them" in stop.detail
    assert debugger.run().reason == "end"
    assert debugger.reverse_continue().line == 11


def test_a_race_is_not_reported_where_it_is_not_caught() -> None:
    debugger = nncdbg.Debugger(EXAMPLE)
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("caught", [(), ("race",)])
def test_catching_races_changes_no_bit(caught: tuple[str, ...]) -> None:
    plain, debugger = nncdbg.Debugger(EXAMPLE), nncdbg.Debugger(EXAMPLE)
    debugger.uncatch()
    if caught:
        debugger.catch(*caught)
    plain.run()
    while debugger.run().reason != "end":
        pass
    assert plain.outputs is not None
    assert debugger.outputs is not None
    assert plain.outputs["y"].tobytes() == debugger.outputs["y"].tobytes()
