"""`info`: the state of the debugger itself, by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.commands.changing import branches, marks
from nncdbg.commands.model import model, ops_text
from nncdbg.commands.stack import where
from nncdbg.commands.table import command
from nncdbg.errors import UsageError
from nncdbg.expression import resolve_name, spelled
from nncdbg.presentation.buffers import buffer_text, sharer_text
from nncdbg.presentation.elements import SMALL, element, elements, is_text, type_of
from nncdbg.presentation.stops import fallbacks, kernel_line, statement_lines, value_or_reason
from nncdbg.presentation.tensor_text import described
from nncdbg.stats import summarize
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import integer_of, name_text
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import AwaitedEvent, DeadUnits, Stream
    from nncdbg.text.listing import Site

_MANY = 100
"""Maximum number of values that `info values` lists."""


def _varies(session: CommandSession, text: str) -> bool:
    """Return whether a topic depends on time, the machine, or the path of the program."""
    return _topic(text.partition(" ")[0]) in ("time", "memory", "program", "buffers")


@command("info", "i", group="looking", arguments="TOPIC [TEXT]", completes=("info",), varies=_varies)
def info(session: CommandSession, text: str) -> None:
    """Show the state of the debugger and the program, by topic.

      breakpoints, display   breakpoints, and expressions shown at each stop
      inputs, states         the program's inputs, and its states at this moment
      tracks                 the tracked numbers of a training, over the steps so far
      units                  the dead units of each activation over the latest steps of a training
      args, locals           inputs and computed values of the selected frame
      values [all | TEXT]    its values without constants; `all` adds them, TEXT selects by name
      constants              its constants
      line [PLACE], frames   statements, the stack
      time, marks, branches  the current moment, and moments to go to
      time [op | layer | line | statement]
                             with `set times on`, the times of this graph, or of the run by op or layer
      convenience            printed values `$1`, `$2`, ..., and the names defined with `$x = EXPR`
      streams                the streams of a schedule, and the events that they wait for
      memory, program, fallbacks
      model                  the model's inputs, outputs, parameters, and ops by count
      buffers %value         the memory of a value, and the values that share it
      kernels                the backends that run the statements, if several do
    A prefix selects the first topic that matches: `info b` is `info breakpoints`.
    """
    word, _, rest = text.partition(" ")
    topic = _topic(word)
    if topic is None:
        what = f'there is no info about "{word}"' if word else "`info` needs a topic"
        raise UsageError(what, hint=_ANSWERS.get(word) or f"use one of: {', '.join(TOPICS)}")
    TOPICS[topic](session, rest.strip())


def _topic(word: str) -> str | None:
    """Return the first topic with this prefix, or equal to this topic of gdb; None for other words."""
    prefix = _ELSEWHERE.get(word, word)
    return next((topic for topic in TOPICS if word and topic.startswith(prefix)), None)


def _breakpoints(session: CommandSession, text: str) -> None:
    points = session.stops.points()
    for point in points:
        kind = "logpoint" if point.log is not None else "temporary" if point.temporary else ""
        words = [
            point.text,
            kind,
            "" if point.enabled else "off",
            f"hit {point.count}x" if point.count else "",
            f"ignores the next {point.ignored}" if point.ignored else "",
        ]
        message = f": {point.log}" if point.log is not None else ""
        session.screen.put(f"{point.number}: {', '.join(word for word in words if word)}{message}")
        if point.number in session.scripts:
            for line in session.scripts[point.number].lines:
                session.screen.put(f"     {line}")
    if not points:
        session.screen.put("there are no breakpoints")
    session.screen.put(f"caught: {', '.join(map(str, session.stops.catches())) or 'nothing'}")


def _inputs(session: CommandSession, text: str) -> None:
    setup = session.target.setup
    for name, array in setup.inputs.items():
        session.screen.put_line(described(name, array, session.screen.line_layout))
    for note in setup.notes:
        session.screen.put(f"  {note}")


def _states(session: CommandSession, text: str) -> None:
    known = session.target.states
    for state in session.target.program.states:
        name = state.value.name
        if name in known:
            session.screen.put_line(described(name, known[name], session.screen.line_layout))
        else:
            session.screen.put(f"%{name_text(name)} has no value yet")
    if not session.target.program.states:
        session.screen.put("the program has no states")


def _values(session: CommandSession, text: str) -> None:
    names, constants = _names(session), _constant_names(session)
    if text and text != "all":
        _list_values(
            session, [name for name in names if text.lstrip("%") in name], f'with "{text}" in its name'
        )
        return
    shown = names if text else [name for name in names if name not in constants]
    _list_values(session, shown)
    hidden = len(names) - len(shown)
    if hidden:
        session.screen.put(f"and {hidden} constant{'s' * (hidden != 1)}: `info constants`")


def _constants(session: CommandSession, text: str) -> None:
    constants = _constant_names(session)
    _list_values(session, [name for name in _names(session) if name in constants], "that is a constant")


def _arguments(session: CommandSession, text: str) -> None:
    _list_values(session, session.target.frame().inputs, "that is an input")


def _locals(session: CommandSession, text: str) -> None:
    _list_values(session, session.target.frame().computed, "computed yet")


def _names(session: CommandSession) -> list[str]:
    """Return the names of all values of the selected frame."""
    return [*session.target.frame().names]


def _constant_names(session: CommandSession) -> set[str]:
    """Return the names of the constants in scope in the selected frame."""
    return {constant.value.name for graph in session.target.frame().graphs for constant in graph.constants}


def _list_values(session: CommandSession, names: Sequence[str], which: str = "") -> None:
    layout = session.screen.line_layout
    for name in names[:_MANY]:
        session.screen.put_line(value_or_reason(session.target, name, layout))
    if len(names) > _MANY:
        session.screen.put(f"and {len(names) - _MANY} more; `info values TEXT` selects by name")
    if not names:
        session.screen.put(f"this frame has no value {which}".rstrip())


def _line(session: CommandSession, text: str) -> None:
    target, frame = session.target, session.target.frame()
    listing = frame.listing
    lines: tuple[int, ...] = (frame.line,)
    number = integer_of(text)
    if text and (number is None or frame.place.micro is None):
        listing = target.listing
        _, lines = target.lines(text)
    elif number is not None:
        lines = (number,)
    for wanted in lines:
        place = listing.next_site(wanted)
        if place is None or wanted < 1:
            raise UsageError(f"there is no statement at or after line {wanted}")
        line, site = place
        for words in statement_lines(listing, session.screen, line, f"line {line}: "):
            session.screen.put_line(Text(words))
        session.screen.put(f"  {_place_of(session, site)}")


def _place_of(session: CommandSession, site: Site) -> str:
    """Return the number of a statement in its graph, and its location in the user's model."""
    inside = next((frame.graph for frame in session.target.frames() if frame.place.path == site.path), None)
    graph = f"statement {site.pc + 1} of @{site.path[0]}"
    origin = origin_text(inside.nodes[site.pc]) if inside is not None and site.pc < len(inside.nodes) else ""
    return f"{graph}, from {origin}" if origin else graph


def _time(session: CommandSession, text: str) -> None:
    from nncdbg.presentation.times.table import GROUPINGS, of_block
    from nncdbg.presentation.times.text import print_times, time_text

    if text and text not in GROUPINGS:
        raise UsageError(f"times are not grouped by {text}", hint=f"use one of: {', '.join(GROUPINGS)}")
    now, times = session.target.now, session.target.times()
    session.screen.put(f"{counted(now.tick, 'statement')} executed, on branch {now.branch}")
    session.screen.put(f"{counted(now.replayed, 'statement')} replayed to go back")
    if not times.executed:
        state = "no statement was measured yet" if times.on else "`set times on` measures statements"
        session.screen.put(state)
        return
    table = GROUPINGS[text](times) if text else of_block(times, session.target.frame().place.path)
    if table.rows:
        print_times(session.screen, table)
    else:
        session.screen.put("no statement of this block was measured; `info time layer` shows the others")
    kernels, measured = time_text(times.kernels / 1e9), counted(times.executed, "statement", ",")
    around = time_text(times.around / 1e9)
    session.screen.put(f"{kernels} in the kernels of {measured}, and {around} around them")


def _memory(session: CommandSession, text: str) -> None:
    memory = session.target.memory()
    session.screen.put(f"allocator {memory.allocator}")
    workspaces = memory.workspaces
    session.screen.put(f"results {_size(memory.results)}")
    if memory.streams is not None:
        parts = ", ".join(f"{stream} {_size(size)}" for stream, size in memory.streams.items())
        session.screen.put(f"  in these frames, by stream: {parts or 'none'}")
    parts = ", ".join(f"{purpose} {_size(size)}" for purpose, size in sorted(workspaces.items()))
    session.screen.put(f"workspaces {_size(sum(workspaces.values()))}{f' ({parts})' if parts else ''}")
    session.screen.put(f"total {_size(memory.total)}")
    session.screen.put(f"history budget {_size(memory.budget)}")


def _buffers(session: CommandSession, text: str) -> None:
    screen = session.screen
    if not text:
        raise UsageError("`info buffers` needs a value", hint="`info buffers %h` shows the memory of %h")
    values = session.target.scope()
    name = resolve_name(text, values.has, values.names)
    own, *shared = session.target.buffers(name)
    screen.put_line(Text(f"{spelled(name)}: {buffer_text(own)}"))
    if own.gone:
        screen.put(f"  no longer valid: {own.gone}")
    if own.address is None:
        return
    for each in shared[:_MANY]:
        screen.put_line(Text(f"  {sharer_text(each)}"))
    if len(shared) > _MANY:
        screen.put(f"and {len(shared) - _MANY} more")
    if not shared:
        screen.put("  no other value in the history shares this memory")


def _convenience(session: CommandSession, text: str) -> None:
    names = session.target.convenience
    for name, value in names.items():
        session.screen.put_line(Text(f"${name} = {_in_a_line(value)}"))
    if not names:
        session.screen.put("no convenience names are defined; `$x = EXPR` defines one")


def _in_a_line(value: Any) -> str:
    """Return the result of an expression in a line: its type and statistics, or elements if few."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return element(value) if isinstance(value, str | np.generic | np.ndarray) else str(value)
    few = value.size <= SMALL or is_text(value)
    return f"{type_of(value)} {elements(value) if few else summarize(value)}"


def _streams(session: CommandSession, text: str) -> None:
    streams = session.target.streams()
    if not streams:
        session.screen.put("the program has no schedule; `nncdbg print --streams 4` makes one")
        return
    for stream in streams:
        mark = "*" if stream.number == session.stream else " "
        session.screen.put_line(Text(f"{mark} {stream.name:<5}{_next_of(session, stream)}"))


def _next_of(session: CommandSession, stream: Stream) -> str:
    """Return the device, the next statement of a stream, and its events."""
    device = f"{stream.device}  " if stream.device else ""
    if stream.place is None:
        here = session.target.frame(0).place
        return f"{device}at the end of @{here.graph.name or here.path[0]}"
    waits = [_awaited(event) for event in stream.events]
    shown = f"{device}line {stream.place.line}: {stream.place.text}"
    return shown + (f"  [{'; '.join(waits)}]" if waits else "")


def _awaited(event: AwaitedEvent) -> str:
    if event.place is None:
        return f"e{event.number} is recorded in another block"
    line = event.place.line
    return (
        f"e{event.number} of line {line} is reached"
        if event.reached
        else f"waits for e{event.number} of line {line}"
    )


def _fallbacks(session: CommandSession, text: str) -> None:
    fallen = fallbacks(session.target)
    for _, words in fallen:
        session.screen.put(words)
    if not fallen:
        session.screen.put(f"every statement so far ran on {session.target.setup.backend}")


def _kernels(session: CommandSession, text: str) -> None:
    kernels = session.target.kernels()
    for each in kernels:
        if each.reason != "default":
            session.screen.put(kernel_line(each))
    rest = sum(each.reason == "default" for each in kernels)
    others = "all statements" if rest == len(kernels) else counted(rest, "other statement")
    session.screen.put(f"{others}: {session.target.setup.backend}")


def _size(count: int) -> str:
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.4g} {unit}"


def _program(session: CommandSession, text: str) -> None:
    from nncdbg.ir.walk import blocks

    program, listing = session.target.program, session.target.listing
    session.screen.put(f"{session.title}, {len(listing.lines)} lines, entry @{program.entry}")
    opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in program.opsets.items())
    session.screen.put(f"opsets: {opsets or 'the newest supported versions'}")
    for store in program.stores:
        session.screen.put(f"store: {store}")
    for name, graph in program.graphs.items():
        line = listing.header_line((name,))
        session.screen.put_line(Text(f"line {line}: @{name}, {counted(len(graph.nodes), 'statement')}"))
    counts = Counter(node.op for _, graph in blocks(program) for node in graph.nodes)
    session.screen.put(f"ops: {ops_text(counts)}")


def _dead_units(session: CommandSession, text: str) -> None:
    """Show how many units of each activation were flat for all samples of the steps in the history."""
    measured = session.target.dead_units()
    if measured is None:
        session.screen.put("no step has ended yet")
        return
    first, last, activations = measured
    session.screen.put(f"steps {first} to {last}:")
    for each in activations:
        session.screen.put_line(Text(f"  {_dead_row(each)}"))
    if not activations:
        session.screen.put("  no activation that a gradient passes has results that can be flat")


def _dead_row(each: DeadUnits) -> str:
    calls = "".join(f", called at line {call.line}" for call in each.calls[-1:])
    flat = " or ".join(f"{value:g}" for value in each.flat)
    return (
        f"%{name_text(each.name)} = {each.place.op}, line {each.place.line}{calls}: "
        f"{each.dead} of {each.units} units were {flat} for all {each.samples:,} samples"
    )


def _tracks(session: CommandSession, text: str) -> None:
    from nncdbg.presentation.tracks import put_tracks

    tracks = session.target.tracks
    put_tracks(session.screen, tracks)
    if not tracks:
        session.screen.put(
            "nothing is tracked; open a training with --track NAME=EXPR, or add a `track` line"
        )


def _displays(session: CommandSession, text: str) -> None:
    for number, expression in session.displays.items():
        session.screen.put(f"{number}: {expression}")
    if not session.displays:
        session.screen.put("no expression is displayed; `display EXPR` adds one")


TOPICS: dict[str, Callable[[CommandSession, str], None]] = {
    "breakpoints": _breakpoints,
    "display": _displays,
    "inputs": _inputs,
    "states": _states,
    "tracks": _tracks,
    "units": _dead_units,
    "args": _arguments,
    "locals": _locals,
    "values": _values,
    "constants": _constants,
    "line": _line,
    "frames": lambda session, text: where(session, ""),
    "time": _time,
    "memory": _memory,
    "marks": lambda session, text: marks(session, ""),
    "branches": lambda session, text: branches(session, ""),
    "program": _program,
    "model": model,
    "buffers": _buffers,
    "fallbacks": _fallbacks,
    "kernels": _kernels,
    "streams": _streams,
    "convenience": _convenience,
}

_ELSEWHERE = {
    "watch": "breakpoints",
    "watchpoints": "breakpoints",
    "checkpoints": "marks",
    "functions": "program",
    "source": "program",
    "sources": "program",
    "files": "program",
    "variables": "constants",
    "stack": "frames",
    "s": "frames",
}
"""Maps gdb topics to topics here."""

_ANSWERS = {
    "r": "`info locals` lists the values of this frame",
    "reg": "`info locals` lists the values of this frame",
    "registers": "`info locals` lists the values of this frame",
    "all-registers": "`info locals` lists the values of this frame",
    "threads": "the program has one thread: `where` shows its stack",
    "types": "`whatis %h` shows the type of a value",
    "symbol": "`whatis %h` shows what a name refers to",
    "signals": "`info breakpoints` lists what is caught",
}
"""Maps gdb topics without an equivalent to hints."""
