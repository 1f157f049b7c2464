"""`python -m nncdbg.terminal.reference > docs/COMMANDS.md`: the commands, from their one table."""

from __future__ import annotations

from collections.abc import Iterator

from nncdbg.terminal.commands import GROUPS, TABLE, Command
from nncdbg.terminal.shortcuts import SHORTCUTS

_HEAD = """# Commands of the prompt

This page is generated: `python -m nncdbg.terminal.reference > docs/COMMANDS.md`.

Beginnings of names do as well, where only one command has them; an empty line repeats the last step;
`#` begins a comment. `help NAME` at the prompt says what stands here.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_groups(), *_keys()]) + "\n"


def _groups() -> Iterator[str]:
    for group, title in GROUPS.items():
        yield f"## {title}\n"
        for entry in TABLE.values():
            if entry.group == group:
                yield _entry(entry)


def _entry(entry: Command) -> str:
    shorts = "".join(f", `{short}`" for short in entry.shorts)
    parts = [f"### `{entry.usage}`{shorts}\n\n{entry.help}"]
    if entry.details:
        parts.append(f"```\n{entry.details}\n```")
    return "\n".join(parts) + "\n"


def _keys() -> Iterator[str]:
    yield "## Keys\n\n| key | does |\n|---|---|"
    for keys, line, what in SHORTCUTS:
        yield f"| {keys} | {f'`{line}`' if line else ''}{what} |"


if __name__ == "__main__":
    print(reference(), end="")
