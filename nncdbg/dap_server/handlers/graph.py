"""The whole graph for the graph tab: its structure once, and the changes at each stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.neighbourhood import ShownBlock, on_the_stack, sources, whole
from nncdbg.dap_server.variables.value_text import Glance
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.engine.values.current import results_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Node
    from nncdbg.stats import Summary

MOST_OPENED = 4096
"""Expanded statements of one request."""


class GraphArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of statements to replace with their blocks (at most 4096)."""

    open: list[str] = []


class GraphStateArguments(msgspec.Struct, frozen=True, kw_only=True):
    statistics: bool = False


@request("nncdbg/graph", when=LIVE, values=True, arguments=GraphArguments, reads=True)
def graph(session: Session, arguments: GraphArguments) -> dict[str, Any]:
    """Return the whole graph: `nodes` in program order, `edges`, `blocks`, `source` and `leftOut`.

    Each node has `id`, `block`, `kind`, `label`, `values`, `type` and `line`.  Each edge is
    `[from, to, value, carried]`.  `from` and `to` are positions in `nodes`, or -1 for an input.
    """
    if len(arguments.open) > MOST_OPENED:
        raise UsageError(
            f"cannot open {len(arguments.open)} statements at once",
            hint=f"open at most {MOST_OPENED} statements",
        )
    blocks = whole(session, frozenset(arguments.open))
    places = list(_in_order(blocks[0]))
    number = {(block, pc): index for index, (block, pc) in enumerate(places)}
    return {
        "source": session.program.sources.of_frame(session.program.debugger.control.stack[0]),
        "blocks": [_block(block) for block in blocks],
        "nodes": [_node(session, block, pc) for block, pc in places],
        "edges": list(_edges(session, places, number)),
        "leftOut": sum(len(block.graph.nodes) + 1 - len(block.shown) for block in blocks),
    }


def _in_order(block: ShownBlock) -> Iterator[tuple[ShownBlock, int]]:
    """The statements in the order of the program; those of an expanded block replace its statement."""
    for pc in block.shown:
        inner = block.inside.get(pc)
        if inner is None:
            yield block, pc
        else:
            for each in inner:
                yield from _in_order(each)


def _block(block: ShownBlock) -> dict[str, Any]:
    outer = block.outer
    return {
        "id": block.id,
        "parent": None if outer is None else outer.id,
        "node": None if outer is None else outer.statement_id(block.pc),
        "title": block.title,
        "kind": block.kind,
    }


def _node(session: Session, block: ShownBlock, pc: int) -> dict[str, Any]:
    type_ = "" if pc == len(block.graph.nodes) else _type(block, block.graph.nodes[pc])
    return {"block": block.id, "type": type_, **block.statement(session, pc)}


def _type(block: ShownBlock, node: Node) -> str:
    """The type of the first result, as far as it is known."""
    if not node.outputs:
        return ""
    value = node.outputs[0]
    known = block.frame.code.types.get(value.name) if block.frame is not None else None
    return str(known or value.type or "")


def _edges(
    session: Session, places: Sequence[tuple[ShownBlock, int]], number: dict[tuple[ShownBlock, int], int]
) -> Iterator[list[Any]]:
    for to, (block, pc) in enumerate(places):
        session.queue.check_cancelled()
        found = (each for name in block.reads(pc) for each in sources(block, name))
        for source in dict.fromkeys(found):
            given = -1 if source.pc < 0 else number.get((source.block, source.pc))
            if given is not None:
                yield [given, to, spelled(source.name), source.carried]


@request("nncdbg/graphState", when=LIVE, values=True, arguments=GraphStateArguments, reads=True)
def graph_state(session: Session, arguments: GraphStateArguments) -> dict[str, Any]:
    """Return the state of the graph: `stack`, `flags`, and `statistics` if requested.

    `stack` lists `block` and `pc`, outermost frame first.  `flags` maps a statement to `nan` or `inf`.
    `statistics` maps a statement to the largest absolute value, mean, standard deviation and share of
    zeros of its first result.  They are the logged statistics: no tensor is read for them.
    """
    blocks = on_the_stack(session, (), len(session.program.debugger.control.stack))
    glance = Glance(session.program.shown, False, session.queue.check_cancelled)
    flags: dict[str, str] = {}
    statistics: dict[str, list[float | None]] = {}
    for block in blocks:
        for name, summary in _summaries(session, glance, block):
            if summary.nan or summary.posinf or summary.neginf:
                flags[name] = "nan" if summary.nan else "inf"
            if arguments.statistics:
                statistics[name] = _figures(summary)
    return {
        "stack": [{"block": block.id, "pc": block.here} for block in blocks],
        "flags": flags,
        **({"statistics": statistics} if arguments.statistics else {}),
    }


def _summaries(session: Session, glance: Glance, block: ShownBlock) -> Iterator[tuple[str, Summary]]:
    """The statistics of each executed statement of a block, by its id."""
    assert block.frame is not None, "the block is on the stack"
    for pc in range(len(block.frame.code.nodes)):
        slots = results_of(block.frame, pc)
        summary = block.summary(session, glance, slots[0]) if slots and slots[0] else None
        if summary is not None:
            yield block.statement_id(pc), summary


def _figures(summary: Summary) -> list[float | None]:
    if summary.min is None or summary.max is None:
        return [None, None, None, None]
    return [max(-summary.min, summary.max), summary.mean, summary.std, summary.zero / max(1, summary.count)]
