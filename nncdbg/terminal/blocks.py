"""Lines that belong to a command, up to a line `end`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_OPENING = ("py", "python", "commands")


@dataclass(slots=True)
class Block:
    """The lines of one command, as typed.

    `holds_commands`: a command among them may have lines of its own.
    """

    name: str
    take: Callable[[list[str]], None]
    holds_commands: bool
    lines: list[str] = field(default_factory=list)
    _depth: int = 0

    def ends_with(self, line: str) -> bool:
        """Keep a line, or return True for the `end` of this block."""
        words = line.split()
        if words == ["end"]:
            if not self._depth:
                return True
            self._depth -= 1
        elif self.holds_commands and (words[:1] == ["commands"] or len(words) == 1 and words[0] in _OPENING):
            self._depth += 1
        self.lines.append(line)
        return False
