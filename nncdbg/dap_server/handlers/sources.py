"""Sources of a program, locations of definitions, modules, and counterparts in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.addresses import definition_at
from nncdbg.dap_server.sources.modules import COLUMNS
from nncdbg.dap_server.sources.shown import MIME_TYPE
from nncdbg.errors import UsageError
from nncdbg.ir.line_pairs import LinePairs

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.text.listing import Listing


@request("source", when=LIVE, reads=True)
def source_text(session: Session, arguments: protocol.SourceArguments) -> protocol.SourceBody:
    # `sourceReference` is for old clients; newer ones send `source`.
    source = arguments.source or protocol.Source(source_reference=arguments.source_reference)
    return protocol.SourceBody(content=session.program.sources.text(source), mime_type=MIME_TYPE)


@request("loadedSources", when=LIVE, capability="supportsLoadedSourcesRequest", reads=True)
def sources(session: Session, arguments: protocol.LoadedSourcesArguments) -> protocol.LoadedSourcesBody:
    return protocol.LoadedSourcesBody(sources=session.program.modules.loaded_sources())


@request(
    "modules",
    when=LIVE,
    capability={"supportsModulesRequest": True, "additionalModuleColumns": COLUMNS},
    reads=True,
)
def listed_modules(session: Session, arguments: protocol.ModulesArguments) -> protocol.ModulesBody:
    found = session.program.modules.all()
    start = arguments.start_module or 0
    count = arguments.module_count or 0
    if start < 0 or count < 0:
        raise UsageError(f"`startModule` and `moduleCount` must be 0 or more, not {start} and {count}")
    end = start + count if count else len(found)
    return protocol.ModulesBody(modules=found[start:end], total_modules=len(found))


@request("locations", when=LIVE, reads=True)
def locations(session: Session, arguments: protocol.LocationsArguments) -> protocol.LocationsBody:
    found = definition_at(session, arguments.location_reference)
    if found is None:
        raise UsageError("unknown or expired location reference", hint="request the variables again")
    source, line = found
    return protocol.LocationsBody(source=source, line=session.client.outgoing_line(line))


class CounterpartsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a text of the program; without `line`, the request is for the first lines of its graphs."""

    source: protocol.Source
    line: int | None = None


@request("nncdbg/counterparts", when=LIVE, arguments=CounterpartsArguments, reads=True)
def counterparts(session: Session, arguments: CounterpartsArguments) -> dict[str, Any]:
    """Return the `counterparts` of a line: what differentiates it, and what it differentiates.

    Each has `line`, `direction` (`backward` or `forward`), and the `source`, `target` (its line) and `text`
    of the other statement or graph.
    """
    sources, target = session.program.sources, session.program.target
    listing = sources.listing(arguments.source)
    if listing is not target.listing:
        return {"counterparts": []}  # A micro program has none.
    pairs = LinePairs(target.lowered, listing)
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
                "text": listing.statement(target).strip(),
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
