"""`info`: the state of the debugger itself, by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.engine.errors import UsageError
from nncdbg.stats import summarize
from nncdbg.terminal.commands.changing import branches, marks
from nncdbg.terminal.commands.looking import where
from nncdbg.terminal.commands.table import command
from nncdbg.terminal.look import SMALL, element, elements, is_text, type_of
from nncdbg.terminal.stops import describe, fallbacks, value_or_reason

if TYPE_CHECKING:
    from nncdbg.terminal.session import Session

_MANY = 100
"""Values that `info values` lists at most."""


@command("info", "i", group="looking", arguments="TOPIC [TEXT]", completes=("info",))
def info(session: Session, text: str) -> None:
    """Show the state of breakpoints inputs values memory frames marks branches program fallbacks convenience.

    `info values TEXT` lists the values of this block whose names contain TEXT.
    A beginning of the topic does, the first in this order: `info b` is `info breakpoints`.
    """
    word, _, rest = text.partition(" ")
    topics = [topic for topic in TOPICS if word and topic.startswith(word)]
    if not topics:
        raise UsageError(
            f'there is no info about "{word}"' if word else "`info` needs a topic",
            hint=f"topics: {', '.join(TOPICS)}",
        )
    TOPICS[topics[0]](session, rest.strip())


def _breakpoints(session: Session, text: str) -> None:
    for found in session.debugger.breakpoints:
        kind = "logpoint" if found.log is not None else "temporary" if found.temporary else ""
        words = [
            str(found),
            kind,
            "" if found.enabled else "off",
            f"hit {found.count}x" if found.count else "",
        ]
        message = f": {found.log}" if found.log is not None else ""
        session.screen.put(f"{found.number}: {', '.join(word for word in words if word)}{message}")
    if not session.debugger.breakpoints:
        session.screen.put("there are no breakpoints")
    kinds = session.debugger.catches.conditions
    caught = [f"{kind} if {when.text}" if when else kind for kind, when in kinds.items()]
    session.screen.put(f"caught: {', '.join(caught) or 'nothing'}")


def _inputs(session: Session, text: str) -> None:
    for name, array in session.debugger.inputs.items():
        session.screen.put_line(describe(name, array, session.screen))
    for note in session.debugger.notes:
        session.screen.put(f"  {note}")


def _values(session: Session, text: str) -> None:
    debugger = session.debugger
    code = debugger.frames[max(0, debugger.selected)].code
    names = [name for name in code.slot_of if name and text.lstrip("%") in name]
    for name in names[:_MANY]:
        session.screen.put_line(value_or_reason(debugger, name, session.screen))
    if len(names) > _MANY:
        session.screen.put(f"and {len(names) - _MANY} more; `info values TEXT` chooses by name")
    if not names:
        session.screen.put(f'no value of this block has "{text}" in its name')


def _memory(session: Session, text: str) -> None:
    debugger = session.debugger
    timeline = debugger.timeline
    session.screen.put(f"allocator {debugger.allocation.name}")
    session.screen.put(f"buffers in use {_size(debugger.allocation.live_bytes())}")
    session.screen.put(f"history budget {_size(timeline.budget)}")
    session.screen.put(f"statements replayed to go back {timeline.replayed}")


def _convenience(session: Session, text: str) -> None:
    names = session.debugger.convenience
    for name, value in names.items():
        session.screen.put_line(Text(f"${name} = {_in_a_line(value)}"))
    if not names:
        session.screen.put("no convenience names are defined; `$x = EXPR` defines one")


def _in_a_line(value: Any) -> str:
    """A result of an expression: its type and statistics, or its few elements."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return element(value) if isinstance(value, str | np.generic | np.ndarray) else str(value)
    few = value.size <= SMALL or is_text(value)
    return f"{type_of(value)} {elements(value) if few else summarize(value)}"


def _fallbacks(session: Session, text: str) -> None:
    fallen = fallbacks(session.debugger)
    for _, words in fallen:
        session.screen.put(words)
    if not fallen:
        session.screen.put(f"every statement so far ran on {session.debugger.backend.name}")


def _size(count: int) -> str:
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.4g} {unit}"


def _program(session: Session, text: str) -> None:
    from nncdbg.engine.search import blocks

    debugger = session.debugger
    program = debugger.program
    session.screen.put(f"{session.title}, {len(debugger.listing.lines)} lines, entry @{program.entry}")
    opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in program.opsets.items())
    session.screen.put(f"opsets: {opsets or 'the newest known'}")
    for store in program.stores:
        session.screen.put(f"store: {store}")
    for name, graph in program.graphs.items():
        line = debugger.listing.header_line((name,))
        session.screen.put_line(Text(f"line {line}: @{name}, {len(graph.nodes)} statements"))
    counts = Counter(node.op for _, graph in blocks(program) for node in graph.nodes)
    ops = ", ".join(f"{op} {count}" for op, count in counts.most_common())
    session.screen.put(f"ops: {ops}")


TOPICS: dict[str, Callable[[Session, str], None]] = {
    "breakpoints": _breakpoints,
    "inputs": _inputs,
    "values": _values,
    "memory": _memory,
    "frames": lambda session, text: where(session, ""),
    "marks": lambda session, text: marks(session, ""),
    "branches": lambda session, text: branches(session, ""),
    "program": _program,
    "fallbacks": _fallbacks,
    "convenience": _convenience,
}
