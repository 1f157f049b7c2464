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
from nncdbg.commands.units import dead_units
from nncdbg.engine.compilation.code import EVICTED
from nncdbg.errors import UsageError
from nncdbg.expression import resolve_name, spelled
from nncdbg.ir.streams import AwaitedEvent, StreamState, stream_name, stream_states, streams_of
from nncdbg.presentation.buffers import buffer_text, sharers
from nncdbg.presentation.elements import SMALL, element, elements, is_text, type_of
from nncdbg.presentation.stops import fallbacks, kernel_line, statement_lines, value_or_reason
from nncdbg.presentation.tensor_text import described
from nncdbg.stats import summarize
from nncdbg.target.breakpoint_syntax import place_lines
from nncdbg.target.measures import results_by_stream
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import integer_of, name_text
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.frame import Frame
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
    for name, array in session.debugger.inputs.items():
        session.screen.put_line(described(name, array, session.screen.line_layout))
    for note in session.debugger.notes:
        session.screen.put(f"  {note}")


def _states(session: CommandSession, text: str) -> None:
    known = session.debugger.states
    for state in session.debugger.program.states:
        name = state.value.name
        if name in known:
            session.screen.put_line(described(name, known[name], session.screen.line_layout))
        else:
            session.screen.put(f"%{name_text(name)} has no value yet")
    if not session.debugger.program.states:
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
    _list_values(session, [value.name for value in _selected(session).code.graph.inputs], "that is an input")


def _locals(session: CommandSession, text: str) -> None:
    frame = _selected(session)
    results = [value.name for node in frame.code.nodes[: frame.pc] for value in node.outputs if value.name]
    _list_values(session, results, "computed yet")


def _selected(session: CommandSession) -> Frame:
    return session.debugger.frames[max(0, session.debugger.selected)]


def _names(session: CommandSession) -> list[str]:
    """Return the names of all values of the selected frame."""
    return [name for name in _selected(session).code.slot_of if name]


def _constant_names(session: CommandSession) -> set[str]:
    """Return the names of the constants in scope in the selected frame."""
    code: Code | None = _selected(session).code
    names: set[str] = set()
    while code is not None:
        names.update(constant.value.name for constant in code.graph.constants)
        code = code.parent
    return names


def _list_values(session: CommandSession, names: Sequence[str], which: str = "") -> None:
    layout = session.screen.line_layout
    for name in names[:_MANY]:
        session.screen.put_line(value_or_reason(session.debugger, name, layout))
    if len(names) > _MANY:
        session.screen.put(f"and {len(names) - _MANY} more; `info values TEXT` selects by name")
    if not names:
        session.screen.put(f"this frame has no value {which}".rstrip())


def _line(session: CommandSession, text: str) -> None:
    listing = session.listing()
    code = _selected(session).code
    lines: tuple[int, ...] = (session.here(),)
    number = integer_of(text)
    if text and (number is None or code.formula is None):
        code, listing = session.debugger.loaded.codes[0], session.debugger.loaded.listing
        _, lines = place_lines(session.debugger, text)
    elif number is not None:
        lines = (number,)
    for wanted in lines:
        place = listing.next_site(wanted)
        if place is None or wanted < 1:
            raise UsageError(f"there is no statement at or after line {wanted}")
        line, site = place
        for words in statement_lines(session.debugger, session.screen, code, line, f"line {line}: "):
            session.screen.put_line(Text(words))
        session.screen.put(f"  {_place_of(session, site)}")


def _place_of(session: CommandSession, site: Site) -> str:
    """Return the number of a statement in its graph, and its location in the user's model."""
    inside = next((frame.code for frame in session.debugger.frames if frame.code.path == site.path), None)
    graph = f"statement {site.pc + 1} of @{site.path[0]}"
    origin = origin_text(inside.nodes[site.pc]) if inside is not None and site.pc < len(inside.nodes) else ""
    return f"{graph}, from {origin}" if origin else graph


def _time(session: CommandSession, text: str) -> None:
    from nncdbg.presentation.times.table import GROUPINGS, of_block
    from nncdbg.presentation.times.text import print_times, time_text

    if text and text not in GROUPINGS:
        raise UsageError(f"times are not grouped by {text}", hint=f"use one of: {', '.join(GROUPINGS)}")
    timeline, times, loaded = session.debugger.timeline, session.debugger.times, session.debugger.loaded
    session.screen.put(f"{counted(timeline.tick, 'statement')} executed, on branch {timeline.branch}")
    session.screen.put(f"{counted(timeline.replayed, 'statement')} replayed to go back")
    if not times.executed:
        state = "no statement was measured yet" if times.on else "`set times on` measures statements"
        session.screen.put(state)
        return
    path = _selected(session).code.path
    table = GROUPINGS[text](times, loaded) if text else of_block(times, loaded, path)
    if table.rows:
        print_times(session.screen, table)
    else:
        session.screen.put("no statement of this block was measured; `info time layer` shows the others")
    kernels, measured = time_text(times.kernels / 1e9), counted(times.executed, "statement", ",")
    around = time_text(times.around / 1e9)
    session.screen.put(f"{kernels} in the kernels of {measured}, and {around} around them")


def _memory(session: CommandSession, text: str) -> None:
    debugger = session.debugger
    timeline = debugger.timeline
    session.screen.put(f"allocator {debugger.loaded.allocation.name}")
    timeline.checkpoints.recount()
    allocation = debugger.loaded.allocation
    results = timeline.checkpoints.live_bytes()
    workspaces = allocation.workspaces.sizes
    session.screen.put(f"results {_size(results)}")
    if streams_of(debugger.program):
        streams = results_by_stream(debugger.control.stack)
        parts = ", ".join(f"{stream_name(stream)} {_size(size)}" for stream, size in streams.items())
        session.screen.put(f"  in these frames, by stream: {parts or 'none'}")
    parts = ", ".join(f"{purpose} {_size(size)}" for purpose, size in sorted(workspaces.items()))
    session.screen.put(f"workspaces {_size(sum(workspaces.values()))}{f' ({parts})' if parts else ''}")
    session.screen.put(f"total {_size(allocation.total_bytes)}")
    session.screen.put(f"history budget {_size(timeline.checkpoints.budget)}")


def _buffers(session: CommandSession, text: str) -> None:
    debugger, screen = session.debugger, session.screen
    if not text:
        raise UsageError("`info buffers` needs a value", hint="`info buffers %h` shows the memory of %h")
    values = debugger.values
    name = resolve_name(text, values.has, values.names)
    place = values.place(name)
    content = place.slots[place.slot]
    if content is EVICTED:
        content = values.content(name)
    heading = f"{spelled(name)}: {buffer_text(debugger.loaded, place.code, place.slot, content)}"
    screen.put_line(Text(heading))
    if gone := debugger.timeline.standing(content):
        screen.put(f"  no longer valid: {gone}")
    if not isinstance(content, np.ndarray):
        return
    shared = [*sharers(debugger, place.code, place.slot, content)]
    for words in shared[:_MANY]:
        screen.put_line(Text(f"  {words}"))
    if len(shared) > _MANY:
        screen.put(f"and {len(shared) - _MANY} more")
    if not shared:
        screen.put("  no other value in the history shares this memory")


def _convenience(session: CommandSession, text: str) -> None:
    names = session.debugger.values.convenience
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
    debugger = session.debugger
    frame = debugger.frames[0]
    states = stream_states(debugger.program, frame.code.graph, frame.pc)
    if not states:
        session.screen.put("the program has no schedule; `nncdbg print --streams 4` makes one")
        return
    for state in states:
        mark = "*" if state.number == session.stream else " "
        session.screen.put_line(Text(f"{mark} {state.name:<5}{_next_of(session, frame.code, state)}"))


def _next_of(session: CommandSession, code: Code, state: StreamState) -> str:
    """Return the device, the next statement of a stream, and its events."""
    device = f"{state.device}  " if state.device else ""
    if state.pc is None:
        return f"{device}at the end of @{code.graph.name or code.path[0]}"
    line = session.debugger.loaded.line(code, state.pc)
    shown = session.debugger.loaded.listing_of(code).lines[(line or 1) - 1].strip()
    waits = [_awaited(session, code, event) for event in state.events]
    return f"{device}line {line}: {shown}" + (f"  [{'; '.join(waits)}]" if waits else "")


def _awaited(session: CommandSession, code: Code, event: AwaitedEvent) -> str:
    if event.recorder is None:
        return f"e{event.number} is recorded in another block"
    line = session.debugger.loaded.line(code, event.recorder)
    return (
        f"e{event.number} of line {line} is reached"
        if event.reached
        else f"waits for e{event.number} of line {line}"
    )


def _fallbacks(session: CommandSession, text: str) -> None:
    fallen = fallbacks(session.debugger)
    for _, words in fallen:
        session.screen.put(words)
    if not fallen:
        session.screen.put(f"every statement so far ran on {session.debugger.backend.name}")


def _kernels(session: CommandSession, text: str) -> None:
    debugger = session.debugger
    kernels = debugger.loaded.kernels()
    for each in kernels:
        if each.reason != "default":
            session.screen.put(kernel_line(each))
    rest = sum(each.reason == "default" for each in kernels)
    others = "all statements" if rest == len(kernels) else counted(rest, "other statement")
    session.screen.put(f"{others}: {debugger.backend.name}")


def _size(count: int) -> str:
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.4g} {unit}"


def _program(session: CommandSession, text: str) -> None:
    from nncdbg.ir.walk import blocks

    debugger = session.debugger
    program = debugger.program
    session.screen.put(f"{session.title}, {len(debugger.loaded.listing.lines)} lines, entry @{program.entry}")
    opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in program.opsets.items())
    session.screen.put(f"opsets: {opsets or 'the newest supported versions'}")
    for store in program.stores:
        session.screen.put(f"store: {store}")
    for name, graph in program.graphs.items():
        line = debugger.loaded.listing.header_line((name,))
        session.screen.put_line(Text(f"line {line}: @{name}, {counted(len(graph.nodes), 'statement')}"))
    counts = Counter(node.op for _, graph in blocks(program) for node in graph.nodes)
    session.screen.put(f"ops: {ops_text(counts)}")


def _tracks(session: CommandSession, text: str) -> None:
    from nncdbg.presentation.tracks import put_tracks

    tracks = session.debugger.tracks
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
    "units": dead_units,
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
