"""Commands on a model full of hostile names print no raw control characters."""

from __future__ import annotations

import json
import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
import nncdbg.journal
from nncdbg.commands import TABLE
from nncdbg.commands.completion import candidates
from nncdbg.commands.session import CommandSession
from nncdbg.errors import NncdbgError, RunError
from nncdbg.escaping import printable, printable_line, printable_styled
from nncdbg.journal import NewRun
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget
from nncdbg.terminal.main import COMMANDS, main
from tests.hostile import ATTACK, RAW, hostile, hostile_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hostile_model(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal whose run, track, note, event and edit have hostile names and texts."""
    path = tmp_path / "hostile.db"
    new = NewRun(kind="graph", name=hostile("run"), command=[hostile("command")])
    with nncdbg.journal.open(path, write=True) as file, file.start(new) as run:
        for step in range(3):
            run.step(step, values=[(hostile("loss"), 0.5, "train"), (hostile("loss"), 0.25, hostile("test"))])
        run.keep_values(1, {hostile("w"): np.ones(3, np.float32)}, codec="f16")
        run.note(hostile("note"), 1)
        run.event("nan", 2, hostile("event"))
        run.edit(hostile("w"), 2, hostile("edit"))
    return path


def lines_for(name: str) -> list[str]:
    """Return lines of a command: without arguments, with existing names, and with missing names."""
    value = '%"' + printable_line(hostile("h")) + '"'
    missing = '%"' + printable_line(hostile("gone")) + '"'
    arguments = ["", value, missing, "1", "3", hostile("argument"), f"{value} = 5", f"@{missing[1:]}", "nan"]
    return [f"{name} {argument}" for argument in arguments]


def session_of(model: Path) -> tuple[CommandSession, StringIO]:
    written = StringIO()
    debugger = nncdbg.Debugger(nncdbg.load(model), {hostile("x"): np.ones(3, np.float32)})
    return CommandSession(ProgramTarget(debugger), str(model), Screen(written, written)), written


LEAVING = {"quit"}


@pytest.mark.parametrize("name", [name for name in TABLE if name not in LEAVING])
def test_no_command_of_the_prompt_shows_a_raw_control(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for advance in (["next", "step"], ["catch nan", "continue"]):
        session, written = session_of(model)
        for line in [*advance, *lines_for(name), "where", "list"]:
            session.execute(line, typed=True)
        text = written.getvalue()
        assert "owned" in text or not text, "the hostile names are in the output"
        assert not RAW.findall(text), text


ONE_SHOT = {
    "run": [
        ["{model}"],
        ["{model}", "--json"],
        ["{model}", "--dim", "bad=3"],
        ["{model}", "--input", "x=zeros"],
    ],
    "autotune": [
        ["{model}"],
        ["{model}", "--json"],
        ["{model}", "--candidate", hostile("backend")],
        ["{model}", "--kernel", hostile("Op") + "=numpy"],
    ],
    "watch": [
        ["{model}"],
        ["{model}", "--json"],
        ["{model}", "--github"],
        ["{model}", "--strict", "--runs", "2"],
    ],
    "profile": [
        ["{model}", "--runs", "2"],
        ["{model}", "--by", "layer", "--runs", "1", "--json"],
        ["{model}", "--by", "op", "--csv", "--runs", "1"],
        ["{model}", "--by", hostile("op")],
        ["{text}", "--timeline", hostile("folder/") + "trace.json"],
    ],
    "diff": [
        ["{model}", "{model}"],
        ["{model}", "{model}", "--json"],
        ["{model}", "{text}"],
        ["{model}", "{model}", "--inputs-dir", "cases", "--jobs", "1"],
        ["{model}", "{text}", "--inputs-dir", "cases", "--jobs", "1", "--json"],
    ],
    "record": [["{model}"], [hostile("train.py")], ["{model}", "--step", hostile("1")]],
    "debug": [["{model}"], [hostile("train.py")], [hostile("train.py"), "--break", hostile("op")]],
    "attach": [[hostile("job")], ["--ranks", hostile("job")]],
    "reduce": [["{model}", "-o", "reduced"], ["{model}", "--json", "-o", "again"]],
    "bisect": [["{model}"], ["{model}", "--json"]],
    "print": [["{model}"], ["{model}", "--flat"], ["{model}", "--streams", "2"]],
    "races": [
        ["{model}"],
        ["{model}", "--streams", "2"],
        ["{model}", "--schedule", hostile("missing.json")],
        ["{model}", "--schedule", "unordered.json"],
        ["{model}", "--schedule", "unordered.json", "--json"],
    ],
    "listing": [["{model}"]],
    "ops": [[hostile("Op")], [], ["Softmax"]],
    "dap": [["--listen", hostile("host") + ":1"], ["--socket", hostile("/nowhere/s")]],
    "lsp": [[hostile("argument")]],
    "repl": [["--connect", hostile("/nowhere/socket")]],
    "runs": [["{journal}"], ["{journal}", "--json"], [hostile("run.db")], ["{model}"]],
    "log": [
        ["{journal}"],
        ["{journal}", "--json"],
        ["{journal}", "--track", hostile("loss")],
        ["{journal}", "--values"],
        ["{journal}", "--values", hostile("w")],
        ["{journal}", "--values", hostile("no")],
        [hostile("run.db#1")],
    ],
    "sql": [
        ["{journal}", "select * from notes"],
        ["{journal}", "select name from tracks"],
        ["{journal}", hostile("no")],
    ],
    "export": [["{journal}", "--tensorboard", "events"], [hostile("run.db")], ["{model}"]],
    "replay": [[hostile("missing.log")], ["{model}"]],
}


def unordered(program: nncdbg.Program) -> dict[str, dict[str, str]]:
    """Return margins that put each statement on a stream of its own, without any event."""
    return {
        name: {node.outputs[0].name: f"s{at}" for at, node in enumerate(graph.nodes)}
        for name, graph in program.graphs.items()
    }


def test_every_one_shot_command_is_tested() -> None:
    assert {*ONE_SHOT} == {*COMMANDS}


@pytest.mark.parametrize("command", ONE_SHOT)
def test_no_one_shot_command_shows_a_raw_control(
    command: str,
    model: Path,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["print", str(model), "-o", "text.nnc"]) == 0
    assert main(["run", str(model)]) == 0, "the model is valid"
    schedule = {"nncdbg_schedule": 1, "graphs": unordered(nncdbg.load(model))}
    Path("unordered.json").write_text(json.dumps(schedule))
    Path("cases").mkdir()
    for case, name in (("fitting", "x"), ("unfit", "z")):
        arrays: dict[str, Any] = {hostile(name): np.ones(3, np.float32)}
        np.savez(f"cases/{hostile(case)}.npz", **arrays)
    for arguments in ONE_SHOT[command]:
        places = {"{model}": str(model), "{text}": "text.nnc", "{journal}": str(journal)}
        filled = [places.get(each, each) for each in arguments]
        main([command, *filled])
        out, err = capfd.readouterr()
        assert out + err, filled
        assert not RAW.findall(out + err), (filled, out + err)


def test_no_error_about_the_file_shows_a_raw_control(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for damaged in (b"", b"no model at all", model.read_bytes()[:-20]):
        path = tmp_path / f"damaged{ATTACK}.onnx"
        path.write_bytes(damaged)
        main(["run", str(path)])
    main(["run", str(tmp_path / hostile("missing.onnx"))])
    main([str(tmp_path / hostile("missing.onnx"))])
    main(["run", str(model), "--input", f"{hostile('x')}={hostile('file')}.npy"])
    out, err = capfd.readouterr()
    assert err.count("error: ") == 6
    assert not RAW.findall(out + err), out + err


def test_a_colour_terminal_gets_styles_and_no_other_control(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    debugger = nncdbg.Debugger(nncdbg.load(model), {hostile("x"): np.ones(3, np.float32)})
    session = CommandSession(
        ProgramTarget(debugger), str(model), Screen(written, written, width=60, color=True)
    )
    for line in ("list", "next", "next", "where", "info values", "why", "stats", "show"):
        session.execute(line)
    text = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())
    assert "owned" in text
    assert not RAW.findall(text)


def test_completion_offers_no_raw_control(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / hostile("commands")).touch()
    (tmp_path / "plain").touch()
    session, _ = session_of(model)
    offered = []
    for line in ("p %", "p ", "break @", "break ", "source ", "goto ", "list @", "set %", "watch %", "mean("):
        offered += candidates(session, line)[1]
    assert any("owned" in each for each in offered)
    assert "plain" in offered
    assert not RAW.findall("".join(offered))


def test_python_gets_escaped_errors_and_reports(model: Path) -> None:
    program = nncdbg.load(model)
    debugger = nncdbg.Debugger(program, {hostile("x"): np.ones(3, np.float32)})
    with pytest.raises(NncdbgError) as caught:
        debugger.value(hostile("last"))
    assert not RAW.findall(str(caught.value))
    report = nncdbg.watch(program, inputs={hostile("x"): np.ones(3, np.float32)})
    assert not RAW.findall(str(program))
    assert not report.ok


def test_control_characters_are_escaped_and_other_text_is_kept() -> None:
    assert printable("a\tb\nc\x1b[31m\x9b\u202e") == "a\tb\nc\\x1b[31m\\x9b\\u202e"
    assert printable_line("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert printable_styled("\x1b[1;31mred\x1b[0m \x1b]0;t\x07") == "\x1b[1;31mred\x1b[0m \\x1b]0;t\\x07"
    assert printable("é𝄞 ‘…’ 漢字 🙂") == "é𝄞 ‘…’ 漢字 🙂"
    assert str(RunError("\x1b", hint="\x07")) == "\\x1b\n  hint: \\x07"
    assert os.linesep not in printable_line("\u2028\u2029")
