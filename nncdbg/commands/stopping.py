"""Commands that set, change and delete breakpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.commands.table import PLACE, breakpoint_number, command, needs, whole_number
from nncdbg.engine.errors import UsageError
from nncdbg.presentation.breakpoint_syntax import (
    is_computed,
    parse_stop,
    place_lines,
    plain_name,
    split_place,
    split_watched,
)

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.engine.stopping.breakpoints import Breakpoint


def _say(session: CommandSession, found: Breakpoint, what: str = "Breakpoint") -> None:
    lines = list(found.lines)
    places = ""
    if found.kind != "line" and not lines:
        places = ", after every statement"
    elif found.kind != "line":
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        places = f", line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:3]))}{more}"
    session.screen.put(f"{what} {found.number}: {found}{places}")
    if found.note:
        session.screen.put(f"  {found.note}")


@command(
    "break", "b", "br", group="stopping", arguments="PLACE [stream N] [if EXPR] [hits N]", completes=PLACE
)
def break_(session: CommandSession, text: str) -> None:
    """Stop before a line, an op, a graph or a value's statement.

    PLACE is LINE, OP, @graph, %value, node NODE or FILE:LINE (default: the current line):
      break 12                       break Softmax hits 3
      break @layer1                  break %h if std(%h) > 10
      break net.py:11                stops at the statements that come from that line
      break node */attn/Softmax      stops at the nodes of an ONNX model, or modules, with such names
    A name without a sigil is an op, a graph, a value or a node.  A part of a name is enough if only one place
    has it: `break attn_q/MatMul`.  A pattern with `*` or `?` stands for all names that it fits.
      break Add stream 2             only at statements on stream 2 of a schedule, or on the host: stream host
    If EXPR reads a result of the statement, `break` tests EXPR after the statement.
    N is a count or a comparison: `hits 3`, `hits >=3`; `hits %10` stops at every tenth hit.
    """
    _say(session, parse_stop(text or str(session.current_line())).add_to(session.debugger))


@command("tbreak", group="stopping", arguments="PLACE [stream N] [if EXPR] [hits N]", completes=PLACE)
def tbreak(session: CommandSession, text: str) -> None:
    """Set a breakpoint that is deleted when it is hit."""
    found = parse_stop(text or str(session.current_line())).add_to(session.debugger, temporary=True)
    _say(session, found, "Temporary breakpoint")


@command("assert", group="stopping", arguments="EXPR [if EXPR] [hits N]", completes=("value", "function"))
def assert_(session: CommandSession, text: str) -> None:
    """Stop when an expression is false after a value in it is written.

      assert max(abs(%h)) < 6e4      assert all(isfinite($out))
    With `$out`, `assert` checks every result of every statement.  `nncdbg watch --assert EXPR` checks an
    assertion in CI.
    """
    expression, when, hits = split_watched(needs("assert", text))
    _say(session, session.debugger.breakpoints.add({"assert": expression}, when, hits), "Assertion")


@command("log", group="stopping", arguments="PLACE MESSAGE", completes=PLACE)
def log(session: CommandSession, text: str) -> None:
    """Print a message each time a place is reached, and continue.

    `log` replaces each expression in braces with its value:
      log 14 iteration {$iter}: mean {mean(%s)}
    If MESSAGE reads a result of the statement, `log` prints it after the statement.
    """
    kind, name, message = split_place(needs("log", text))
    if not message:
        raise UsageError("there is no message", hint="add a message: `log 14 mean is {mean(%s)}`")
    from nncdbg.presentation.breakpoint_syntax import StopSpec

    _say(session, StopSpec(kind, name).add_to(session.debugger, log=message), "Logpoint")


@command("watch", group="stopping", arguments="EXPR [if EXPR] [hits N]", completes=("value", "function"))
def watch(session: CommandSession, text: str) -> None:
    """Stop after a statement that writes a value or changes an expression.

      watch %h                       watch %h if max(%h) > 100
      watch %h[0, 3]                 watch max(%h) > 1
    `watch` also stops at the first value of the expression, unless this value is false.
    """
    expression, when, hits = split_watched(needs("watch", text))
    if expression.isdecimal():
        raise UsageError("`watch` needs a value, not a line", hint="use a value: `watch %h if max(%h) > 100`")
    if expression.startswith("@"):
        raise UsageError(
            "`watch` needs a value, not a graph",
            hint=f"use `break {expression}` to stop at the start of the graph",
        )
    debugger = session.debugger
    named = plain_name(expression)
    if named is not None and (debugger.values.has(named) or not is_computed(expression)):
        _say(session, debugger.watch_value(named, when, hits), "Watchpoint")
    else:
        _say(session, debugger.breakpoints.add({"watch": expression}, when, hits), "Watchpoint")


@command("catch", group="stopping", arguments="[KIND...] [if EXPR]", completes=("catch",))
def catch(session: CommandSession, text: str) -> None:
    """Stop at findings, such as nan, inf, overflow, guard or state-reset.

      nan, inf       a NaN or Inf originates, or one in the data is used first, or returned
      overflow       an Inf that does not come from a division by zero
      uninitialized  a read of memory that was never written
      integer        integer division by zero, a cast out of range, a quantization scale of zero
      contract       operands that an op does not allow, such as duplicate scatter indices
      guard          a write past the end of a buffer
      state-reset    an update that sets a moment or step counter of an optimizer back to 0
      race           a statement that a schedule does not order with another use of its memory
    Without KIND, list the caught kinds.
    """
    if not text:
        _say_caught(session)
        return
    words, mark, condition = f" {text} ".partition(" if ")
    if not words.split():
        raise UsageError("`catch` needs a kind before `if`", hint="add a kind: `catch nan if $iter > 3`")
    if mark and not condition.strip():
        raise UsageError("there is no condition after `if`", hint="add a condition: `catch nan if $iter > 3`")
    session.debugger.catch(*words.replace(",", " ").split(), when=condition.strip() or None)
    _say_caught(session)


@command("uncatch", group="stopping", arguments="[KIND...]", completes=("catch",))
def uncatch(session: CommandSession, text: str) -> None:
    """Stop catching these kinds of findings; without KIND, all."""
    kinds = text.replace(",", " ").split()
    caught = session.debugger.observers.catches.conditions
    for kind in kinds:
        if kind not in caught:
            raise UsageError(f'"{kind}" is not caught', hint=f"caught: {', '.join(caught) or 'nothing'}")
    session.debugger.uncatch(*kinds)
    _say_caught(session)


def _say_caught(session: CommandSession) -> None:
    conditions = session.debugger.observers.catches.conditions
    kinds = [f"{kind} if {when.text}" if when else kind for kind, when in conditions.items()]
    session.screen.put(f"Caught: {', '.join(kinds) or 'nothing'}")


def _number(session: CommandSession, name: str, text: str) -> int:
    return breakpoint_number([found.number for found in session.debugger.breakpoints], name, text)


def _numbers(session: CommandSession, name: str, text: str) -> list[int]:
    numbers = [_number(session, name, word) for word in text.replace(",", " ").split()]
    for number in numbers:
        session.debugger.breakpoints.find(number)
    return numbers or [found.number for found in session.debugger.breakpoints]


@command("delete", group="stopping", arguments="[NUMBER... | all]", completes=("breakpoint",))
def delete(session: CommandSession, text: str) -> None:
    """Delete breakpoints, watchpoints and logpoints by number.

    Without NUMBER, delete all; at a terminal, this needs confirmation.  `delete all` and scripts need no
    confirmation.
    """
    debugger = session.debugger
    if text == "all":
        debugger.delete()
        return
    numbers = _numbers(session, "delete", text)
    count = len(numbers)
    if (
        not text
        and count
        and not session.sure(f"delete all breakpoints ({count})?", "`delete all` deletes them")
    ):
        return
    for number in numbers:
        debugger.delete(number)


@command("clear", group="stopping", arguments="[PLACE]", completes=PLACE)
def clear(session: CommandSession, text: str) -> None:
    """Delete the breakpoints at a place; without PLACE, at the current line."""
    debugger = session.debugger
    lines = place_lines(debugger, text)[1] if text else (session.current_line(),)
    there = [
        found
        for found in debugger.breakpoints
        if not found.after_writes and not {*lines}.isdisjoint(found.lines)
    ]
    if not there:
        where = f"line {lines[0]}" if len(lines) == 1 else text
        raise UsageError(
            f"there is no breakpoint at {where}", hint="list the breakpoints with `info breakpoints`"
        )
    for found in there:
        debugger.delete(found.number)
        session.screen.put(f"Deleted breakpoint {found.number}: {found}")


@command(
    "condition", group="stopping", arguments="NUMBER [EXPR]", completes=("breakpoint", "value", "function")
)
def condition(session: CommandSession, text: str) -> None:
    """Set the condition of a breakpoint, or remove it without EXPR.

    condition 1 max(abs(%h)) > 6e4
    """
    number, _, expression = needs("condition", text).partition(" ")
    breakpoints = session.debugger.breakpoints
    _say(
        session, breakpoints.set_condition(_number(session, "condition", number), expression.strip() or None)
    )


@command("ignore", group="stopping", arguments="NUMBER COUNT", completes=("breakpoint",))
def ignore(session: CommandSession, text: str) -> None:
    """Ignore the next COUNT hits of a breakpoint."""
    number, _, count = needs("ignore", text).partition(" ")
    found = session.debugger.breakpoints.ignore(
        _number(session, "ignore", number), whole_number("ignore", count.strip() or "0")
    )
    left = found.skipped - found.count
    session.screen.put(f"breakpoint {found.number} ignores its next {left} hit{'s' * (left != 1)}")


@command("disable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def disable(session: CommandSession, text: str) -> None:
    """Disable breakpoints; without NUMBER, all."""
    for number in _numbers(session, "disable", text):
        session.debugger.breakpoints.enable(number, False)


@command("enable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def enable(session: CommandSession, text: str) -> None:
    """Enable breakpoints; without NUMBER, all."""
    for number in _numbers(session, "enable", text):
        session.debugger.breakpoints.enable(number)
