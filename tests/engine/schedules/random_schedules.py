"""Random programs with random margins, and a device that executes them launch by launch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nncdbg.comparison.launches import Launch
from nncdbg.ir.records import Graph, Node, Placement, Program, TensorType, Value
from nncdbg.ir.streams import HOST

F32 = TensorType("f32", (8,))


def random_schedule(seed: int, statements: int = 40, streams: int = 5) -> Program:
    """Return a straight program whose margins are drawn at random, correct or not."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    for at in range(draw.randint(1, statements)):
        operands = tuple(f"v{draw.randrange(at)}" for _ in range(2)) if at else ("x", "x")
        stream = draw.choice([None, *range(streams)]) if draw.random() < 0.2 else draw.randrange(streams)
        placement = None
        if draw.random() > 0.03:
            placement = Placement(
                stream=stream,
                waits=tuple(sorted({draw.randrange(6) for _ in range(draw.choice((0, 0, 1, 2)))})),
                begins=tuple(sorted({draw.randrange(streams) for _ in range(draw.choice((0, 0, 0, 2)))})),
                records=tuple(sorted({draw.randrange(6) for _ in range(draw.choice((0, 1, 1)))})),
            )
        nodes.append(Node("Add", operands, (Value(f"v{at}", F32),), placement=placement))
    last = Placement(stream=draw.choice([None, 0]))
    graph = Graph("main", (Value("x", F32),), (nodes[-1].outputs[0],), tuple(nodes), end=last)
    return Program({"main": graph}, "main")


def begun_without_end_of(stuck: int, launches: Sequence[Launch]) -> set[int]:
    """Return the launches that begin although launch `stuck` never ends.

    The device has a queue per stream, whose launches begin in order, each after the end of the one before
    and after the events it waits for; the host issues the list in order, and issues nothing while it waits
    or executes.  An event is the end of the launch that recorded it last when the host issued the wait.
    """
    ended: set[int] = set()
    begun: set[int] = set()
    needs: list[set[int]] = []
    recorded: dict[int, int] = {}
    latest: dict[int, int] = {}
    begins: dict[int, set[int]] = {}
    for at, launch in enumerate(launches):
        need = {recorded[event] for event in launch.waits if event in recorded}
        if launch.barrier:
            need |= set(range(at))
        if launch.stream in latest:
            need.add(latest[launch.stream])
        need |= begins.pop(launch.stream, set())
        # What the host does delays all that it issues later.
        need |= {other for other in range(at) if launches[other].stream == HOST}
        needs.append(need)
        for stream in launch.begins:
            awaited = {at} if not launch.accesses else need
            begins[stream] = begins.get(stream, set()) | awaited
        latest[launch.stream] = at
        for event in launch.records:
            recorded[event] = at
    changed = True
    while changed:
        changed = False
        for at, need in enumerate(needs):
            if at not in begun and need <= ended:
                begun.add(at)
                changed = True
                if at != stuck:
                    ended.add(at)
    return begun


def layered(seed: int, statements: int = 30, *, joined: bool = False) -> str:
    """Return the text of a program with chains that fork and join; with `joined`, each value is read."""
    draw = random.Random(seed)
    lines, values, read = [], ["%x", "%y"], set()
    for at in range(draw.randint(8, statements)):
        op = draw.choice(("Add", "Mul", "Sub", "Relu", "Neg", "Tanh"))
        recent = values[-6:]
        operands = [draw.choice(recent) for _ in range(2 if op in ("Add", "Mul", "Sub") else 1)]
        lines.append(f"  %v{at}: f32[64] = {op}({', '.join(operands)})")
        values.append(f"%v{at}")
        read.update(operands)
    ends = [values[-1], values[-2]]
    for at, value in enumerate([each for each in values[:-2] if each not in read] if joined else ()):
        lines.append(f"  %j{at}: f32[64] = Add({ends[0]}, {value})")
        ends[0] = f"%j{at}"
    lines.append(f"  %out: f32[64] = Add({ends[0]}, {ends[1]})")
    body = "\n".join(lines)
    head = "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[64], %y: f32[64]) -> (%out: f32[64]) {\n"
    return f"{head}{body}\n  return %out\n}}\n"
