"""Commands that say where the program is to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.engine.errors import UsageError
from nncdbg.terminal.commands.table import command, needs, whole_number
from nncdbg.terminal.places import parse_stop, split_place

if TYPE_CHECKING:
    from nncdbg.engine.breakpoints import Breakpoint
    from nncdbg.terminal.session import Session

_PLACE = ("op", "graph", "value")


def _say(session: Session, found: Breakpoint, what: str = "Breakpoint") -> None:
    lines = list(found.lines)
    places = ""
    if found.kind != "line":
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        places = f", line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:3]))}{more}"
    session.screen.put(f"{what} {found.number}: {found}{places}")
    if found.note:
        session.screen.put(f"  {found.note}")


@command("break", "br", group="stopping", arguments="PLACE [if EXPR] [hits N]", completes=_PLACE)
def break_(session: Session, text: str) -> None:
    """Stop before a line, before each statement with an op, at a graph's start, or at a value.

    PLACE is LINE, OP, @graph or %value:
      break 12                       break Softmax hits 3
      break @layer1                  break %h if std(%h) > 10
    A condition that names what the statement itself computes is tested after the statement.
    N is a count, or one of == >= > <= < % before it: `hits %10` stops at every tenth.
    Without PLACE: at the current line.
    """
    _say(session, parse_stop(text or str(session.current_line())).add_to(session.debugger))


@command("tbreak", group="stopping", arguments="PLACE [if EXPR] [hits N]", completes=_PLACE)
def tbreak(session: Session, text: str) -> None:
    """A breakpoint that is deleted when it is hit."""
    found = parse_stop(text or str(session.current_line())).add_to(session.debugger, temporary=True)
    _say(session, found, "Temporary breakpoint")


@command("log", group="stopping", arguments="PLACE MESSAGE", completes=_PLACE)
def log(session: Session, text: str) -> None:
    """Print a message each time a place is reached, and go on.

    Expressions in braces are filled in:
      log 14 iteration {$iter}: mean {mean(%s)}
    A message that reads the result of its own line is printed after that statement.
    """
    kind, name, message = split_place(needs("log", text))
    if not message:
        raise UsageError("there is no message", hint="log 14 mean is {mean(%s)}")
    from nncdbg.terminal.places import StopSpec

    _say(session, StopSpec(kind, name).add_to(session.debugger, log=message), "Logpoint")


@command("watch", group="stopping", arguments="%value [if EXPR] [hits N]", completes=("value",))
def watch(session: Session, text: str) -> None:
    """Stop after each statement that writes a value, of all iterations and calls."""
    spec = parse_stop(needs("watch", text))
    if spec.kind == "line":
        raise UsageError("`watch` needs a value, not a line", hint="watch %h if max(%h) > 100")
    if spec.kind == "graph":
        raise UsageError(
            "`watch` needs a value, not a graph", hint=f"`break @{spec.name}` stops at its start"
        )
    _say(session, session.debugger.watch_value(spec.name, spec.when, spec.hits), "Watchpoint")


@command("catch", group="stopping", arguments="[KIND...] [if EXPR]", completes=("catch",))
def catch(session: Session, text: str) -> None:
    """Stop at findings: nan, inf, overflow, uninitialized, integer, guard.

    nan and inf stop at the statement that makes the first one out of inputs without any; overflow at
    an infinity that no division by zero explains; uninitialized at a read of memory that nobody wrote;
    integer at an integer division by zero, a cast out of range or a quantization by a scale of zero;
    guard at a write beyond a buffer.  Without KIND: what is caught now.
    """
    if not text:
        _say_caught(session)
        return
    words, mark, condition = f" {text} ".partition(" if ")
    if not words.split():
        raise UsageError("`catch` needs a kind before `if`", hint="catch nan if $iter > 3")
    if mark and not condition.strip():
        raise UsageError("there is no condition after `if`", hint="catch nan if $iter > 3")
    session.debugger.catch(*words.replace(",", " ").split(), when=condition.strip() or None)
    _say_caught(session)


@command("uncatch", group="stopping", arguments="[KIND...]", completes=("catch",))
def uncatch(session: Session, text: str) -> None:
    """Stop no more at these kinds of findings; without KIND, at none."""
    kinds = text.replace(",", " ").split()
    caught = session.debugger.catches.conditions
    for kind in kinds:
        if kind not in caught:
            raise UsageError(f'"{kind}" is not caught', hint=f"caught: {', '.join(caught) or 'nothing'}")
    session.debugger.uncatch(*kinds)
    _say_caught(session)


def _say_caught(session: Session) -> None:
    conditions = session.debugger.catches.conditions
    kinds = [f"{kind} if {when.text}" if when else kind for kind, when in conditions.items()]
    session.screen.put(f"Caught: {', '.join(kinds) or 'nothing'}")


def _numbers(session: Session, name: str, text: str) -> list[int]:
    numbers = [whole_number(name, word) for word in text.replace(",", " ").split()]
    for number in numbers:
        session.debugger.breakpoint(number)
    return numbers or [found.number for found in session.debugger.breakpoints]


@command("delete", "d", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def delete(session: Session, text: str) -> None:
    """Delete breakpoints, watchpoints and logpoints; without NUMBER, all."""
    for number in _numbers(session, "delete", text):
        session.debugger.delete(number)


@command("disable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def disable(session: Session, text: str) -> None:
    """Switch breakpoints off; without NUMBER, all."""
    for number in _numbers(session, "disable", text):
        session.debugger.enable(number, False)


@command("enable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def enable(session: Session, text: str) -> None:
    """Switch breakpoints on; without NUMBER, all."""
    for number in _numbers(session, "enable", text):
        session.debugger.enable(number)
