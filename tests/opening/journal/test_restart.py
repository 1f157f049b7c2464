"""A run in a journal, opened at a step, has the same bits from there on as the run itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg.journal
import nncdbg.opening.journal.content as kept_data
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.opening.journal.reproduction import reproducing
from tests.opening.journal.trainings import TRAININGS, bits, opened_at, run_journaled, written

NAMES = [*TRAININGS]
DROPOUT, EVALUATE, SEVERAL, ACCUMULATE = NAMES


@pytest.mark.parametrize("name", NAMES)
def test_writing_a_journal_changes_no_bit(name: str, tmp_path: Path) -> None:
    plain = written(TRAININGS[name], tmp_path / "run.db").debugger(statistics=False)
    plain.run()
    journaled = run_journaled(TRAININGS[name], tmp_path / "run.db", checkpoint_every="3")
    assert journaled.outputs is not None
    assert plain.outputs is not None
    assert bits(journaled.outputs) == bits(plain.outputs)
    assert bits(journaled.states) == bits(plain.states)
    assert not journaled.control.machine.problems


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", ["1", "3", "1000"])
def test_restart_at_each_step_is_bit_equal(name: str, every: str, tmp_path: Path) -> None:
    """N12: losses, results of evaluations and states, from each step of the run on."""
    path = tmp_path / "run.db"
    whole = run_journaled(TRAININGS[name], path, checkpoint_every=every)
    assert whole.outputs is not None
    for step in range(TRAININGS[name].steps + 1):
        opened = opened_at(f"{path}@{step}")
        debugger = opened.debugger(statistics=False)
        with reproducing(opened, debugger) as reproduction:
            debugger.run()
        assert debugger.outputs is not None
        assert bits(debugger.outputs) == bits(whole.outputs), step
        assert bits(debugger.states) == bits(whole.states), step
        assert reproduction is not None
        assert not reproduction.difference


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("allocator", ["debug", "plain", "arena", "poison"])
def test_restart_with_each_allocator(name: str, allocator: str, tmp_path: Path) -> None:
    """N12: those that reuse memory compute the steps before again."""
    path, training = tmp_path / "run.db", TRAININGS[name]
    whole = run_journaled(training, path, checkpoint_every="4", allocator=allocator)
    assert whole.outputs is not None
    debugger = opened_at(f"{path}@{training.steps // 2}").debugger(statistics=False)
    assert debugger.loaded.allocation.name == allocator
    assert len(debugger.control.stack) == 2
    debugger.run()
    assert debugger.outputs is not None
    assert bits(debugger.outputs) == bits(whole.outputs)


def test_restart_of_a_run_with_states_in_place(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    whole = run_journaled(TRAININGS[DROPOUT], path, checkpoint_every="4", in_place_states=True)
    plain = run_journaled(TRAININGS[DROPOUT], tmp_path / "plain.db", checkpoint_every="4")
    with nncdbg.journal.open(path) as one, nncdbg.journal.open(tmp_path / "plain.db") as other:
        # At the end, the allocator has freed the states.
        for a, b in zip(one.checkpoints()[:-1], other.checkpoints()[:-1], strict=True):
            assert one.read(a).tensors.hashes == other.read(b).tensors.hashes
    debugger = opened_at(f"{path}@9").debugger(statistics=False)
    debugger.run()
    assert whole.outputs is not None
    assert plain.outputs is not None
    assert debugger.outputs is not None
    assert bits(debugger.outputs) == bits(whole.outputs) == bits(plain.outputs)


@pytest.mark.parametrize("name", NAMES)
def test_step_back_across_the_start_of_the_step(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[name], path, checkpoint_every="5")
    there = opened_at(f"{path}@11").debugger()
    before = bits(there.states)
    tick = there.timeline.tick
    for _ in range(3):
        there.step_back_into()
    assert there.timeline.tick == tick - 3
    assert there.frames[0].iteration < 11
    there.go_to(tick)
    assert bits(there.states) == before
    start = opened_at(f"{path}@0").debugger()
    assert start.timeline.tick < tick
    there.go_to(start.timeline.tick)
    assert bits(there.states) == bits(start.states)
    there.restart()
    assert there.timeline.tick == 0


def test_step_back_uses_the_nearest_checkpoint_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[DROPOUT], path, checkpoint_every="2")
    debugger = opened_at(f"{path}@18").debugger()
    of_step = debugger.timeline.tick // 18
    debugger.go_to(debugger.timeline.tick - 1)
    assert debugger.timeline.replayed < 3 * of_step
    debugger.reverse_step_out()
    assert len(debugger.control.stack) == 1
    debugger.go_to(0)


def test_reverse_continue_crosses_the_start_of_the_step(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[DROPOUT], path, checkpoint_every="4")
    debugger = opened_at(f"{path}@7").debugger()
    debugger.break_at(graph="train")
    stop = debugger.reverse_continue()
    assert stop.reason == "breakpoint"
    assert debugger.frames[1].iteration == 6


def test_places_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[SEVERAL], path)
    with nncdbg.journal.open(path) as journal:
        assert journal.run().steps == 18
        assert journal.run().status == "ended"
        assert journal.tracks() == [
            ("l", "train"),
            ("accuracy", "test"),
            ("right", "test"),
            ("train.l", "train"),
        ]
        assert journal.values(None, "accuracy", "test")[0].tolist() == [2, 5]
        assert journal.steps()["epoch"].tolist() == [0] * 3 + [1] * 3 + [2] * 6 + [3] * 6
    assert opened_at(f"{path}@epoch:2").debugger().frames[0].iteration == 0
    assert opened_at(f"{path}@epoch:1").debugger().frames[0].iteration == 3
    assert opened_at(f"{path}#1@7").debugger().frames[0].iteration == 1


def test_the_last_checkpoint_has_the_final_states(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    debugger = run_journaled(TRAININGS[EVALUATE], path)
    with nncdbg.journal.open(path) as journal:
        tensors = journal.read(journal.checkpoints()[-1]).tensors
        assert tensors["state/w"].tobytes() == debugger.states["w"].tobytes()
        assert tensors["moment/m"].tobytes() == debugger.states["m"].tobytes()


def test_values_are_the_outputs(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    debugger = run_journaled(TRAININGS[EVALUATE], path)
    assert debugger.outputs is not None
    with nncdbg.journal.open(path) as journal:
        assert journal.values(None, "l")[1].tolist() == debugger.outputs["l"].tolist()
        assert journal.values(None, "right", "test")[1].tolist() == debugger.outputs["right"].tolist()


def test_a_moved_program_and_its_data_are_not_needed(tmp_path: Path) -> None:
    """P9: the journal has the text of the program, with its comments, and the data."""
    path = tmp_path / "run.db"
    whole = run_journaled(TRAININGS[DROPOUT], path)
    path.with_suffix(".nnc").unlink()
    opened = opened_at(f"{path}@3")
    assert "# a stream of its own for each step" in "\n".join(opened.program.as_listing().lines)
    debugger = opened.debugger()
    debugger.run()
    assert debugger.outputs is not None
    assert whole.outputs is not None
    assert bits(debugger.outputs) == bits(whole.outputs)


def test_a_large_input_in_a_file_is_kept_by_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_data, "LARGE", 100)
    path, training = tmp_path / "run.db", TRAININGS[DROPOUT]
    np.save(tmp_path / "x.npy", training.inputs["x"])
    monkeypatch.chdir(tmp_path)
    whole = run_journaled(training, path, inputs={"x": "x.npy", "t": training.inputs["t"]})
    monkeypatch.chdir("/")
    debugger = opened_at(f"{path}@7").debugger()
    debugger.run()
    assert whole.outputs is not None
    assert debugger.outputs is not None
    assert bits(debugger.outputs) == bits(whole.outputs)
    with nncdbg.journal.open(path) as journal:
        assert "input/t" in journal.read(journal.checkpoints()[0]).tensors
        assert "input/x" not in journal.read(journal.checkpoints()[0]).tensors
    np.save(tmp_path / "x.npy", training.inputs["x"] + 1)
    with pytest.raises(LoadError, match=r"the input %x of run 1 is in .*x\.npy, which has changed"):
        opened_at(f"{path}@7").debugger()


BAD = """
run.db            | run.db is a journal: name a step
run.db@21         | run 1 has no step 21
run.db@epoch:9    | run 1 has no epoch 9
run.db@nan        | run 1 has no NaN or Inf in its 1 tracked values
run.db#2@1        | has no run 2
run.db#x@1        | the run "x" is not a number from 1
run.db#0@1        | the run "0" is not a number from 1
run.db@-1         | "@-1" is not a step
run.db@epoch      | "@epoch" is not a step
run.db@           | "@" is not a step
gone.db@1         | there is no file gone.db
text.db@1         | text.db is not a journal
"""


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_wrong_addresses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, words = map(str.strip, line.split("|"))
    monkeypatch.chdir(tmp_path)
    run_journaled(TRAININGS[DROPOUT], tmp_path / "run.db")
    (tmp_path / "text.db").write_text("no journal")
    with pytest.raises(NncdbgError) as caught:
        opened_at(address)
    assert words in caught.value.message


@pytest.mark.parametrize(("field", "value"), [("seed", 3), ("inputs", {"x": "zeros"}), ("steps", 4)])
def test_settings_of_the_run_stay(field: str, value: object, tmp_path: Path) -> None:
    run_journaled(TRAININGS[DROPOUT], tmp_path / "run.db")
    with pytest.raises(UsageError, match="has the inputs and settings of its run"):
        opened_at(f"{tmp_path / 'run.db'}@3", **{field: value})
