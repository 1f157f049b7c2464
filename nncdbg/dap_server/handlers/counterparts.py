"""From a statement of the forward pass to the backward pass, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.protocol.types import Source
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.engine.differentiation.line_pairs import LinePairs

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.text.listing import Listing


class CounterpartsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a text of the program; without `line`, the request is for the first lines of its graphs."""

    source: Source
    line: int | None = None


@request("nncdbg/counterparts", when=LIVE, arguments=CounterpartsArguments, reads=True)
def counterparts(session: Session, arguments: CounterpartsArguments) -> dict[str, Any]:
    """Return the `counterparts` of a line: what differentiates it, and what it differentiates.

    Each has `line`, `direction` (`backward` or `forward`), and the `source`, `target` (its line) and `text`
    of the other statement or graph.
    """
    sources, loaded = session.program.sources, session.program.debugger.loaded
    listing = sources.listing(arguments.source)
    if listing is not loaded.listing:
        return {"counterparts": []}  # A micro program has none.
    pairs = LinePairs(loaded.program, listing)
    if arguments.line is not None:
        line = session.client.incoming_line(arguments.line)
        found = [(line, "backward", each) for each in pairs.backward(line)]
        found += [(line, "forward", each) for each in pairs.forward(line)]
    else:
        found = [each for each in _graphs(listing, pairs) if sources.has_line(arguments.source, each[0])]
    return {
        "counterparts": [
            {
                "line": session.client.outgoing_line(line),
                "direction": direction,
                "source": sources.of_line(target),
                "target": session.client.outgoing_line(target),
                "text": listing.lines[target - 1].strip(),
            }
            for line, direction, target in found
        ]
    }


def _graphs(listing: Listing, pairs: LinePairs) -> Iterator[tuple[int, str, int]]:
    """Yield (first line of a graph, direction, first line of the other graph)."""
    for path, header in listing.headers.items():
        if len(path) > 1:
            continue
        for direction, others in (("backward", pairs.backward), ("forward", pairs.forward)):
            lines = {other for line in listing.statements[path] for other in others(line)}
            blocks = {block[:1] for block in map(listing.block, lines) if block is not None}
            yield from ((header, direction, listing.header_line(block)) for block in sorted(blocks, key=str))
