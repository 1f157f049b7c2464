"""`nncdbg diff FILE#1 FILE#2`: the first step, states and statement that differ between two runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.journal import NewRun, RunWriter

Command = Callable[..., tuple[int, str, str]]


# -- trainings -----------------------------------------------------------------------------------


@pytest.fixture
def trained(command: Command, repository: Path, tmp_path: Path) -> Command:
    """Run 1 of run.db is a training of 40 steps with a checkpoint each 10 steps."""
    shutil.copy(repository / "examples" / "train_mlp.nnc", tmp_path / "train.nnc")
    assert command(*_TRAIN)[0] == 0
    return command


_TRAIN = ("run", "train.nnc", "--steps", "40", "--journal", "run.db", "--checkpoint-every", "10")


def test_a_run_that_is_repeated_is_equal_bit_for_bit(trained: Command) -> None:
    """N12: a restart gives the same losses and states."""
    assert trained(*_TRAIN)[0] == 0
    code, out, err = trained("diff", "run.db#1", "run.db#2", "--strict")
    assert (code, err) == (0, "")
    assert out == "the runs agree bit for bit\ncompared: 1 track and 5 checkpoints\n"


def test_a_fork_with_another_learning_rate_differs_at_the_optimizer(trained: Command) -> None:
    """N12: a fork differs from its parent by one attribute, in the step at which it begins."""
    forked = ("run", "run.db#1@20", "--fork", "--set", "lr=0.05", "--journal", "run.db")
    assert trained(*forked)[0] == 0
    code, out, _ = trained("diff", "run.db#1", "run.db#2")
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == "the tracks differ from step 21 on"
    assert "the states are equal at the start of step 20" in lines
    (first,) = (number for number, line in enumerate(lines) if line.startswith("first statement"))
    assert lines[first].startswith("first statement that differs, in step 20: %w1.1 f32[2,16] = nncdbg.SGD")
    assert lines[first + 1] == "  nncdbg.SGD lr 0.2 / 0.05"
    assert trained("diff", "run.db#2") == trained("diff", "run.db#1", "run.db#2")


def test_forks_are_compared_from_where_they_begin_without_a_common_checkpoint(trained: Command) -> None:
    assert trained("run", "run.db#1@17", "--fork", "--set", "lr=0.05")[0] == 0
    assert trained("run", "run.db#2@23", "--fork", "--set", "lr=0.3")[0] == 0
    for pair, step, rates in ((("#1", "#2"), 17, "0.2 / 0.05"), (("#2", "#3"), 23, "0.05 / 0.3")):
        code, out, _ = trained("diff", *(f"run.db{each}" for each in pair))
        assert code == 1
        assert f"first statement that differs, in step {step}: %w1.1 f32[2,16] = nncdbg.SGD" in out
        assert f"  nncdbg.SGD lr {rates}" in out
        assert '"program": "run.db@' not in out


def test_the_statement_as_json(trained: Command, tmp_path: Path) -> None:
    """Side B computes the loss with another op: all states are equal up to that statement."""
    text = (tmp_path / "train.nnc").read_text()
    assert text.count("= Tanh(") == 1
    (tmp_path / "train.nnc").write_text(text.replace("= Tanh(", "= Sigmoid("))
    assert trained(*_TRAIN)[0] == 0
    code, out, _ = trained("diff", "run.db#1", "run.db#2", "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["status"], document["first_step"], document["equal_checkpoint"]) == ("diverged", 0, 0)
    assert document["first_step_is_exact"]
    statement = document["statement"]["first"]
    assert (statement["step"], statement["a"]["op"], statement["b"]["op"]) == (0, "Tanh", "Sigmoid")
    assert any(line.startswith("-") and "Tanh" in line for line in document["program"])


def test_a_difference_before_the_first_common_checkpoint_has_no_statement(trained: Command) -> None:
    assert trained(*_TRAIN, "--seed", "1")[0] == 0
    code, out, err = trained("diff", "run.db#1", "run.db#2")
    assert code == 1
    assert out.startswith("the tracks differ from step 0 on\n")
    assert "the states at the start of step 0 differ in 2 tensors" in out
    assert err == (
        "note: statements are not compared: the runs have no equal checkpoint before the difference\n"
    )


def test_programs_with_different_statements_are_not_run_again(trained: Command, tmp_path: Path) -> None:
    text = (tmp_path / "train.nnc").read_text()
    (line,) = (line for line in text.splitlines() if "= Tanh(" in line)
    result, operand = line.split("=")[0].strip(), line.split("(")[1].split(")")[0]
    changed = line.replace(f"({operand})", "(%halved)")
    (tmp_path / "train.nnc").write_text(text.replace(line, f"  %halved = Mul({operand}, 0.5)\n{changed}"))
    assert result
    assert trained(*_TRAIN)[0] == 0
    code, _, err = trained("diff", "run.db#1", "run.db#2")
    assert (code, err) == (1, "note: statements are not compared: the programs have different statements\n")


def test_runs_of_another_writer_are_not_run_again(command: Command, overnight: str) -> None:
    """The checkpoints of these runs lack the position in a program."""
    code, out, err = command("diff", "run.db#1", "run.db#2")
    assert (code, out.splitlines()[0]) == (1, "the states differ at the start of step 60")
    assert err.startswith("note: statements are not compared: run 1 of run.db cannot be opened")
    assert command("run.db#1@40")[0] == 3


# -- values and states ---------------------------------------------------------------------------

Write = Callable[[RunWriter], None]


@pytest.fixture
def two(tmp_path: Path, command: Command) -> Callable[[Write, Write], Command]:
    """`two(a, b)` writes runs 1 and 2 of a script, by functions on their writers."""

    def write(*functions: Write) -> Command:
        with journal.open(tmp_path / "run.db", write=True) as written:
            for function in functions:
                with written.start(NewRun(kind="torch", name="train.py")) as run:
                    function(run)
        return command

    return write


def _losses(*losses: float) -> Write:
    def write(run: RunWriter) -> None:
        for step, loss in enumerate(losses):
            run.value("loss", step, float(np.float32(loss)))
            run.step(step)

    return write


def _weights(*weights: float) -> Write:
    """Return a writer of checkpoints each 10 steps."""

    def write(run: RunWriter) -> None:
        for number, weight in enumerate(weights):
            tensors = {"state/w": np.array([weight, 1], np.float32), "state/b": np.zeros(3)}
            run.checkpoint(10 * number, position={}, tensors=tensors)
            run.step(10 * number)

    return write


NAN = float("nan")

TABLE = """
losses 1 2 3        | losses 1 2 3        | 0 0 | the runs agree bit for bit
losses 1 nan 3      | losses 1 nan 3      | 0 0 | the runs agree bit for bit
losses 1 2 3        | losses 1 2          | 0 0 | the runs agree bit for bit
losses 1 2 3        | losses 1 2 3.000001 | 0 1 | the tracks differ within the tolerance, from step 2 on
losses 1 2.000001 3 | losses 1 2 4        | 1 1 | the tracks differ from step 1 on
losses 1 2 nan      | losses 1 2 3        | 1 1 | the tracks differ from step 2 on
losses 1 2 inf      | losses 1 2 -inf     | 1 1 | the tracks differ from step 2 on
weights 1 2 3       | weights 1 2 3       | 0 0 | the runs agree bit for bit
weights 1 2 3       | weights 1 3 3       | 1 1 | the states differ at the start of step 10
weights 1 2 | weights 1 2.00001 | 0 1 | the states differ within the tolerance, at the start of step 10
weights 1 2 3       | weights 1 2.5 3     | 1 1 | the states differ at the start of step 10
weights 1 nan       | weights 1 nan       | 0 0 | the runs agree bit for bit
"""


@pytest.mark.parametrize("row", TABLE.strip("\n").split("\n"))
def test_the_verdict(two: Callable[[Write, Write], Command], row: str) -> None:
    a, b, codes, verdict = (cell.strip() for cell in row.split("|"))
    kinds = {"losses": _losses, "weights": _weights}
    writes = [kinds[side.split()[0]](*map(float, side.split()[1:])) for side in (a, b)]
    command = two(writes[0], writes[1])
    code, out, _ = command("diff", "run.db#1", "run.db#2")
    strict, again, _ = command("diff", "run.db#1", "run.db#2", "--strict")
    assert out.splitlines()[0] == verdict
    assert out == again
    assert [code, strict] == [*map(int, codes.split())]


def test_a_given_tolerance_applies_to_values_and_states(two: Callable[[Write, Write], Command]) -> None:
    command = two(_losses(1, 2, 3), _losses(1, 2, 3.5))
    assert command("diff", "run.db#1", "run.db#2")[0] == 1
    assert command("diff", "run.db#1", "run.db#2", "--atol", "0.6")[0] == 0
    assert command("diff", "run.db#1", "run.db#2", "--atol", "-1")[0] == 2


def test_the_numbers_of_tracks_and_states(two: Callable[[Write, Write], Command]) -> None:
    def write(scale: float) -> Write:
        def both(run: RunWriter) -> None:
            _weights(1, 2 * scale)(run)
            for step in range(20):
                run.value("loss", step, 0.5 if step < 7 else 0.5 * scale)
                run.value("acc", step, 0.25)
            if scale != 1:
                run.value("only", 3, 1.0)

        return both

    out = two(write(1), write(2))("diff", "run.db#1", "run.db#2")[1]
    assert out.splitlines() == [
        "the tracks differ from step 7 on",
        "compared: 2 tracks and 2 checkpoints; only run.db#2 has only",
        "  track  differs         first  run.db#1  run.db#2  beyond the tolerance",
        "  loss   13 of 20 steps  @7     0.5       1         from @7",
        "the states at the start of step 10 differ in 1 tensor",
        "  state/w: 1 of 2 elements, max abs 2, 1 beyond the tolerance",
        "the states are equal at the start of step 0",
    ]


BAD_INPUT = """
diff run.db#1 run.db#1          2  are the same run
diff run.db#1                   2  run.db#1 is not a fork
diff run.db#1 run.db#9          2  no run 9
diff run.db#1 other.nnc         3  other.nnc
diff run.db#1 run.db@3          2  a whole run, not a step
diff run.db#1 run.db#x          2  run.db#x
diff run.db#1 run.db#2 --stop   2  --stop
diff run.db#1 run.db#3          2  cannot be compared: no track and no checkpoint is at the same step
diff missing.db#1 run.db#3      3  there is no file missing.db
"""


@pytest.mark.parametrize("row", BAD_INPUT.strip("\n").split("\n"))
def test_bad_input(tmp_path: Path, command: Command, row: str) -> None:
    with journal.open(tmp_path / "run.db", write=True) as written:
        for name in ("loss", "loss", "other"):
            with written.start(NewRun(kind="torch", name="train.py")) as run:
                run.value(name, 0, 1.0)
    words, code, message = row[:32], row[32], row[33:].strip()
    found, out, err = command(*words.split())
    assert (found, out, message in err) == (int(code), "", True), err
    assert json.loads(command(*words.split(), "--json")[1])["status"] == "failed"
