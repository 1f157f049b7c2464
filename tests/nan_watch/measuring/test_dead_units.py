"""Units of an activation that are flat for every sample over the steps of a training."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.units import DeadUnits, UnitActivity, feeds_layer, flat_values, op_of
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import watch_run
from nncdbg.terminal.main import main
from tests.nan_watch.training_corpus import corpus
from tests.presence import present

CORPUS = {each.path.stem: each for each in corpus()}
HALF = CORPUS["half_dead_from_the_bias"]


def activity(units: int) -> UnitActivity:
    debugger = nncdbg.Debugger(nncdbg.parse("graph @main() -> (%y) {\n  %y = Relu(1.0)\n  return %y\n}\n"))
    at = Statement(debugger.loaded.codes[0], 0)
    return UnitActivity(at, (), (0.0,), np.full(units, -1, np.int64))


STEPS = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=40)


@given(STEPS, st.integers(1, 20), st.randoms())
def test_dead_units_are_those_that_no_counted_step_has_alive(
    alive: list[list[bool]], latest: int, random: Any
) -> None:
    """In any order of the steps, the counts equal those of the table of steps and units."""
    found = activity(4)
    order = [*range(len(alive))]
    random.shuffle(order)
    for step in order:
        found.see(step, np.array(alive[step]), 3)
    table = np.array(alive)
    assert found.dead == {step: int((~table[step]).sum()) for step in range(len(table))}
    dead = ~table[-latest:].any(axis=0)
    known = found.dead_since(latest)
    if not dead.any():
        assert known is None
        return
    assert known is not None
    flat = [not row.any() for row in table[:, dead]]
    since = next(step for step in range(len(table)) if all(flat[step:]))
    never = int((~table.any(axis=0)).sum())
    assert known == DeadUnits(int(dead.sum()), 4, since, len(table) - since, 3 * (len(table) - since), never)


def test_several_visits_of_one_step_are_counted_together() -> None:
    """A loop computes an activation once per iteration."""
    found = activity(3)
    found.see(0, np.array([True, False, False]), 2)
    found.see(0, np.array([False, True, False]), 2)
    assert (found.dead, found.samples) == ({0: 1}, {0: 4})


FLAT = """
Relu(%z)              | 0
Clip(%z, 0.0, 6.0)    | 0 6
Clip(%z, _, 2.0)      | 2
Max(%z, 0.0)          | 0
Max(%z, %x)           |
Tanh(%z)              | -1 1
HardSigmoid(%z)       | 0 1
ThresholdedRelu(%z)   | 0
LeakyRelu(%z)         |
Softmax(%z)           |
Abs(%z)               |
"""


@pytest.mark.parametrize("row", FLAT.strip().split("\n"))
def test_the_flat_results_of_an_op(row: str) -> None:
    call, values = row.split("|")
    lines = f"  %z = Neg(%x)\n  %y = {call.strip()}\n  return %y\n"
    text = f"opset 21\ngraph @main(%x: f32[2,2]) -> (%y) {{\n{lines}}}\n"
    code = nncdbg.Debugger(nncdbg.parse(text)).loaded.codes[0]
    op = op_of(code, 1)
    assert op is not None
    assert flat_values(code, 1, op) == tuple(map(float, values.split()))


READERS = """
%o = MatMul(%h, %x)                                  | yes
%n = Neg(%h); %o = MatMul(%n, %x)                    | yes
%o = ReduceMean(%h)                                  | no
%n = Mul(%h, %h); %o = ReduceSum(%n)                 | no
%o = @other(%h)                                      | yes
"""


@pytest.mark.parametrize("row", READERS.strip().split("\n"))
def test_a_unit_feeds_a_layer(row: str) -> None:
    statements, feeds = row.split("|")
    lines = "".join(f"  {each.strip()}\n" for each in statements.split(";"))
    text = (
        f"opset 21\ngraph @main(%x: f32[2,2]) -> (%o) {{\n  %h = Relu(%x)\n{lines}  return %o\n}}\n"
        "graph @other(%a: f32[2,2]) -> (%b) {\n  %b = Neg(%a)\n  return %b\n}\n"
    )
    code = nncdbg.Debugger(nncdbg.parse(text)).loaded.codes[0]
    assert feeds_layer(code, 0) == (feeds.strip() == "yes")


def test_the_numbers_equal_those_of_the_values_at_each_step() -> None:
    training = CORPUS["high_rate_sgd"]
    (history,) = nncdbg.watch(nncdbg.parse(training.text)).training
    (units,) = history.activations
    debugger = nncdbg.Debugger(nncdbg.parse(training.text))
    debugger.break_at(value="y2")
    dead = []
    for _ in range(100):
        assert debugger.run().reason == "breakpoint"
        dead.append(~(debugger.value("h") != 0).any(axis=0))
    assert units.dead == [int(dead[step].sum()) for step in history.steps]
    latest = np.all(dead[-16:], axis=0)
    assert units.dead_now == latest.sum()
    assert units.since is not None
    assert all(dead[step][latest].all() for step in history.steps if step >= units.since)
    before = history.steps[history.steps.index(units.since) - 1]
    assert not dead[before][latest].all()


def test_two_calls_of_one_graph_are_two_layers() -> None:
    report = nncdbg.watch(nncdbg.parse(CORPUS["second_of_two_layers"].text))
    first, second = report.training[0].activations
    assert (first.name, first.dead_now) == ("active", 0)
    assert (second.name, second.dead_now, second.since) == ("active", 6, 0)
    (warning,) = report.findings
    assert warning.calls[-1].text.startswith("%h: f32[32,16] = @layer")


def test_counting_changes_no_bit_of_the_training() -> None:
    for name in ("high_rate_sgd", "recurrent_relu", "second_of_two_layers"):
        program = nncdbg.parse(CORPUS[name].text)
        plain = nncdbg.Debugger(program, allocator="plain", statistics=False)
        assert plain.run(heed=False).reason == "end"
        watched = nncdbg.Debugger(program)
        report = watch_run(watched, Gates.of("nan,inf"))
        assert report.training[0].activations
        assert present(watched.outputs)["l"].tobytes() == present(plain.outputs)["l"].tobytes()
        for state, value in plain.states.items():
            assert watched.states[state].tobytes() == value.tobytes()


def test_a_gate_on_dead_units_replaces_the_warning() -> None:
    report = nncdbg.watch(nncdbg.parse(HALF.text), fail_on="dead:0.4")
    assert [(each.kind, each.verdict, each.trips) for each in report.findings] == [("dead", "", True)]


def test_every_report_has_the_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.nnc").write_text(HALF.text)
    files = {form: tmp_path / form for form in ("junit", "markdown", "sarif")}
    options = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    assert main(["watch", str(tmp_path / "t.nnc"), "--json", *options]) == 0
    evidence = "8 of 16 units of %h are 0 for all 1,312 samples of the 41 measured steps since step 0"
    report = json.loads(capsys.readouterr().out)
    assert evidence in report["findings"][0]["evidence"]
    (units,) = report["training"][0]["activations"]
    assert (units["name"], units["graph"], units["units"], units["dead_now"], units["since"]) == (
        "h", "loss", 16, 8, 0,
    )  # fmt: skip
    assert units["dead"] == [8] * 41
    for form in files.values():
        assert evidence in form.read_text(), form.name
    assert main(["watch", str(tmp_path / "t.nnc"), "--github"]) == 0
    printed = capsys.readouterr().out
    (warning,) = re.findall(r"^::warning (.*?)::(.*)$", printed, re.MULTILINE)
    assert f"line={units['line']}" in warning[0]
    assert evidence.replace("%", "%25") in warning[1]


def test_the_prompt_counts_the_units_of_the_steps_in_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.nnc").write_text(CORPUS["second_of_two_layers"].text)
    commands = ("info units", "break 44 if $step == 30", "continue", "info units", "delete 1", "c", "i units")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(commands)))
    main([str(tmp_path / "t.nnc")])
    printed = capsys.readouterr()
    assert "no `run` line has run yet" in printed.err
    rows = re.findall(r"steps (.*):\n +%active = Relu, (.*)\n +%active = Relu, (.*)\n", printed.out)
    first, second = "line 45, called at line 32: 0 of 16", "line 45, called at line 33: 6 of 16"
    count = " units were 0 for all {} samples".format
    assert rows == [
        ("0 to 29", first + count(960), second + count(960)),
        ("50 to 99", first + count("1,600"), second + count("1,600")),
    ]
