"""Replays of tests/transcripts must give the same output; `--update` rewrites the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.commands import TABLE
from nncdbg.commands.command_lines import split_command
from tests.terminal.transcripts import commands, play, same_output

FOLDER = Path(__file__).parent.parent / "transcripts"
FILES = sorted(FOLDER.rglob("*.txt"))


@pytest.fixture
def working_folder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the examples, and a screen of 80 columns without colour."""
    (tmp_path / "examples").symlink_to(repository / "examples")
    (tmp_path / "transcripts").symlink_to(FOLDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_a_session_gives_the_same_output(
    path: Path, working_folder: Path, request: pytest.FixtureRequest
) -> None:
    expected = path.read_text(encoding="utf-8")
    seen = play(expected, working_folder)
    if same_output(seen, expected):
        return
    if request.config.getoption("--update"):
        path.write_text(seen, encoding="utf-8")
    else:
        assert seen == expected


def test_every_example_has_a_session(repository: Path) -> None:
    headers = "\n".join(path.read_text(encoding="utf-8").splitlines()[0] for path in FILES)
    assert [path.name for path in (repository / "examples").glob("*.nnc") if path.name not in headers] == []


@pytest.mark.parametrize(
    ("seen", "same"),
    [
        ("%h f32[2] [0.50001  1.5]\nhit 2x", True),
        ("%h f32[2] [0.6 1.5]\nhit 2x", False),
        ("%h f32[2] [0.5 1.5]\nhit 3x", False),
        ("%h f32[2] [0.5 nan]\nhit 2x", False),
        ("%h f32[2] [0.5 1.5] hit 2x", False),
    ],
)
def test_only_last_digits_may_differ(seen: str, same: bool) -> None:
    assert same_output(seen, "%h f32[2] [0.5 1.5]\nhit 2x") is same


def test_the_demo_has_a_transcript(repository: Path) -> None:
    demo = (repository / "examples" / "demo.cmd").read_text(encoding="utf-8").splitlines()
    assert commands((FOLDER / "first_steps.txt").read_text(encoding="utf-8")) == demo


def test_every_command_is_in_some_session() -> None:
    typed = [line for path in FILES for line in commands(path.read_text(encoding="utf-8"))]
    words = {split_command(line)[0] for line in typed}
    names = {word: entry.name for entry in TABLE.values() for word in (entry.name, *entry.shorts)}
    assert set(TABLE) - {names.get(word) for word in words} == set()


def test_the_example_of_a_command_uses_it() -> None:
    """The page of a command shows the whole session, so that it prints the same when it is typed."""
    names = {word: entry.name for entry in TABLE.values() for word in (entry.name, *entry.shorts)}
    for path in FOLDER.glob("commands/*.txt"):
        assert path.stem in TABLE
        assert path.stem in {names.get(split_command(line)[0]) for line in commands(path.read_text("utf-8"))}
    without = {name for name in TABLE if not (FOLDER / "commands" / f"{name}.txt").is_file()}
    assert not without, "add a session to tests/transcripts/commands"
