"""The table of commands of gdb, pdb and delve: each works, or names another command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nncdbg
from nncdbg.commands import TABLE, find, resolve
from nncdbg.commands.command_lines import split_command
from nncdbg.commands.familiar import ALIASES, ANSWERS, FAMILIAR, LETTERS
from nncdbg.commands.session import CommandSession
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

LINES = sorted({line for lines in FAMILIAR.values() for line in lines})


@pytest.fixture
def session(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandSession:
    """A session stopped in a loop, with one breakpoint and one displayed expression."""
    path = repository / "examples" / "first_steps.nnc"
    program = nncdbg.load(str(path))
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("p 1\n")
    made = CommandSession(ProgramTarget(nncdbg.Debugger(program)), str(path), Screen())
    for line in ("break 13", "continue", "continue", "mark m", "display $iter", "p 1"):
        assert made.execute(line)
    return made


def test_the_table_has_at_least_90_commands() -> None:
    assert len(LINES) >= 90
    assert len({split_command(line)[0] for line in LINES}) >= 90


@pytest.mark.parametrize("line", LINES)
def test_familiar_command_works_or_names_another(
    line: str, session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    session.screen = Screen()
    capsys.readouterr()
    worked = session.execute(line, typed=True)
    shown = capsys.readouterr()
    if worked:
        assert shown.err == ""
        return
    named = re.findall(r"`([a-z]+)", shown.err.partition("hint:")[2])
    assert named, f"{line}: no command is named in {shown.err!r}"
    assert all(find(word).name for word in named if word not in ("nncdbg", "end")), shown.err


def test_answers_are_only_for_unsupported_commands() -> None:
    for alias, line in ALIASES.items():
        word, arguments = split_command(line)
        assert resolve(alias, "")[0] is TABLE[word]
        assert (alias in TABLE) is False
        assert arguments == resolve(alias, "")[1]
    for word in ANSWERS:
        with pytest.raises(UsageError, match=word):
            find(word)


@pytest.mark.parametrize("letter", LETTERS, ids=lambda letter: letter.letter)
def test_letter_runs_the_documented_command(letter: tuple[str, ...]) -> None:
    name, here, *elsewhere = letter
    if here.startswith("neither"):
        with pytest.raises(UsageError) as caught:
            find(name)
        for command in re.findall(r"`(\w+)`", here):
            assert f"`{command}" in str(caught.value.hint)
        return
    command, arguments = resolve(name, "")
    assert f"{command.name} {arguments}".strip() == here.partition(";")[0]
    assert not any(elsewhere) or any(
        each.split()[0] in (command.name, arguments, "args") for each in elsewhere if each
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("p (%h, 1)", "[1] 1"),
        ('p unique("a")', "[0] 'a'"),
        ("!print(type(h).__name__)", "ndarray"),
        ("rnu", "did you mean `run`?"),
        ("whatis %centred", "%centred: f32[2,4]"),
        ("watch %s[0, 9]", "%s[0, 9] is not an element of f32[2,3]"),
    ],
)
def test_python_spellings_and_swapped_letters(
    line: str, shown: str, session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    session.screen = Screen()
    session.execute(line, typed=True)
    assert shown in "".join(capsys.readouterr())


def test_clear_keeps_watchpoints_of_the_line(session: CommandSession) -> None:
    for line in ("watch %h", "break 10", "clear 10"):
        assert session.execute(line, typed=True)
    assert [found.kind for found in session.target.python_names()["debugger"].breakpoints][-1:] == ["data"]
    assert all(
        found.kind != "line" or found.target != "10"
        for found in session.target.python_names()["debugger"].breakpoints
    )


def test_help_fills_paragraphs_and_keeps_examples(
    session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    session.screen = Screen()
    session.execute("help py", typed=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert '      execute("next")' in lines


def test_whatis_gives_the_declared_type_of_a_block_that_has_not_run(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(repository / "examples" / "first_steps.nnc")
    fresh = CommandSession(ProgramTarget(nncdbg.Debugger(path)), path, Screen())
    assert fresh.execute("whatis %centred")
    assert capsys.readouterr().out.startswith("%centred: f32[2,4], not computed yet")
