"""The sessions of tests/transcripts again, typed into the debug console: it says what the terminal says."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from nncdbg.commands.session import PROMPT
from nncdbg.dap_server import console
from tests.dap_server.client import Client, Message
from tests.dap_server.conversations import conversation
from tests.terminal.transcripts import commands, same_output, typed_in

FOLDER = Path(__file__).parents[1] / "transcripts"

NO_SESSION = {
    "diff_f16": "it is `nncdbg diff`, which debugs two programs side by side",
    "long_names": "the console shortens names; a pipe has them in full",
    "python": "it is allowed on the command line; test_evaluate.py runs Python in the console",
    "without_kernel": "its failures are output events too; test_editing.py has this session",
}

DIFFERENT = {
    (
        "attention",
        "info program",
    ): "the server knows a program by its file, not by the words of a command line",
}
"""What a command answers otherwise by nature, and why."""

TITLE = "in @main\n"

FILES = [
    path
    for path in sorted(FOLDER.glob("*.txt"))
    if path.stem not in NO_SESSION and commands(path.read_text(encoding="utf-8"))
]


def parts(transcript: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The words of the command line, and each command with what was answered."""
    header, *lines = transcript.splitlines()
    if lines and lines[-1].startswith("exit code "):
        lines.pop()
    typed: list[tuple[str, list[str]]] = []
    for line in lines:
        if (entered := typed_in(line)) is not None:
            typed.append((entered, []))
        elif typed:
            typed[-1][1].append(line)
    return shlex.split(header.removeprefix("$ nncdbg ")), [(line, "\n".join(said)) for line, said in typed]


def configuration(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The launch configuration of a command line, and what is typed first instead of `--break`."""
    program, *options = words
    known: dict[str, Any] = {"program": program, "stopOnExit": True}
    first = []
    for option, value in zip(options[::2], options[1::2], strict=True):
        match option:
            case "--input":
                name, _, given = value.partition("=")
                known.setdefault("inputs", {})[name] = given
            case "--seed":
                known["seed"] = int(value)
            case "--history":
                known["history"] = value
            case "--break":
                first.append(f"break {value}")
            case _:
                raise AssertionError(f"{option} has no key in a launch configuration")
    return known, first


def typed(client: Client, line: str) -> str:
    """What the console answers to a line, and prints until the program stands again."""
    seen = len(client.messages)
    response = client.expect_response(client.send("evaluate", {"expression": line, "context": "repl"}))
    # Served in turn: after it all that the line has set off has begun.
    client.request("loadedSources")
    if any(each.get("event") == "continued" for each in client.messages[seen:]):
        client.wait_for(lambda m: m["type"] == "event" and m["event"] == "stopped")
    if response["success"]:
        said = [response["body"]["result"]]
    else:
        said = [f"error: {response['body']['error']['variables']['text']}"]
    said += [printed(each["body"]) for each in client.messages[seen:] if each.get("event") == "output"]
    return without_gaps("\n".join(said))


def printed(body: Message) -> str:
    """What is refused once the answer is out comes as important output: clients show it as an error."""
    text: str = body["output"]
    return f"error: {text}" if body["category"] == "important" else text


def without_gaps(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def without_folder(text: str, folder: Path) -> str:
    """The text with the paths that the terminal prints, which is started in `folder`."""
    return text.replace(f"{folder}/", "").replace(str(folder), "FOLDER")


@pytest.fixture
def desk(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the examples in it, and a console as wide as the terminal was."""
    (tmp_path / "examples").symlink_to(repository / "examples")
    (tmp_path / "transcripts").symlink_to(FOLDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "WIDTH", 80)
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_console_says_what_the_terminal_says(path: Path, desk: Path) -> None:
    words, expected = parts(path.read_text(encoding="utf-8"))
    options, first = configuration(words)
    with conversation() as client:
        client.start(options.pop("program"), **options)
        for line in first:
            typed(client, line)
        titled = False
        for line, wanted in expected:
            said, wanted = without_folder(typed(client, line), desk), without_gaps(wanted)
            if not titled and TITLE in said:
                # The terminal has shown it before the first command.
                titled, said = True, said if TITLE in wanted else said.replace(TITLE, "", 1)
            same = same_output(said, wanted)
            assert same is ((path.stem, line) not in DIFFERENT), f"{line}\n{said}\n\ninstead of\n\n{wanted}"


def test_what_differs_is_there() -> None:
    assert all((FOLDER / f"{stem}.txt").exists() for stem in NO_SESSION)
    for stem, line in DIFFERENT:
        assert f"{PROMPT}{line}\n" in (FOLDER / f"{stem}.txt").read_text(encoding="utf-8")
