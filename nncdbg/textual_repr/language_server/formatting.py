"""Formatting: the canonical print of the program, as the fewest edits of whole lines."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lsprotocol import types

from nncdbg.errors import GraphError
from nncdbg.ir.records import Path
from nncdbg.process.collector import collector_paused
from nncdbg.text.listing import Listing
from nncdbg.textual_repr.language_server.document import Document, changed_part, replace_lines
from nncdbg.textual_repr.language_server.tokens import kind_of_line, tokens
from nncdbg.textual_repr.parser import parse_with_listing
from nncdbg.textual_repr.printer import listing

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

# -- comments --------------------------------------------------------------------------------------
# Carry comments that the printer omits over to a print.
#
# These are ``#``, and ``##`` before lines without a statement. Each comment is tied to the line below or
# before it, identified by its role in its block.

Anchor: TypeAlias = "tuple[str, Path, int]"
"""The kind of a line, the block that it opens or belongs to, and its number in that block."""


def with_comments(printed: Listing, text: Listing) -> list[str]:
    """Return the printed lines of `text`, the last one empty, with the comments that the printer omits."""
    found: list[str] = []
    if not any("#" in own and not _is_kept(line, own) for line, own in enumerate(text.lines)):
        return [*printed.lines, ""]
    above, behind = _loose(text)
    places = _anchors(printed)
    for line, own in enumerate(printed.lines):
        anchor = places.get(line)
        if anchor is not None and anchor in above:
            inner = anchor[0] == "close" or _opens_else(anchor)
            indent = own[: len(own) - len(own.lstrip())] + ("  " if inner else "")
            # Keep ``##`` comments directly above their statement.
            kept = len(found)
            while found[kept - 1].lstrip().startswith("##"):
                kept -= 1
            found[kept:kept] = [indent + comment for comment in above.pop(anchor)]
        found.append(own if anchor is None or anchor not in behind else f"{own}  {behind[anchor]}")
    rest = [comment for comments in above.values() for comment in comments]
    return [*found, *rest, ""]


def _is_kept(line: int, own: str) -> bool:
    """Return True for the version of the text and for comments of blocks, which the printer writes."""
    start = own.lstrip()
    return start.startswith("##!") or (line == 0 and start.startswith("#nncdbg"))


def _loose(text: Listing) -> tuple[dict[Anchor | None, list[str]], dict[Anchor, str]]:
    """Return the comments above lines and after lines, by the anchors of the lines."""
    places = _anchors(text)
    above: dict[Anchor | None, list[str]] = {}
    behind: dict[Anchor, str] = {}
    waiting: list[str] = []
    for line, own in enumerate(text.lines):
        anchor = places.get(line)
        if own.lstrip().startswith("#"):
            if not _is_kept(line, own):
                waiting.append(own.strip())
        elif anchor is not None:
            kept = anchor[0] == "statement" or (anchor[0] == "open" and not _opens_else(anchor))
            if waiting and (loose := [each for each in waiting if not (kept and each.startswith("##"))]):
                above[anchor] = loose
            waiting = []
            if "#" in own and (last := tokens(own)[-1]).kind == "comment":
                behind[anchor] = own[last.start :].rstrip()
    if waiting:
        above[None] = waiting
    return above, behind


def _opens_else(anchor: Anchor) -> bool:
    return anchor[0] == "open" and anchor[1][-1] == 1


def _anchors(listing: Listing) -> dict[int, Anchor]:
    """Map each line with a statement, a constant or a brace to an anchor that printing preserves.

    Lines are 0-based.
    """
    places: dict[int, Anchor] = {}
    for path, (*lines, end) in listing.statements.items():
        places.update((line - 1, ("statement", path, pc)) for pc, line in enumerate(lines))
        places[end - 1] = "end", path, 0
    places.update((line - 1, ("open", path, 0)) for path, line in listing.headers.items())
    around: Path = ()
    constants: Counter[Path] = Counter()
    declared = 0
    for line, own in enumerate(listing.lines):
        known, start = places.get(line), own.lstrip()[:1]
        if known is not None:
            around = known[1]
        elif start == "}":
            places[line] = "close", around, 0
            around = around[:-2]
        elif kind_of_line(own) in ("state", "states", "group", "backward", "track"):
            declared += 1
            places[line] = "statement", (), declared
        elif around and start not in ("", "#"):
            constants[around] += 1
            places[line] = "constant", around, constants[around]
    return places


# -- formatting ------------------------------------------------------------------------------------

_LARGEST = 4000
"""Maximum number of changed lines that are compared one by one; more are replaced together."""


def register(server: NncServer) -> None:
    """Register formatting of a document."""

    def formatting(document: Document, _: types.DocumentFormattingParams) -> list[types.TextEdit]:
        try:
            return list(_edits(document, formatted(document.lines)))
        except GraphError as error:
            message = f"cannot format the text: {error.message}"
            server.window_show_message(types.ShowMessageParams(types.MessageType.Warning, message))
            return []

    server.on_document(types.TEXT_DOCUMENT_FORMATTING, formatting, [])


@collector_paused()
def formatted(lines: Sequence[str]) -> list[str]:
    """Return the lines of the canonical print, with the comments that are not part of the program.

    Raises GraphError if the text has errors.
    """
    program, text = parse_with_listing("\n".join(lines))
    return with_comments(listing(program), text)


def _edits(document: Document, wanted: Sequence[str]) -> Iterator[types.TextEdit]:
    """Yield the edits that turn the lines of the document into the wanted lines."""
    part, place = changed_part(document.lines, wanted)
    head, old, new = part.start, document.lines[part], wanted[place]
    if len(old) + len(new) > _LARGEST:
        yield _edit(document, head, head + len(old), new)
        return
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, last, start, end in matcher.get_opcodes():
        if tag != "equal":
            yield _edit(document, head + first, head + last, new[start:end])


def _edit(document: Document, first: int, last: int, new: Sequence[str]) -> types.TextEdit:
    """Replace lines `first` to `last` (exclusive) by `new`."""
    if last < len(document.lines):
        text = "".join(f"{line}\n" for line in new)
        return types.TextEdit(types.Range(types.Position(first, 0), types.Position(last, 0)), text)
    if first == 0:
        return replace_lines(document, 0, last - 1, new)
    range = types.Range(document.end_of(first - 1), document.end_of(last - 1))
    return types.TextEdit(range, "".join(f"\n{line}" for line in new))
