"""Multi-line commands, ended by a line `end`, and the commands of a breakpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_OPENING = ("py", "python", "commands")


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a breakpoint.

    `recorded`: they come from a recording, so Python in them needs consent.
    """

    lines: tuple[str, ...]
    recorded: bool

    @property
    def silent(self) -> bool:
        """Return True if the stop is not printed."""
        return self.lines[0] == "silent"

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the lines to run."""
        return self.lines[1:] if self.silent else self.lines


@dataclass(slots=True)
class CommandBlock:
    """The lines of one command, as typed.

    `holds_commands`: the lines are commands, which may be multi-line commands themselves.
    """

    name: str
    take: Callable[[list[str]], None]
    holds_commands: bool
    lines: list[str] = field(default_factory=list)
    _depth: int = 0

    def ends_with(self, line: str) -> bool:
        """Add a line, or return True for the `end` of this block."""
        words = line.split()
        if words == ["end"]:
            if not self._depth:
                return True
            self._depth -= 1
        elif self.holds_commands and (words[:1] == ["commands"] or len(words) == 1 and words[0] in _OPENING):
            self._depth += 1
        self.lines.append(line)
        return False
