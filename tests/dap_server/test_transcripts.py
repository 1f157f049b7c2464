"""Sessions of tests/transcripts in the debug console: the output equals that of the terminal."""

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
    ): "the server shows the file of a program, not its command line",
}
"""Commands with different output in the console, and why."""

TITLES = ("in @main\n", "in @program\n")

FILES = [
    path
    for path in sorted(FOLDER.glob("*.txt"))
    if path.stem not in NO_SESSION and commands(path.read_text(encoding="utf-8"))
]


def parts(transcript: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the arguments of the command line, and each command with its output."""
    header, *lines = transcript.splitlines()
    if lines and lines[-1].startswith("exit code "):
        lines.pop()
    typed: list[tuple[str, list[str]]] = []
    for line in lines:
        if (entered := typed_in(line)) is not None:
            typed.append((entered, []))
        elif typed:
            typed[-1][1].append(line)
    return shlex.split(header.removeprefix("$ nncdbg ")), [
        (line, "\n".join(output)) for line, output in typed
    ]


def configuration(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the launch configuration of a command line, and the commands that replace `--break`."""
    program, *options = arguments
    known: dict[str, Any] = {"program": program, "stopOnExit": True}
    first = []
    for option, value in zip(options[::2], options[1::2], strict=True):
        match option:
            case "--input":
                name, _, given = value.partition("=")
                known.setdefault("inputs", {})[name] = given
            case "--seed":
                known["seed"] = int(value)
            case "--steps":
                known["steps"] = int(value)
            case "--history":
                known["history"] = value
            case "--track":
                name, _, expression = value.partition("=")
                known.setdefault("track", {})[name] = expression
            case "--break":
                first.append(f"break {value}")
            case _:
                raise AssertionError(f"{option} has no key in a launch configuration")
    return known, first


def typed(client: Client, line: str) -> str:
    """Return the output of a console line, up to the next stop."""
    seen = len(client.messages)
    response = client.expect_response(client.send("evaluate", {"expression": line, "context": "repl"}))
    # Requests are handled in order: after this one, a move of the line has started.
    client.request("loadedSources")
    if any(each.get("event") == "continued" for each in client.messages[seen:]):
        client.wait_for(lambda m: m["type"] == "event" and m["event"] == "stopped")
    if response["success"]:
        output = [response["body"]["result"]]
    else:
        output = [f"error: {response['body']['error']['variables']['text']}"]
    output += [printed(each["body"]) for each in client.messages[seen:] if each.get("event") == "output"]
    return without_gaps("\n".join(output))


def printed(body: Message) -> str:
    """Format an output event; an error after the response is output of category `important`."""
    text: str = body["output"]
    return f"error: {text}" if body["category"] == "important" else text


def without_gaps(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def without_folder(text: str, folder: Path) -> str:
    """Return the text with paths relative to `folder`, as the terminal prints them."""
    return text.replace(f"{folder}/", "").replace(str(folder), "FOLDER")


@pytest.fixture
def working_folder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the examples, and a console of 80 columns."""
    (tmp_path / "examples").symlink_to(repository / "examples")
    (tmp_path / "transcripts").symlink_to(FOLDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "WIDTH", 80)
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_console_gives_the_output_of_the_terminal(path: Path, working_folder: Path) -> None:
    arguments, expected = parts(path.read_text(encoding="utf-8"))
    options, first = configuration(arguments)
    with conversation() as client:
        client.start(options.pop("program"), **options)
        for line in first:
            typed(client, line)
        titled = False
        for line, wanted in expected:
            output, wanted = without_folder(typed(client, line), working_folder), without_gaps(wanted)
            title = next((each for each in TITLES if each in output), None)
            if not titled and title is not None:
                # The terminal shows the title before the first command.
                titled, output = True, output if title in wanted else output.replace(title, "", 1)
            same = same_output(output, wanted)
            assert same is ((path.stem, line) not in DIFFERENT), f"{line}\n{output}\n\ninstead of\n\n{wanted}"


def test_every_listed_difference_is_in_a_transcript() -> None:
    assert all((FOLDER / f"{stem}.txt").exists() for stem in NO_SESSION)
    for stem, line in DIFFERENT:
        assert f"{PROMPT}{line}\n" in (FOLDER / f"{stem}.txt").read_text(encoding="utf-8")
