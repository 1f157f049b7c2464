"""Layers and ops around the current statement, as a graph to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.neighbourhood import ShownBlock, ValueSource, neighbourhood, sources
from nncdbg.dap_server.variables.value_text import Glance
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.presentation.frame_titles import frame_title

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

MOST_TOGGLED = 64
"""Statements that are expanded or collapsed by the user, in one request."""

MOST_INPUTS = 12
"""Drawn inputs of the outermost graph."""


class MapArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ids of nodes to expand, and of nodes on the stack to collapse (at most 64 in total)."""

    open: list[str] = []
    closed: list[str] = []


@dataclass(slots=True)
class Drawing:
    """Builder of one answer."""

    session: Session
    glance: Glance
    blocks: Sequence[ShownBlock]

    def flag(self, block: ShownBlock, name: str) -> str | None:
        """Return nan or inf, if a value of a block on the stack holds one."""
        slot = block.frame.code.slot_of.get(name) if block.frame is not None else None
        summary = block.summary(self.session, self.glance, slot)
        if summary is None:
            return None
        return "nan" if summary.nan else "inf" if summary.posinf + summary.neginf else None

    # -- blocks and statements ---------------------------------------------------------------

    def cluster(self, block: ShownBlock) -> dict[str, Any]:
        frames = self.session.program.debugger.frames
        title = block.title if block.depth < 0 else frame_title(frames, len(frames) - 1 - block.depth)
        first, last = (block.shown[0], block.shown[-1]) if block.shown else (0, -1)
        return {
            "id": block.id,
            "parent": block.outer.id if block.outer is not None else None,
            "node": block.outer.statement_id(block.pc) if block.outer is not None else None,
            "title": title,
            "kind": block.kind,
            "onStack": block.depth >= 0,
            "before": first,
            "after": len(block.graph.nodes) - last if block.shown else len(block.graph.nodes) + 1,
        }

    def node(self, block: ShownBlock, pc: int) -> dict[str, Any]:
        outputs = block.graph.nodes[pc].outputs if pc < len(block.graph.nodes) else ()
        flags = [self.flag(block, value.name) for value in outputs]
        fields = {
            **block.statement(self.session, pc),
            "cluster": block.id,
            "source": self.blocks.index(block.origin),
            "state": self._state(block, pc),
        }
        frames = self.session.program.debugger.control.stack
        if block.depth >= 0 and pc == block.here and block.depth + 1 < len(frames):
            # With the iteration of a running loop.
            fields["label"] = frame_title(frames[::-1], len(frames) - 2 - block.depth)
        worst = next((each for each in ("nan", "inf") if each in flags), None)
        return fields if worst is None else {**fields, "flag": worst}

    def _state(self, block: ShownBlock, pc: int) -> str:
        if block.frame is None:
            outer = block.outer
            assert outer is not None, "an opened node needs a parent"
            state = self._state(outer, block.pc)
            return "next" if state == "current" else state
        if pc != block.here:
            return "done" if pc < block.here else "next"
        return "current"

    # -- edges ---------------------------------------------------------------------------------

    def edges(self) -> Iterator[dict[str, Any]]:
        """Edges from the statement that produces a value to each shown statement that reads it."""
        shown = {(block, pc) for block in self.blocks for pc in block.shown if pc not in block.inside}
        for block in self.blocks:
            self.session.queue.check_cancelled()
            for pc in block.shown:
                if (block, pc) in shown:
                    found = (each for name in block.reads(pc) for each in sources(block, name))
                    for source in dict.fromkeys(found):
                        if (source.block, source.pc) in shown or source.pc < 0:
                            yield self._edge(source, block.statement_id(pc))

    def _edge(self, source: ValueSource, to: str) -> dict[str, Any]:
        given = source.pc < 0
        edge: dict[str, Any] = {
            "from": _input_id(source) if given else source.block.statement_id(source.pc),
            "to": to,
            "value": spelled(source.name),
        }
        if source.carried:
            edge["carried"] = True
        flag = self.flag(source.block, source.name)
        return edge if flag is None else {**edge, "flag": flag}

    def inputs(self, edges: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The inputs of the outermost block that shown statements read."""
        first = self.blocks[0]
        read = {each["from"] for each in edges}
        found = (ValueSource(first, -1, value.name) for value in first.graph.inputs if value.name)
        assert first.origin.frame is not None
        listing = self.session.program.debugger.loaded.listing_of(first.origin.frame.code)
        line = self.session.client.outgoing_line(listing.header_line(first.path))
        nodes = []
        for each in islice((each for each in found if _input_id(each) in read), MOST_INPUTS):
            fields: dict[str, Any] = {"id": _input_id(each), "cluster": first.id, "kind": "input"}
            fields |= {"label": spelled(each.name), "values": [], "line": line, "source": 0, "state": "done"}
            flag = self.flag(first, each.name)
            nodes.append(fields if flag is None else {**fields, "flag": flag})
        return nodes


def _input_id(source: ValueSource) -> str:
    return f"{source.block.id}:{source.name}"


@request("nncdbg/map", when=LIVE, values=True, arguments=MapArguments, reads=True)
def map_(session: Session, arguments: MapArguments) -> dict[str, Any]:
    """Return `nodes`, `clusters` and `edges` around the current statement, and their `sources`.

    Each node has `state` (`done`, `current`, `next`), `flag` (`nan`, `inf`) and `line`.
    """
    if len(arguments.open) + len(arguments.closed) > MOST_TOGGLED:
        raise UsageError(
            f"{len(arguments.open) + len(arguments.closed)} nodes are too many for one request",
            hint=f"open or close at most {MOST_TOGGLED} nodes",
        )
    blocks = neighbourhood(session, frozenset(arguments.open), frozenset(arguments.closed))
    drawing = Drawing(session, Glance(session.program.shown, False, session.queue.check_cancelled), blocks)
    edges = list(drawing.edges())
    inputs = drawing.inputs(edges)
    nodes = [drawing.node(block, pc) for block in blocks for pc in block.shown if pc not in block.inside]
    known = {each["id"] for each in (*inputs, *nodes)}
    texts = session.program.sources
    return {
        "clusters": [drawing.cluster(block) for block in blocks],
        "nodes": [*inputs, *nodes],
        "edges": [each for each in edges if each["from"] in known],
        "sources": [texts.of_frame(block.frame) for block in blocks if block.frame is not None],
    }
