"""T15: recorded sessions: their file, replays that compare each stop, and protection against overwriting."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.commands.recording.entries import HEAD, read_recording
from nncdbg.commands.recording.setup import file_digest, setup_of
from nncdbg.commands.recording.stops import RecordedStop
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget
from nncdbg.terminal.main import main
from nncdbg.terminal.repl import confirmed
from tests.engine.programs import runnable
from tests.laws import examples

pytestmark = pytest.mark.usefixtures("forked_processes")

FOREVER = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @spin (%s: f32[4] = %x) {
    %a: f32[4] = Mul(%s, 0.5)
    next %s = %a
  } -> (%y: f32[4] = %s)
  return %y
}
"""

EXAMPLES = Path(__file__).parents[2] / "examples"

CallResult = tuple[int, str, str]
Call = Callable[..., CallResult]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `nncdbg` in a new folder with a model, with lines from a pipe."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "first_steps.nnc", "model.nnc")

    def run(*arguments: str, typed: str = "") -> CallResult:
        (tmp_path / "typed").write_text(typed)
        with open(tmp_path / "typed", encoding="utf-8") as lines:
            monkeypatch.setattr("sys.stdin", lines)
            code = main(
                [*arguments] if arguments[:1] and arguments[0][0] != "-" else ["model.nnc", *arguments]
            )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def commands_in(path: str) -> list[str]:
    return [each.command.text for each in read_recording(path).commands]


# -- contents ----------------------------------------------------------------------------------------


def test_a_recording_has_setup_commands_stops_notes_and_errors(call: Call) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    typed = "next\n\n# a remark\nnote %h looks small\np %h[0, 0]\nfoo\n"
    call("--input", "x=x.npy", "--seed", "7", "--allocator", "arena", "--record", "r.log", typed=typed)
    recording = read_recording("r.log")
    assert commands_in("r.log") == ["next", "next", "# a remark", "note %h looks small", "p %h[0, 0]", "foo"]
    assert recording.closed
    setup = recording.setup
    assert (setup.seed, setup.backend, setup.allocator) == (7, "numpy", "arena")
    assert (setup.program, setup.folder) == ("model.nnc", os.getcwd())
    assert setup.inputs["x"].given == "x.npy"
    assert setup.versions["numpy"] == np.__version__
    first, second = (recording.commands[number].events for number in (0, 1))
    assert [event.line for event in (*first, *second)] == [11, 12]  # type: ignore[union-attr]
    assert str(first[0]) == "step at line 11 in @main, after 5 statements"
    assert [*first[0].values] == ["h"]  # type: ignore[union-attr]
    assert "no command" in str(recording.commands[-1].events[0])


def test_start_options_are_recorded_as_commands(call: Call) -> None:
    Path("first.cmd").write_text("break Softmax\n")
    call("--break", "@layer", "-x", "first.cmd", "-ex", "continue", "--record", "r.log", typed="next\n")
    assert commands_in("r.log") == ["break @layer", "source first.cmd", "continue", "next"]
    assert call("replay", "r.log")[0] == 0


def test_a_recording_that_is_started_later_includes_the_commands_before(call: Call) -> None:
    call(typed="break Softmax\ncontinue\nrecord r.log\nnext\nrecord off\nnext\n")
    assert commands_in("r.log") == ["break Softmax", "continue", "next"]
    assert [each.command.earlier for each in read_recording("r.log").commands] == [True, True, False]
    code, out, _ = call("replay", "r.log")
    assert code == 0
    assert out.endswith("replayed 3 commands: 2 stops are the same\n")


def test_a_killed_session_loses_at_most_its_last_line(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "first_steps.nnc", tmp_path / "model.nnc")
    words = [sys.executable, "-m", "nncdbg", "model.nnc", "--record", "r.log"]
    child = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    child.stdin.write(b"next\nnext\nnote before the crash\n")
    child.stdin.flush()
    path = tmp_path / "r.log"
    deadline = time.monotonic() + 60
    while not (path.exists() and b"before the crash" in path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    recording = read_recording(str(path))
    assert not recording.closed
    assert [each.command.text for each in recording.commands] == ["next", "next", "note before the crash"]


# -- replay ------------------------------------------------------------------------------------------

SESSION = "break Softmax\ncontinue\nnext\nset %s[0, 0] = 9\nfinish\nback\nrcontinue\ncontinue\nfoo\nc\nc\n"


def test_a_replay_has_the_same_stops(call: Call) -> None:
    """T15: `nncdbg replay session.log` reproduces the same stop states."""
    call("--input", "x=[[1,2,3,4],[5,6,7,8]]", "--seed", "3", "--record", "r.log", typed=SESSION)
    code, out, err = call("replay", "r.log")
    assert code == 0
    assert out.endswith("replayed 11 commands: 9 stops and 2 results are the same\n")
    assert "(nncdbg) set %s[0, 0] = 9\n" in out
    assert "note" not in err
    code, out, _ = call("--replay", "r.log")
    assert code == 0
    assert "9 stops and 2 results are the same" in out


def test_a_replay_in_another_folder_finds_the_program(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    call("--input", "x=x.npy", "--record", "r.log", typed="next\np %x[0]\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert call("replay", "../r.log")[0] == 0
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("model.nnc", "x.npy", "r.log"):
        shutil.move(tmp_path / name, moved / name)
    monkeypatch.chdir(elsewhere)
    code, _, err = call("replay", "../moved/r.log")
    assert code == 0
    assert f"replayed in {moved}" in err


def test_a_replay_reports_changes_and_the_first_stop_that_differs(call: Call) -> None:
    call("--record", "r.log", typed="next\nnext\n")
    path = Path("model.nnc")
    path.write_text(path.read_text().replace("Softmax(%s", "LogSoftmax(%s"))
    assert call("replay", "r.log")[0] == 0, "this statement has not run"
    call("--record", "r.log", "--force", typed="next 2\nstep\nnext\nnext\n")
    path.write_text(path.read_text().replace("LogSoftmax(%s", "Softmax(%s"))
    code, out, err = call("replay", "r.log")
    assert code == 1
    assert "the program has changed since the recording of model.nnc" in err
    text = out[out.index("the replay differs") :]
    assert text.startswith("the replay differs at command 3 of 4, `next`:\n  recorded: %p f32[2,3] [[-")
    assert "\n  replayed: %p f32[2,3] [[0." in text
    assert text.endswith("replayed 3 commands: 3 stops are the same\n")


def test_a_replay_reports_a_stop_at_another_place(call: Call) -> None:
    call("--record", "r.log", typed="break 18\ncontinue\n")
    path = Path("model.nnc")
    path.write_text(path.read_text().replace("%limit: f32[] = 0.9", "%limit: f32[] = 0.1"))
    code, out, _ = call("replay", "r.log")
    assert code == 1
    assert "differs at command 2 of 2, `continue`" in out
    assert re.search(r"recorded: breakpoint 1 at line 18 in @sharpen #0, called from line 12 in @main", out)
    assert re.search(r"replayed: end at line 29 in @main, after \d+ statements", out)


def test_a_replay_reports_changed_inputs_options_and_versions(call: Call) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    call("--input", "x=x.npy", "--record", "r.log", typed="p %x[0, 0]\n")
    np.save("x.npy", np.zeros((2, 4), np.float32))
    recording = Path("r.log")
    recording.write_text(recording.read_text().replace(f'"numpy":"{np.__version__}"', '"numpy":"1.0"'))
    code, out, err = call("--replay", "r.log", "--seed", "5")
    assert code == 1
    assert "the replay differs at the start" in out
    assert "input %x differs from the recorded input (x.npy)" in err
    assert "recorded with seed 0, replayed with 5" in err
    assert f"recorded with numpy 1.0, replayed with {np.__version__}" in err


def test_an_error_that_no_longer_occurs_is_a_difference(call: Call) -> None:
    call("--record", "r.log", typed="source more.cmd\nnext\n")
    Path("more.cmd").write_text("# nothing\n")
    code, out, _ = call("replay", "r.log")
    assert code == 1
    assert "recorded: error: cannot read the commands in more.cmd: No such file or directory" in out
    assert "replayed: no stop" in out


def test_a_replay_up_to_a_command_continues_at_the_prompt(call: Call) -> None:
    call("--record", "r.log", typed=SESSION)
    code, out, _ = call("replay", "r.log", "--to", "2", typed="info time\n")
    assert code == 0
    assert "replayed 2 commands: 2 stops and 1 result are the same\n(nncdbg) info time\n7 statements" in out
    code, _, err = call("replay", "r.log", "--to", "12")
    assert code == 2
    assert "--to 12: r.log has 11 commands" in err


def test_options_are_recorded(call: Call) -> None:
    call("--max-ops", "5", "--output", "h", "--flat", "--record", "r.log", typed="continue\n")
    assert read_recording("r.log").setup.options == {"max_ops": 5, "outputs": ["h"], "flat": True}
    code, out, _ = call("replay", "r.log")
    assert code == 0
    assert "2 stops are the same" in out


def test_a_recorded_training_replays_with_its_steps(call: Call) -> None:
    shutil.copy(EXAMPLES / "train_mlp.nnc", "model.nnc")
    call(
        "--steps",
        "3",
        "--record",
        "r.log",
        typed="catch nan\nbreak nncdbg.SGD\nc\nc\nset $a = 1\nback\nc\nc\n",
    )
    recording = read_recording("r.log")
    assert any("step 0 of 3" in str(event) for each in recording.commands for event in each.events)
    assert call("replay", "r.log")[0] == 0


def test_a_session_on_a_run_of_a_journal_is_replayed_without_another_run(call: Call) -> None:
    shutil.copy(EXAMPLES / "train_mlp.nnc", "model.nnc")
    call(
        "--steps", "4", "--journal", "run.db", "--record", "first.log", typed="break nncdbg.SGD\nc\nc\nrun\n"
    )
    call("--steps", "4", "--journal", "run.db", typed="run\n")
    run = ["--fork", "--set", "lr=0.5"]
    assert call("run.db@2", *run, "--record", "fork.log", typed="next\nfinish\n")[0] == 0
    for name in ("first.log", "fork.log"):
        assert call("replay", name)[0] == 0
    with nncdbg.journal.open("run.db") as journal:
        assert [found.number for found in journal.runs()] == [1, 2, 3]


def test_ctrl_c_is_replayed_as_goto(call: Call, tmp_path: Path) -> None:
    Path("forever.nnc").write_text(FOREVER)
    words = ["-m", "nncdbg", "forever.nnc", "--record", "r.log"]
    environment = {**os.environ, "TERM": "xterm"}
    child = pexpect.spawn(
        sys.executable, words, encoding="utf-8", timeout=600, cwd=str(tmp_path), env=environment
    )
    child.expect(r"\(nncdbg\)")
    child.sendline("continue")
    child.expect("Ctrl-C stops")  # before it, Ctrl-C may interrupt the command instead of the run
    child.sendintr()
    child.expect("Paused")
    child.sendline("next")
    child.sendline("quit")
    child.expect(pexpect.EOF)
    child.close()
    first = read_recording("r.log").commands[0].events[0]
    assert isinstance(first, RecordedStop)
    assert first.is_pause
    code, out, err = call("replay", "r.log")
    assert code == 0
    assert f"replayed as `goto :{first.statements}`" in err
    assert out.endswith("3 stops are the same\n")


def test_a_pause_by_the_user_is_replayed_as_goto(call: Call) -> None:
    call("--record", "r.log", typed="goto :9\n")
    recording = Path("r.log")
    text = recording.read_text().replace('"text":"goto :9"', '"text":"continue"')
    recording.write_text(text.replace('"reason":"goto"', '"reason":"pause"'))
    code, _, err = call("replay", "r.log")
    assert code == 0
    assert "the session was paused here: replayed as `goto :9`" in err


def test_replay_at_the_prompt(call: Call) -> None:
    call("--record", "r.log", typed="next\np %h\n")
    code, out, _ = call(typed="replay r.log\n")
    assert code == 0
    assert "replayed 2 commands: 2 stops and 1 result are the same" in out
    _, out, err = call(typed="next\nreplay r.log\n")
    assert "the replay differs at the start" in out
    assert "error: the replay of r.log differs from the recording" in err


def test_a_recording_that_replays_itself_ends(call: Call) -> None:
    _, _, err = call("--record", "r.log", typed="replay r.log\n")
    assert "nested more than 20 levels" in err


def test_python_code_that_opens_the_program_needs_consent(call: Call) -> None:
    kernel = "@nncdbg.op('tests.Recorded')\ndef recorded(x):\n    return x\n"
    Path("library.py").write_text(f"import nncdbg\nprint('library loaded')\n{kernel}")
    call("--op-library", "library.py", "--record", "r.log", typed="next\n")
    for arguments in (["replay", "r.log"], ["--replay", "r.log"]):
        code, out, err = call(*arguments)
        assert (code, "the recording loads the Python code of library.py" in err) == (2, True)
        assert "library loaded" not in out
        assert call(*arguments, "--allow-python")[0] == 0
    assert call("--replay", "r.log", "--op-library", "library.py")[0] == 0


# -- files that are not recordings -------------------------------------------------------------------


def _header() -> bytes:
    debugger = nncdbg.Debugger(EXAMPLES / "first_steps.nnc")
    setup = msgspec.json.encode(setup_of(ProgramTarget(debugger), "model.nnc"))
    return HEAD + b',"format":2,"setup":' + setup + b',"started":"2026-01-01T00:00:00+00:00"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "r.log is empty"),
        (b"next\nnext\n", "r.log is not a recorded session"),
        (bytes(range(256)), "r.log is not a recorded session"),
        (
            HEAD + b',"format":4}\n',
            "r.log has the format 4; this version of nncdbg reads the formats 2 and 3",
        ),
        (HEAD + b"}\n", "r.log has the format none"),
        (HEAD + b',"format":2}\n', "line 1 of the recording r.log is damaged"),
        (HEAD[:5], "line 1 of the recording r.log is damaged"),
        (HEAD, "line 1 of the recording r.log is damaged"),
        (HEAD + b',"form\xff', "line 1 of the recording r.log is damaged"),
        (_header() + b"{}\n{}\n", "line 2 of the recording r.log is damaged"),
        (_header() + b'{"entry":"jump"}\n', "line 2 of the recording r.log is damaged"),
        (_header() + b'{"entry":"end"}\n{"entry":"end"}\n', "line 3 of the recording r.log is damaged"),
        (_header() + b'{"entry":"command","text":"\xff"}\n', "line 2 of the recording r.log is damaged"),
    ],
)
def test_bad_files_are_errors(call: Call, content: bytes, message: str) -> None:
    Path("r.log").write_bytes(content)
    code, _, err = call("replay", "r.log")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    if content.startswith(b"{"):
        assert call("--replay", "r.log")[0] == 2


def test_a_file_of_commands_is_replayed_without_comparison(call: Call) -> None:
    Path("r.cmd").write_text("next\np %nothing\nnext\n")
    code, out, err = call("--replay", "r.cmd")
    assert code == 1
    assert "there is no value" in err
    assert out.count("(nncdbg) next") == 2, "the commands after the failed one run"
    code, _, err = call(typed="replay r.cmd\n")
    assert code == 0
    assert "the replay of r.cmd has failed commands" in err


def test_the_first_format_is_replayed_as_a_file_of_commands(call: Call) -> None:
    Path("r.cmd").write_text('# nncdbg session: model.nnc\n# setup: {"seed": 3}\nnext\n')
    code, out, err = call("--replay", "r.cmd")
    assert code == 0
    assert "(nncdbg) next" in out
    assert "r.cmd is in the format of an earlier version: only its commands run" in err


def test_a_missing_recording_or_program_is_an_error(call: Call) -> None:
    code, _, err = call("replay", "none.log")
    assert (code, "cannot read the recording none.log" in err) == (2, True)
    call("--record", "r.log", typed="next\n")
    Path("model.nnc").unlink()
    code, _, err = call("replay", "r.log")
    assert (code, "there is no file model.nnc, the program of the recording" in err) == (3, True)


def test_every_cut_of_a_recording_is_replayed_or_reported(call: Call) -> None:
    call("--record", "whole.log", typed="break Softmax\nc\nnext\np %p\n")
    content = Path("whole.log").read_bytes()
    start = content.index(b"\n") + 1
    for end in range(start, len(content), 211):
        Path("r.log").write_bytes(content[:end])
        code, _, err = call("replay", "r.log")
        assert code == 0, err
        assert "the recording was not closed" in err
        torn = not content[:end].endswith(b"\n")
        assert ("its last line is incomplete and was skipped" in err) == torn


def test_a_session_without_a_run_configuration_cannot_be_opened_again(call: Call) -> None:
    debugger = nncdbg.Debugger("model.nnc", {"x": np.ones((2, 4), np.float32)})
    session = CommandSession(ProgramTarget(debugger), "model.nnc", Screen(io.StringIO(), io.StringIO()))
    session.execute("record r.log", typed=True)
    session.execute("next", typed=True)
    session.recorder.stop()
    code, _, err = call("replay", "r.log")
    assert (code, "the session on model.nnc cannot be opened again" in err) == (2, True)
    code, _, err = call("--replay", "r.log", "--input", "x=ones")
    assert code == 0, err


# -- overwriting -------------------------------------------------------------------------------------


def test_a_recording_is_not_overwritten_without_force(call: Call) -> None:
    call("--record", "r.log", typed="next\n")
    before = Path("r.log").read_text()
    code, _, err = call("--record", "r.log", typed="next\n")
    assert code == 2
    assert "the recording r.log already exists, and was not changed" in err
    _, _, err = call(typed="record r.log\nnext\n")
    assert "--force" in err
    assert Path("r.log").read_text() == before
    call("--record", "r.log", "--force", typed="list\n")
    assert commands_in("r.log") == ["list"]
    call(typed="record --force r.log\nlist\nlist\n")
    assert commands_in("r.log") == ["list", "list"]
    code, _, err = call("--record", "model.nnc", "--force")
    assert code == 2
    assert "is not a recorded session" in err


@pytest.mark.parametrize(("answer", "kept"), [("y\n", False), ("n\n", True), ("", True)])
def test_overwriting_needs_confirmation(
    call: Call, monkeypatch: pytest.MonkeyPatch, answer: str, kept: bool
) -> None:
    call("--record", "r.log", typed="next\n")
    before = Path("r.log").read_text()
    written = io.StringIO()
    session = CommandSession(
        ProgramTarget(nncdbg.Debugger("model.nnc")), "model.nnc", Screen(written, written)
    )
    session.confirm = confirmed
    Path("typed").write_text(answer)
    with open("typed", encoding="utf-8") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        session.execute("record r.log")
    session.recorder.stop()
    assert ("was not changed" in written.getvalue()) == kept
    assert (Path("r.log").read_text() == before) == kept


def test_two_sessions_cannot_record_to_one_file(call: Call) -> None:
    """T15: a second session is refused, also with --force, until the first one ends or is killed."""
    words = [sys.executable, "-m", "nncdbg", "model.nnc", "--record", "r.log"]
    environment = {**os.environ, "PYTHONPATH": str(Path(nncdbg.__file__).parents[1])}
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    assert child.stdin is not None
    child.stdin.write(b"next\nnote the first session\n")
    child.stdin.flush()
    path = Path("r.log")
    deadline = time.monotonic() + 60
    while not (path.exists() and b"the first session" in path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    code, _, err = call("--record", "r.log", "--force", typed="list\n")
    assert (code, "another session records to r.log, which was not changed" in err) == (2, True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    assert commands_in("r.log") == ["next", "note the first session"]
    code, out, err = call("replay", "r.log")
    assert code == 0
    assert "the recording was not closed: the session ended in `note the first session`" in err
    assert call("--record", "r.log", "--force", typed="list\n")[0] == 0
    assert commands_in("r.log") == ["list"]


def test_a_session_records_again_to_its_own_file(call: Call) -> None:
    call("--record", "r.log", typed="next\nrecord --force r.log\nnext\n")
    recording = read_recording("r.log")
    assert recording.closed
    assert commands_in("r.log") == ["next", "next"]
    assert call("replay", "r.log")[0] == 0


def test_a_recording_ends_once_if_two_threads_end_it(call: Call, tmp_path: Path) -> None:
    """A client disconnects while the program runs on, and the session ends with both."""
    session = CommandSession(
        ProgramTarget(nncdbg.Debugger("model.nnc")), "model.nnc", Screen(io.StringIO(), io.StringIO())
    )
    for number in range(20):
        session.execute(f"record {number}.log", typed=True)
        barrier = threading.Barrier(3)

        def stop(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            session.recorder.stop()

        threads = [threading.Thread(target=stop) for _ in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait()
        session.recorder.failed("an error of the program")
        for thread in threads:
            thread.join()
        assert read_recording(f"{number}.log").closed


def test_a_changed_environment_is_reported(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    call("--record", "r.log", typed="next\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    code, _, err = call("replay", "r.log")
    assert code == 0
    assert "note: recorded with OMP_NUM_THREADS 3, replayed with 2\n" in err
    assert "note: recorded with PYTHONHASHSEED none, replayed with 7\n" in err
    assert err.count("note:") == 2


def test_a_large_file_is_digested_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nncdbg.commands.recording.setup._LARGEST", 1 << 12)
    monkeypatch.setattr("nncdbg.commands.recording.setup._PART", 1 << 8)
    path = tmp_path / "weights"
    path.write_bytes(bytes(10_000))
    before = file_digest(path)
    assert file_digest(path) == before
    for place in (0, 9_999):
        content = bytearray(10_000)
        content[place] = 1
        path.write_bytes(content)
        assert file_digest(path) != before
    path.write_bytes(bytes(10_001))
    assert file_digest(path) != before


# -- laws --------------------------------------------------------------------------------------------

COMMANDS = st.one_of(
    st.sampled_from(["next", "back", "step", "finish", "rback", "rfinish", "rcontinue", "continue", "run"]),
    st.sampled_from(["restart", "stepi", "delete", "marks", "where"]),
    st.sampled_from(
        ["mark a", "goto a", "catch nan inf", "uncatch", "p %v1", "why", "display sum(%x)", "foo"]
    ),
    st.builds("goto :{}".format, st.integers(0, 40)),
    st.builds("branch {}".format, st.integers(0, 3)),
    st.builds(
        "set %{}[{}] = {}".format,
        st.sampled_from(["x", "z", "v1", "v2"]),
        st.integers(0, 2),
        st.floats(-4, 4),
    ),
    st.builds("{} {}".format, st.sampled_from(["break", "tbreak"]), st.integers(1, 14)),
    st.builds("watch %v{}".format, st.integers(1, 4)),
    st.builds("next {}".format, st.integers(0, 5)),
)


def _session(text: str, seed: int) -> tuple[CommandSession, io.StringIO]:
    debugger = nncdbg.Debugger(nncdbg.parse(text), seed=seed)
    written = io.StringIO()
    return CommandSession(ProgramTarget(debugger), "random.nnc", Screen(written, written)), written


@examples(40)
@given(runnable(), st.lists(COMMANDS, min_size=1, max_size=15), st.integers(0, 15))
def test_any_session_replays_with_the_same_stops(
    tmp_path_factory: pytest.TempPathFactory, text: str, commands: list[str], begin: int
) -> None:
    """T15: any session, recorded from its start or from a later command, replays with the same stops."""
    path = str(tmp_path_factory.mktemp("recorded") / "r.log")
    session, _ = _session(text, 0)
    for number, line in enumerate(commands):
        if number == min(begin, len(commands) - 1):
            session.execute(f"record {path}", typed=True)
        session.execute(line, typed=True)
    session.recorder.stop()
    again, written = _session(text, 0)
    assert again.replay(path), written.getvalue()
    other, written = _session(text, 1)
    assert not other.replay(path) or begin > 0, "the inputs differ"
