"""`nncdbg FILE` lists the runs of a journal, `nncdbg log` shows one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from nncdbg import journal
from nncdbg.journal import NewRun
from nncdbg.opening.journal_address import Address, read_address

Command = Callable[..., tuple[int, str, str]]

LIST = """
run.db: 4 runs, SIZE
run          name       kind   status       steps  started           time
1            train_mlp  graph  failed         100  DAY               TIME
│            loss nan  acc nan  acc (test) nan
└─ 2 @60     train_mlp  graph  ended          100  DAY               TIME
   │         loss 0.01417  acc 0.9965  acc (test) 0.8965
   └─ 3 @80  train_mlp  graph  interrupted     85  DAY               TIME
             loss 0.02999  acc 0.9925  acc (test) 0.8963
4            train.py   torch  ended            1  DAY               TIME
             loss 0.5
"""

LOG = """
run 1 of run.db: train_mlp
  failed, 100 steps; started DAY, took TIME
  nncdbg run train_mlp.nnc --journal run.db
  track       BARS  last  min             max           NaN or Inf
  loss        BARS  nan   0.0007415 @79   2 @0          from @80
  acc         BARS  nan   0.5 @0          0.9998 @79    from @80
  acc (test)  BARS  nan   0.8963 @49      0.8963 @49    from @99
2 epochs from steps 0, 50
5 checkpoints (1.64 KiB) at steps 0, 20, 40, 60, 80
1 event
  step 80  nan  %loss has 1 NaN, from Log at line 12
1 edit
  step 40  %lr = 0.05
2 notes
  step 12  is the learning rate too high?
           first try
1 command
  step 40  set %lr = 0.05
fork: run 2 from step 60, ended
"""

FORK = """
run 3 of run.db: train_mlp
  interrupted, 85 steps; started DAY, took TIME
  fork of run 2 at step 80
  track       BARS  last     min             max
  loss        BARS  0.02999  0.005479 @59    2 @0
  acc         BARS  0.9925   0.5 @0          0.9986 @59
  acc (test)  BARS  0.8963   0.8963 @49      0.8963 @49
"""


def _stable(text: str) -> str:
    """Replace times, sizes, bars and the number of spaces between columns."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DAY", text)
    text = re.sub(r"DAY +\d+\.\d+ s", "DAY  TIME", text)
    text = re.sub(r"took \d+\.\d+ s", "took TIME", text)
    text = re.sub(r"runs, \d+(\.\d+)? KiB", "runs, SIZE", text)
    text = re.sub(r"[▁▂▃▄▅▆▇█×]{5,}", "BARS", text)
    text = re.sub(r"(?<=\S) +BARS", "  BARS", text)
    text = re.sub(r"(?<=track) {30,}|(?<=\(test\)) +▁(?= )", "  BARS  ", text)
    return "\n".join(re.sub(r"(?<=\S) {2,}", "  ", line) for line in text.strip("\n").split("\n"))


@pytest.mark.parametrize("words", [("run.db",), ("runs", "run.db")])
def test_the_list_of_runs(command: Command, overnight: str, words: tuple[str, ...]) -> None:
    """N12: the forks of a run are below it, each with the step of its parent where it begins."""
    code, out, err = command(*words)
    assert code == 0
    assert _stable(out) == _stable(LIST)
    assert err == "note: to see a run: nncdbg log run.db#4\n"


def test_the_log_of_a_run(command: Command, overnight: str) -> None:
    code, out, err = command("log", "run.db#1")
    assert code == 0
    assert _stable(out) == _stable(LOG)
    assert err == "note: to open the first step with a NaN or Inf: nncdbg run.db#1@nan\n"
    assert command("run.db#1") == (code, out, err)


def test_the_log_of_a_fork_includes_the_values_of_its_parents(command: Command, overnight: str) -> None:
    code, out, err = command("log", "run.db#3")
    assert code == 0
    assert _stable(out).split("\n")[:7] == _stable(FORK).split("\n")
    assert err == "note: to open step 80: nncdbg run.db#3@80\n"


def test_log_shows_the_last_run_by_default(command: Command, overnight: str) -> None:
    code, out, _ = command("log", overnight)
    assert code == 0
    assert out.startswith("run 4 of run.db: train.py\n")


def test_a_plot_of_one_track(command: Command, overnight: str) -> None:
    code, out, _ = command("log", overnight + "#1", "--track", "acc")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "acc of run 1  last nan  min 0.5 @0  max 0.9998 @79  NaN or Inf from @80"
    assert lines[1].strip(" ×") == ""
    assert lines[2].startswith("0.9998 ┤")
    assert lines[13].startswith("   0.5 ┤")
    assert re.fullmatch(r" +0 +step +99", lines[15])
    assert lines[16].startswith("acc (test) of run 1")
    assert len(lines) == 32


def test_the_list_as_json(command: Command, overnight: str) -> None:
    code, out, _ = command(overnight, "--json")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [(run["number"], run["parent"], run["parent_step"]) for run in runs] == [
        (1, None, None),
        (2, 1, 60),
        (3, 2, 80),
        (4, None, None),
    ]
    assert runs[0]["tracks"][0] == {"name": "loss", "part": "train", "last": "NaN"}
    assert runs[3]["tracks"] == [{"name": "loss", "part": "train", "last": 0.5}]


def test_all_runs_with_details_as_json(command: Command, overnight: str) -> None:
    """The document of a run in the list is the one of `nncdbg log`."""
    code, out, _ = command("runs", overnight, "--json", "--details")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [run["number"] for run in runs] == [1, 2, 3, 4]
    for run in runs:
        alone = json.loads(command("log", f"{overnight}#{run['number']}", "--json")[1])
        assert {"journal": alone["journal"], **run} == alone
    assert len(runs[0]["tracks"][0]["values"]) == 100


def test_a_run_as_json(command: Command, overnight: str) -> None:
    code, out, _ = command("log", overnight + "#1", "--json")
    run = json.loads(out)
    with journal.open(overnight) as opened:
        steps, values = opened.values(1, "loss")
    assert code == 0
    assert run["configuration"] == {"lr": 0.1, "batch": 32}
    assert run["tracks"][0]["steps"] == steps.tolist()
    assert run["tracks"][0]["values"][:80] == values[:80].tolist()
    assert set(run["tracks"][0]["values"][80:]) == {"NaN"}
    assert [each["step"] for each in run["checkpoints"]] == [0, 20, 40, 60, 80]
    assert [(each["kind"], each["step"]) for each in run["events"]] == [("nan", 80)]
    assert [each["text"] for each in run["notes"]] == ["is the learning rate too high?", "first try"]
    assert run["forks"] == [2]


def test_control_characters_in_names_are_escaped(command: Command, tmp_path: Path) -> None:
    with journal.open(tmp_path / "odd.db", write=True) as written:
        new = NewRun(kind="graph", name="a\x1b[31mb\nc", command=["x\x1b]0;y"])
        with written.start(new) as run:
            run.value("l\x1b[31m\n", 0, 1.0)
            run.note("n\x1b[31m\nm")
            run.step(0)
    for words in (["odd.db"], ["log", "odd.db"], ["log", "odd.db", "--follow"]):
        code, out, err = command(*words)
        assert code == 0
        assert "\x1b" not in out + err
        assert "a\\x1b[31mb\\nc" in out or "--follow" in words


def test_a_long_name_of_a_track_leaves_room_for_its_curve(command: Command, tmp_path: Path) -> None:
    with journal.open(tmp_path / "long.db", write=True) as written:
        run = written.start(NewRun(kind="torch", name="train.py"))
        for step in range(4):
            run.value(f"{'a' * 100}{'z' * 100}", step, step)
            run.value("loss", step, step, "test")
        run.end("ended")
    for words in (["log", "long.db"], ["long.db"]):
        lines = command(*words)[1].splitlines()
        assert any(f"{'a' * 20}...{'z' * 17}" in line for line in lines)
        assert max(map(len, lines)) < 130
    assert "a" * 100 + "z" * 100 in command("log", "long.db", "--json")[1]


def test_an_inf_without_a_nan_is_an_event_of_its_own(command: Command, tmp_path: Path) -> None:
    """`@nan` and the log find it like a NaN."""
    program = tmp_path / "grow.nnc"
    program.write_text(GROW)
    code, _, err = command("run", "grow.nnc", "--journal", "grow.db")
    assert code == 0, err
    with journal.open(tmp_path / "grow.db") as read:
        assert [(each.kind, each.step) for each in read.events()] == [("inf", 1)]
    code, out, err = command("log", "grow.db")
    assert "step 1  inf  %l is inf" in out
    assert "grow.db#1@nan" in err


GROW = """#nncdbg 1
opset 18

state %w: f32[] = 1e15

graph @train() -> (%l: f32[]) {
  %l: f32[] = Mul(%w, 1e15)
  update %w = %l
  return %l
}

run @train steps 4
"""

BAD_INPUT = """
log missing.db                      3  there is no file missing.db
missing.db                          3  there is no file missing.db
missing.db#1                        3  there is no file missing.db
log .                               2  it is a folder
log text.db                         3  not a journal
text.db                             3  text.db is not a journal
other.db                            3  hint: write one with `nncdbg run MODEL --journal run.db`
empty.db                            3  empty.db is not a journal: it is empty
empty.db#1@3                        3  empty.db is not a journal: it is empty
log other.db                        3  not a journal
log empty.db                        3
log none.db                         2  none.db has no runs yet
log none.db --follow --json         2  --follow and --json cannot be combined
log run.db#9                        2  no run 9
run.db#9                            2  no run 9
log run.db#0                        2  run.db#0
log run.db#x                        2  run.db#x
run.db#x                            2  run.db#x
log run.db@-1                       2  run.db@-1
run.db@-1                           2  run.db@-1
log run.db@3                        2  run.db@3: the command reads a whole run, not a step
log run.db#1@nan                    2  hint: use run.db#1
runs run.db@3                       2  use run.db
log run.db --track los              2  run 4 has no track "los"
log run.db#1 --track los            2  did you mean loss?
runs run.db --details               2  --details needs --json
log run.db --track epoch --json     2  its tracks: loss
log run.db --values                 2  nncdbg record train.py --at 'run.db#4@STEP'
log run.db --statistics             2  scalars with nncdbg.torch.track
run run.db --continue               2  which only its script continues or forks
run run.db@0 --fork --set lr=1      2  nncdbg.torch.resume(model, optimizer, 'run.db@0')
log                                 2  the following arguments are required
"""


@pytest.mark.parametrize("row", BAD_INPUT.strip("\n").split("\n"))
def test_bad_input(command: Command, overnight: str, tmp_path: Path, row: str) -> None:
    (tmp_path / "text.db").write_text("hello")
    (tmp_path / "empty.db").write_bytes(b"")
    import sqlite3

    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("create table t (x)")
    other.close()
    journal.open(tmp_path / "none.db", write=True).close()
    words, code, message = row[:36], row[36], row[37:].strip()
    found, out, err = command(*words.split())
    assert (found, message in err) == (int(code), True), err
    assert err.count("\n") <= 5
    if "--json" in words:
        assert json.loads(out)["status"] == "failed"
    else:
        assert out == ""


def test_a_journal_without_runs(command: Command, tmp_path: Path) -> None:
    journal.open(tmp_path / "none.db", write=True).close()
    code, out, err = command("none.db")
    assert (code, out.startswith("none.db: 0 runs")) == (0, True)
    assert "no runs yet" in err
    assert json.loads(command("none.db", "--json")[1])["runs"] == []


def test_repeated_events_are_one_line_and_many_are_cut(command: Command, tmp_path: Path) -> None:
    with (
        journal.open(tmp_path / "run.db", write=True) as written,
        written.start(NewRun(kind="graph", name="train")) as run,
    ):
        for step in range(30):
            run.event("nan", step, "%l is nan" if step > 3 else "%l is inf")
        for step in range(20):
            run.note(f"note {step}", step)
    _, out, _ = command("log", "run.db")
    assert out.splitlines()[2:] == [
        "30 events",
        "  steps 0-3   nan  %l is inf",
        "  steps 4-29  nan  %l is nan",
        "20 notes",
        *(f"  step {step}   note {step}" for step in range(4)),
        "  and 12 more",
        *(f"  step {step}  note {step}" for step in range(16, 20)),
    ]


@pytest.mark.parametrize("name", ["a b.db", "x#2", "x#2@3", "x@nan", "x'y.db", "ü.db"])
def test_printed_addresses_can_be_typed(name: str, command: Command, overnight: str, tmp_path: Path) -> None:
    """A name of a file may have spaces, `#` and `@`; of two files, the longest name counts."""
    for each in (name, "x"):
        (tmp_path / each).write_bytes((tmp_path / overnight).read_bytes())
    with (
        journal.open(tmp_path / name, write=True) as written,
        written.fork(1, 40, NewRun(kind="graph", name="again")) as run,
    ):
        run.checkpoint(40, position={}, tensors={})
    hints = re.findall("nncdbg (.+)", command(name)[2])
    assert [shlex.split(each) for each in hints] == [["log", f"{name}#5"], [f"{name}#5@40"]]
    assert read_address(f"{tmp_path / name}#5@40") == Address(str(tmp_path / name), 5, 40)
    assert f"run 5 of {name}" in command("log", f"{name}#5")[1]
