"""An order of a schedule, chosen when a program is opened."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nncdbg.engine.errors import UsageError
from nncdbg.engine.schedules.launches import scheduled
from nncdbg.engine.schedules.player import played
from nncdbg.engine.text.listing import Listing
from nncdbg.ir.records import Location, Node, Path, Program
from nncdbg.ir.rewrite import rewrite


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
        graphs = {
            name: rewrite(graph, partial(_located, listing), key=name)
            for name, graph in program.graphs.items()
        }
        program = replace(program, graphs=graphs)
    return played(program, seed=order)


def _located(listing: Listing, path: Path, pc: int, node: Node) -> Node:
    """Return a statement that has the location of its line if it has none."""
    return replace(node, location=node.location or Location(listing.file, listing.line(path, pc)))
