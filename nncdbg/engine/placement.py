"""From what a user names (a line, an op, a graph, a value) to the statements that carry the trap."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from nncdbg.engine.breakpoints import Breakpoint, matching
from nncdbg.engine.code import Code
from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Program
from nncdbg.engine.search import candidates, places
from nncdbg.textual_repr.listing import Listing


@dataclass(frozen=True, slots=True)
class Placement:
    """Binds breakpoints to the statements of one program."""

    program: Program
    listing: Listing

    def bind(self, found: Breakpoint, codes: Iterable[Code]) -> None:
        """Set the lines and sites of a breakpoint; UsageError for a place that does not exist."""
        if found.kind == "line":
            self._bind_line(found)
        else:
            self._bind_target(found)
        for code in codes:
            self.bind_in(found, code)

    def _bind_line(self, found: Breakpoint) -> None:
        line = int(found.target)
        place = self.listing.next_site(line)
        if place is None or line < 1:
            last = len(self.listing.lines)
            raise UsageError(
                f"there is no statement at or after line {line}", hint=f"the listing has {last} lines"
            )
        if place[0] != line:
            found.note = f"line {line} has no statement; moved to line {place[0]}"
        found.lines = (place[0],)

    def _bind_target(self, found: Breakpoint) -> None:
        found.lines = tuple(
            sorted(self.listing.line(path, pc) for path, pc in places(self.program, found.kind, found.target))
        )
        if not found.lines:
            raise self._nothing_there(found)

    def bind_in(self, found: Breakpoint, code: Code) -> None:
        """Add the statements of one block, which may be compiled later than the breakpoint was set."""
        if found.kind == "line":
            site = self.listing.site(found.lines[0])
            if site is not None and code.formula is None and code.path == site.path:
                after = _tests_result(found, code, site.pc)
                found.sites.append((code, site.pc + after, after))
            return
        found.sites.extend((code, pc, after) for pc, after in matching(found, code))

    def _nothing_there(self, found: Breakpoint) -> UsageError:
        sigil = {"op": "", "graph": "@"}.get(found.kind, "%")
        near = difflib.get_close_matches(found.target, candidates(self.program, found.kind), 1)
        kind = "value" if found.kind == "data" else found.kind
        return UsageError(
            f"the program has no {kind} {sigil}{found.target}",
            hint=f"did you mean {sigil}{near[0]}?" if near else None,
        )


def _tests_result(found: Breakpoint, code: Code, pc: int) -> bool:
    """Whether the condition names what the statement computes, so that it is tested after it."""
    if found.condition is None or pc >= len(code.nodes):
        return False
    return any(value.name in found.condition.names for value in code.nodes[pc].outputs if value.name)


def braced(text: str) -> list[str]:
    """The expressions in braces of a log message; UsageError for a brace that is not closed."""
    parts, start = [], 0
    while (opening := text.find("{", start)) >= 0:
        closing = text.find("}", opening)
        if closing < 0:
            raise UsageError(f"the brace at column {opening + 1} of the log message is not closed")
        parts.append(text[opening + 1 : closing])
        start = closing + 1
    return parts
