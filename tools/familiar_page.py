"""The page docs/FAMILIAR.md: commands of gdb, pdb and delve at the prompt, from their table."""

from __future__ import annotations

from collections.abc import Iterator

from nncdbg.commands import resolve
from nncdbg.commands.command_lines import split_command
from nncdbg.commands.familiar import FAMILIAR, LETTERS
from nncdbg.errors import UsageError

_HEAD = """# For users of gdb, pdb and delve

The commands of gdb, pdb and delve work at the prompt of nncdbg. If a command has no meaning for a
computation graph, nncdbg prints the command to use. `make docs` generates this page from
`nncdbg/commands/familiar.py`. A test runs every command on this page.

## Letters

If gdb, pdb and delve agree on a letter, nncdbg uses the same meaning. Otherwise, nncdbg uses the harmless
meaning, or prints both commands. In a terminal, `delete` without numbers needs confirmation. `run`
also needs confirmation if the program has already started. Scripts and pipes need no confirmation. In the
debug console of an editor, use `delete all`.

| letter | nncdbg | gdb | pdb | delve |
|---|---|---|---|---|"""

_COMMANDS = """
## Commands

| typed | in | nncdbg |
|---|---|---|"""


def page() -> str:
    """Return the page, in Markdown."""
    return "\n".join([_HEAD, *_letters(), _COMMANDS, *_commands()]) + "\n"


def _letters() -> Iterator[str]:
    for name, here, *elsewhere in LETTERS:
        cells = " | ".join(f"`{each}`" if each else "" for each in elsewhere)
        yield f"| `{name}` | {here} | {cells} |"


def _commands() -> Iterator[str]:
    tools: dict[str, list[str]] = {}
    for named, lines in FAMILIAR.items():
        for line in lines:
            known = tools.setdefault(line, [])
            known.extend(tool for tool in named.split() if tool not in known)
    for line in sorted(tools, key=str.casefold):
        typed = line.replace("|", "\\|")
        yield f"| `{typed}` | {', '.join(sorted(tools[line], key=_ORDER.index))} | {_meaning(line)} |"


def _meaning(line: str) -> str:
    """Return the meaning of a line: its command with the help line, or the answer of the prompt."""
    word, arguments = split_command(line)
    try:
        command, expanded = resolve(word, arguments)
    except UsageError as error:
        return f"{error.message.partition(': ')[2]}: {error.hint}"
    what = f"`{command.name} {expanded}`".replace(" `", "`") if command.name != word else ""
    return what if command.name == "info" and what else f"{what}: {command.help}" if what else command.help


_ORDER = ["gdb", "pdb", "delve"]
