"""The margins of a program by statement, and programs with other margins or streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nncdbg.engine.errors import UsageError
from nncdbg.engine.schedules.launches import Site, placements
from nncdbg.ir.records import Graph, Node, Path, Placement, Program
from nncdbg.ir.rewrite import rewrite


def with_margins(program: Program, margins: dict[Site, Placement]) -> Program:
    """Return a program with these margins; statements without one have none."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        return replace(node, placement=margins.get((path, pc)))

    def block(path: Path, new: Graph) -> Graph:
        return replace(new, begin=margins.get((path, -1)), end=margins.get((path, len(new.nodes))))

    graphs = {name: rewrite(graph, statement, block, key=name) for name, graph in program.graphs.items()}
    return replace(program, graphs=graphs, listing=None)


def margins_of(program: Program) -> dict[Site, Placement]:
    """Return the margins of all statements, and of the first and last lines of graphs and blocks."""
    return dict(placements(program))


def binds_streams(program: Program) -> bool:
    """Return whether a margin names a logical stream beside the one that it runs on."""
    return any(margin.logical for _, margin in placements(program))


def bound(program: Program, streams: Mapping[int, int]) -> Program:
    """Return a program whose streams run on others: with ``{3: 4}``, ``s3`` becomes ``s3->4``.

    The devices follow their streams.  Raises UsageError for a stream that the program does not use, and if
    one stream would be on two devices.
    """
    margins = margins_of(program)
    numbers = {each.stream for margin in margins.values() for each in margin.bindings()}
    numbers |= program.streams.keys()
    for number in streams:
        if number not in numbers:
            used = ", ".join(f"s{each}" for each in sorted(numbers)) or "none"
            raise UsageError(
                f"cannot bind stream s{number}: the program does not use it", hint=f"its streams: {used}"
            )
    devices: dict[int, str] = {}
    for number in sorted(numbers):
        device = program.streams.get(number, "")
        other = devices.setdefault(streams.get(number, number), device)
        if other != device:
            raise UsageError(
                f"cannot bind stream s{number} of device {device or 'default'!r} to "
                f"s{streams.get(number, number)}, which is on device {other or 'default'!r}",
                hint="bind the streams of a device to streams of the same device",
            )
    made = {site: _bound_margin(margin, streams) for site, margin in margins.items()}
    named = {number: device for number, device in sorted(devices.items()) if device}
    return replace(with_margins(program, made), streams=named)


def _bound_margin(margin: Placement, streams: Mapping[int, int]) -> Placement:
    written = margin.logical or (None,) * (1 + len(margin.begins))
    logical = tuple(
        number if number is not None or stream not in streams else stream
        for number, stream in zip(written, (margin.stream, *margin.begins), strict=True)
    )
    return replace(
        margin,
        stream=None if margin.stream is None else streams.get(margin.stream, margin.stream),
        begins=tuple(streams.get(each, each) for each in margin.begins),
        logical=logical if any(each is not None for each in logical) else (),
    )
