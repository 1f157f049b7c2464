"""An order of a schedule, chosen when a program is opened."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Graph, Location, Program
from nncdbg.engine.schedules.launches import scheduled
from nncdbg.engine.schedules.player import played
from nncdbg.engine.text.listing import Listing, Path


def in_order(program: Program, order: int) -> Program:
    """Return the legal order of a scheduled program that the seed `order` draws, as a program.

    It is the order that `nncdbg races --order` plays: equal seeds give equal programs.
    Statements of graph text are located at their lines, so that breakpoints there also bind in the order.
    Raises UsageError for a program without a schedule, and if a statement reads a value of unknown size
    before it is written.
    """
    if not scheduled(program):
        raise UsageError(
            f"{program.source or 'the program'} has no schedule, so it has no other order than its text",
            hint="leave out the order, or write a schedule: nncdbg print MODEL --streams 4 -o scheduled.nnc",
        )
    listing = program.listing
    if listing is not None and listing.file is not None:
        graphs = {name: _located(graph, (name,), listing) for name, graph in program.graphs.items()}
        program = replace(program, graphs=graphs)
    return played(program, seed=order)


def _located(graph: Graph, path: Path, listing: Listing) -> Graph:
    """Return a graph whose statements without a location have that of their line."""
    nodes = []
    for pc, node in enumerate(graph.nodes):
        blocks = tuple(_located(block, (*path, pc, at), listing) for at, block in enumerate(node.subgraphs))
        location = node.location or Location(listing.file, listing.line(path, pc))
        nodes.append(replace(node, subgraphs=blocks, location=location))
    return replace(graph, nodes=tuple(nodes))
