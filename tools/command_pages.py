"""The pages of commands: an index and a page per command, for the prompt and for the command line.

The text comes from the table of commands, from argparse and from the recorded sessions in tests/transcripts.
"""

from __future__ import annotations

import re
import sys
from argparse import Action
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from nncdbg.commands import GROUPS, TABLE, Command
from nncdbg.commands.session import PROMPT
from nncdbg.commands.shortcuts import SHORTCUTS
from nncdbg.opening.command_line import ArgumentParser
from nncdbg.terminal.main import COMMANDS, main

TRANSCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "transcripts"
SEE_ALSO = 6

_INDEX = """# Commands of the prompt

`make docs` generates this page. `help NAME` shows the same text at the prompt.

Any unambiguous prefix of a command name works. An empty line repeats the last step. `#` starts a comment.

PLACE is a line (`12`), a source line (`net.py:11`), or the name of a value (`%h`), a graph, layer or loop
(`@layer1`), an op (`Softmax`), or a node or module (`node /attn/Softmax`), as any command prints it.
Without a sigil, a name may be of any kind. A part of a name is enough if only one place has it, and a
pattern with `*` or `?` stands for all names that it fits: `break node */attn/Softmax`. If several places
fit, the error lists them.
"""

_COMMAND_LINE = """# Command line

`make docs` generates this page. `nncdbg COMMAND --help` shows the same options.

| command | description |
|---|---|
"""

_EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | a gate tripped: `watch` found something, `diff` found a difference |
| 2 | wrong usage |
| 3 | the model or a file could not be read, or needs an unsupported op |
| 4 | the graph failed while running |
| 70 | a bug in nncdbg; the message contains the path of the report |
| 130 | interrupted |

With `--json`, standard output contains exactly one JSON document; messages go to standard error.
"""


def prompt_index() -> str:
    """Return docs/COMMANDS.md: every command by group, with its short forms, then the keys."""
    return "\n".join([_INDEX, *_groups(), *_keys(), _toctree("commands/*")])


def prompt_pages() -> dict[str, str]:
    """Return the page of each command of the prompt, by file name."""
    return {f"{name}.md": _prompt_page(entry, _example(name)) for name, entry in TABLE.items()}


def command_line_index() -> str:
    """Return docs/COMMAND_LINE.md: the commands of the shell and their exit codes."""
    rows = ["| [`nncdbg MODEL`](command-line/nncdbg.md) | open a model at the prompt |"]
    rows += [
        f"| [`nncdbg {name}`](command-line/{name}.md) | {_cell(words)} |" for name, words in COMMANDS.items()
    ]
    return _COMMAND_LINE + "\n".join(rows) + "\n" + _EXIT_CODES + "\n" + _toctree("command-line/*")


def command_line_pages() -> dict[str, str]:
    """Return the page of each command of the shell, by file name."""
    pages = {"nncdbg.md": _command_line_page(_parser_of([]))}
    for name in COMMANDS:
        pages[f"{name}.md"] = _command_line_page(_parser_of([name]), TRANSCRIPTS / f"shell_{name}.txt")
    return pages


def _groups() -> Iterator[str]:
    for group, title in GROUPS.items():
        yield f"## {title}\n\n| command | short | description |\n|---|---|---|"
        for entry in TABLE.values():
            if entry.group == group:
                shorts = " ".join(f"`{short}`" for short in entry.shorts)
                link = f"[`{_cell(entry.usage)}`](commands/{entry.name}.md)"
                yield f"| {link} | {shorts} | {_cell(entry.help)} |"
        yield ""


def _keys() -> Iterator[str]:
    yield "## Keys\n\n| key | command |\n|---|---|"
    for keys, line, what in SHORTCUTS:
        yield f"| {_cell(keys)} | {f'`{_cell(line)}`' if line else ''}{_cell(what)} |"
    yield ""


def _toctree(pattern: str) -> str:
    return f"```{{toctree}}\n:hidden:\n:glob:\n\n{pattern}\n```\n"


def _prompt_page(entry: Command, example: tuple[str, str] | None) -> str:
    parts = [f"# {entry.name}", f"```text\n{entry.usage}\n```", entry.help]
    if entry.shorts:
        parts.append("Short forms: " + ", ".join(f"`{short}`" for short in entry.shorts) + ".")
    if entry.details:
        parts.append(f"```text\n{entry.details}\n```")
    if example:
        header, lines = example
        parts.append(f"## Example\n\nIn `{header}`:\n\n```console\n{lines}\n```")
    links = ", ".join(f"[{name}]({name}.md)" for name in _related(entry))
    parts.append(f"See also: {links}. [All commands](../COMMANDS.md).")
    return "\n\n".join(parts) + "\n"


def _related(entry: Command) -> list[str]:
    """Return the commands in the text of `entry`, those with `entry` in their text, and its neighbours."""
    named = [name for name in TABLE if name in _quoted_words(entry)]
    naming = [other.name for other in TABLE.values() if entry.name in _quoted_words(other)]
    group = [other.name for other in TABLE.values() if other.group == entry.group]
    place = group.index(entry.name)
    nearest = sorted(group, key=lambda name: abs(group.index(name) - place))
    found = [name for name in dict.fromkeys([*named, *naming, *nearest[:4]]) if name != entry.name]
    return found[:SEE_ALSO]


def _quoted_words(entry: Command) -> set[str]:
    quoted = re.findall(r"`([^`]+)`", f"{entry.help}\n{entry.details}")
    return {text.split()[0] for text in quoted if text.strip()}


def _example(name: str) -> tuple[str, str] | None:
    """Return (command that starts the session, what is typed and printed) of a command; None without one."""
    path = TRANSCRIPTS / "commands" / f"{name}.txt"
    if not path.is_file():
        return None
    started, typed, session = path.read_text(encoding="utf-8").partition(f"\n{PROMPT}")
    return started.splitlines()[0].removeprefix("$ "), f"{typed}{session}".strip()


def _command_line_page(parser: ArgumentParser, session: Path | None = None) -> str:
    description = (parser.description or "").partition("\n\ncommands")[0]
    parts = [f"# {parser.prog}", description, f"```text\n{_synopsis(parser)}\n```"]
    if session and session.is_file():
        parts.append(f"## Example\n\n```console\n{session.read_text(encoding='utf-8')}```")
    parts.append(f"## Arguments\n\n{_options(parser)}")
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog}\n```")
    parts.append("[Exit codes](../COMMAND_LINE.md#exit-codes). [All commands](../COMMAND_LINE.md).")
    return "\n\n".join(parts) + "\n"


def _synopsis(parser: ArgumentParser) -> str:
    """Return the command with its positional arguments; an optional one is in brackets."""
    words = [str(action.metavar or action.dest.upper()) for action in parser._get_positional_actions()]
    optional = [action.nargs == "?" for action in parser._get_positional_actions()]
    places = [f"[{word}]" if may_lack else word for word, may_lack in zip(words, optional, strict=True)]
    return " ".join([parser.prog, *places, "[options]"])


def _options(parser: ArgumentParser) -> str:
    rows = [_row(action) for action in parser._actions if action.dest != "help"]
    return "\n".join(["| argument | description |", "|---|---|", *rows])


def _row(action: Action) -> str:
    value = str(action.metavar or (action.dest.upper() if action.nargs != 0 else ""))
    if action.choices and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        names = f"`{_cell(value)}`"
    else:
        names = ", ".join(f"`{_cell(f'{option} {value}'.strip())}`" for option in action.option_strings)
    return f"| {names} | {_cell(str(action.help).replace('%%', '%'))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _parser_of(command: list[str]) -> ArgumentParser:
    """Return the argparse parser that `nncdbg COMMAND --help` prints."""
    found: list[ArgumentParser] = []
    with patch.object(ArgumentParser, "print_help", lambda parser, file=None: found.append(parser)):
        code = main([*command, "--help"])
    if code != 0 or not found:
        sys.exit(f"nncdbg {' '.join(command)} --help ended with {code}")
    return found[0]
