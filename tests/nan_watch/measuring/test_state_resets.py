"""P6: the gate `state-reset` of the watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import watch_run
from nncdbg.terminal.main import main
from tests.engine.observers.test_state_resets import TEXT, X, resetting
from tests.presence import present


def watched(text: str, gate: str = "nan,state-reset", **options: Any) -> nncdbg.Report:
    return nncdbg.watch(nncdbg.parse(text), {"x": X}, fail_on=gate, **options)


@pytest.mark.parametrize("state", ["m", "v", "step"])
def test_a_reset_trips_the_gate_at_its_update(state: str) -> None:
    """P6: the reset of the fourth step is reported with the name of the state, and the run continues."""
    report = watched(resetting(state))
    first = report.findings[0]
    assert (first.kind, first.op, first.value, first.trips) == ("state-reset", "update", state, True)
    assert str(first.at_step) == "step 3, epoch 0"
    assert f"the optimizer's state %{state} is reset" in first.evidence
    assert first.calls[-1].graph == "run"
    assert report.exit_code == 1
    assert report.ops == nncdbg.watch(nncdbg.parse(resetting(state)), {"x": X}).ops


def test_without_the_gate_a_reset_is_no_finding() -> None:
    assert not nncdbg.watch(nncdbg.parse(resetting("m")), {"x": X}).findings


def test_states_that_begin_at_0_and_other_states_are_no_resets() -> None:
    report = watched(TEXT)
    assert (report.ok, report.findings) == (True, [])


def test_the_gate_changes_no_bit_of_the_training() -> None:
    program = nncdbg.parse(resetting("m"))
    plain = nncdbg.run(program, {"x": X})
    debugger = nncdbg.Debugger(program, {"x": X})
    assert not watch_run(debugger, Gates.of("state-reset")).ok
    assert present(debugger.outputs)["l"].tobytes() == plain["l"].tobytes()


def test_a_program_watched_with_the_gate_is_watched_again_without_it() -> None:
    """The compiled code of a program without findings is used again."""
    program = nncdbg.parse(TEXT)
    for gate, trips in (("state-reset", False), ("nan", False), ("state-reset", False)):
        assert bool([*nncdbg.watch(program, {"x": X}, fail_on=gate).tripping]) == trips
    resets = nncdbg.parse(resetting("m"))
    for gate, trips in (("nan", False), ("state-reset", True), ("nan", False)):
        assert bool([*nncdbg.watch(resets, {"x": X}, fail_on=gate).tripping]) == trips


def test_an_allocator_that_reuses_old_states_is_not_checked() -> None:
    report = watched(resetting("m"), allocator="arena")
    assert report.unchecked == ["state-reset: the allocator arena reuses the memory of old states"]


def test_the_command_has_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.nnc").write_text(resetting("m"))
    np.save(tmp_path / "x.npy", X)
    words = [
        "watch",
        str(tmp_path / "t.nnc"),
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--fail-on",
        "state-reset",
    ]
    junit = tmp_path / "junit.xml"
    assert main([*words, "--json", "--junit", str(junit)]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "state-reset"
    assert 'name="state-reset"' in junit.read_text()
    assert main(words) == 1
    assert "1. reset of an optimizer's state: %m at update" in capsys.readouterr().out
