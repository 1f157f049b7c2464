"""Resolve the target of a breakpoint (a line, op, graph or value) to the statements with its traps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.stopping.breakpoints import Breakpoint, matching, reads_result
from nncdbg.engine.stopping.place_names import NamedPlace, PlaceNames
from nncdbg.errors import UsageError
from nncdbg.ir.records import Path, Program
from nncdbg.ir.search import origins, same_file
from nncdbg.text.listing import Listing


@dataclass(frozen=True)
class BreakpointPlaces:
    """Binds breakpoints to the statements of one program."""

    program: Program
    listing: Listing
    listing_in: Callable[[Code], Listing]
    """Returns the listing that contains the statements of a block."""
    named: PlaceNames

    @cached_property
    def origins(self) -> Mapping[str, Mapping[int, Sequence[tuple[Path, int]]]]:
        """Return the statements made by each line of each file of the user's model."""
        return origins(self.program)

    def bind(self, found: Breakpoint, codes: Iterable[Code]) -> None:
        """Set the lines and sites of a breakpoint.  Raises UsageError for a place that does not exist."""
        if found.kind == "line":
            self._bind_line(found)
        elif found.kind == "source":
            self._bind_source(found)
        elif found.kind == "site":
            self._bind_site(found)
        else:
            self._bind_target(found)
        for code in codes:
            self.bind_in(found, code)
        if not found.after_writes and any(after and pc for _, pc, after in found.sites):
            what = "the condition" if found.log is None else "the message"
            words = f"{what} reads the result, so it is evaluated after the statement"
            found.note = f"{found.note}; {words}" if found.note else words

    def _bind_line(self, found: Breakpoint) -> None:
        line = int(found.target)
        place = self.listing.next_site(line)
        if place is None or line < 1:
            last = len(self.listing.lines)
            raise UsageError(f"no statement at or after line {line}", hint=f"choose a line from 1 to {last}")
        if place[0] != line:
            found.note = f"line {line} has no statement; moved to line {place[0]}"
            found.target = str(place[0])
        found.lines = (place[0],)

    def _bind_source(self, found: Breakpoint) -> None:
        file, _, number = found.target.rpartition(":")
        line = int(number)
        origin = self.origin(file)
        if not origin:
            raise UsageError(f"no statement comes from {file}", hint=self._known_files())
        there = min((each for each in origin if each >= line), default=None)
        if there is None or line < 1:
            raise UsageError(f"no statement comes from {file}:{line} or later")
        if there != line:
            found.note = f"line {line} has no statement; moved to line {there}"
            found.target = f"{file}:{there}"
        found.lines = tuple(sorted(self.listing.line(path, pc) for path, pc in origin[there]))

    def origin(self, file: str) -> dict[int, list[tuple[Path, int]]]:
        """Return the statements made by each line of a file of the user's model; empty for other files."""
        lines: dict[int, list[tuple[Path, int]]] = {}
        for known, origin in self.origins.items():
            if same_file(known, file):
                for line, sites in origin.items():
                    lines.setdefault(line, []).extend(sites)
        return lines

    def _known_files(self) -> str | None:
        files = sorted(self.origins)
        return (
            f"use one of the source files: {', '.join(files[:3])}{' ...' if len(files) > 3 else ''}"
            if files
            else None
        )

    def _bind_site(self, found: Breakpoint) -> None:
        assert found.place is not None
        block, pc = found.place
        if isinstance(block, Listing):
            if block.site(pc) is None:
                raise UsageError(f"there is no statement on {found.target}")
            return
        if isinstance(block, Code):
            if block.formula is not None:
                return
            block = block.path
        lines = self.listing.statements.get(block, ())
        if not 0 <= pc < len(lines):
            raise UsageError(f"there is no statement {found.target}")
        found.lines = (lines[pc],)

    def _bind_target(self, found: Breakpoint) -> None:
        kind = "data" if found.after_writes else found.kind
        names = found.written if found.after_writes else found.names
        found.lines = self.lines(NamedPlace(kind, found.target, names))
        if not found.lines and not (found.expression is not None and found.reads_out):
            raise self._nothing_there(found)

    def lines(self, place: NamedPlace) -> tuple[int, ...]:
        """Return the lines of the statements of a place, in order."""
        return tuple(sorted({self.listing.line(*site) for site in self.named.statements(place)}))

    def bind_in(self, found: Breakpoint, code: Code) -> None:
        """Add the statements of one block, which may be compiled after the breakpoint was set."""
        if found.kind not in ("line", "source", "site"):
            found.sites.extend((code, pc, after) for pc, after in matching(found, code))
            return
        for pc in self._statements(found, code):
            after = pc < len(code.nodes) and reads_result(found, code.nodes[pc])
            found.sites.append((code, pc + after, after))

    def _statements(self, found: Breakpoint, code: Code) -> Iterator[int]:
        """Yield the statements of a block that match a line or site breakpoint."""
        block, number = found.place or (None, 0)
        if isinstance(block, Code):
            if block is code:
                yield number
            return
        if isinstance(block, Listing):
            site = block.site(number)
            alike = code.formula is not None and self.listing_in(code).lines == block.lines
            if alike and site is not None and site.path == code.path:
                yield site.pc
            return
        if code.formula is None:
            for line in found.lines:
                site = self.listing.site(line)
                if site is not None and site.path == code.path:
                    yield site.pc

    def _nothing_there(self, found: Breakpoint) -> UsageError:
        words = f"`{found.target}` reads no value that the program computes"
        return UsageError(words, hint="write, for example, max(abs(%h)) < 6e4")


def braced(text: str) -> list[str]:
    """Return the expressions in braces of a log message.  Raises UsageError for an unclosed brace."""
    parts, start = [], 0
    while (opening := text.find("{", start)) >= 0:
        closing = text.find("}", opening)
        if closing < 0:
            raise UsageError(f"the brace at column {opening + 1} of the log message is not closed")
        parts.append(text[opening + 1 : closing])
        start = closing + 1
    return parts
