"""Commands that set, change and delete breakpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.commands.table import PLACE, breakpoint_number, command, needs, whole_number
from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import split_place, split_source, split_watched
from nncdbg.target.stops import StopPoint, unknown_number

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


def _say(session: CommandSession, point: StopPoint, what: str = "Breakpoint") -> None:
    session.screen.put(f"{what} {point.number}: {point.text}{point.where}")
    if point.note:
        session.screen.put(f"  {point.note}")


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
    In the source view of a recorded step, LINE is one of the current file, and PLACE may be a function:
    `break 19`, `break Block.forward`.
    """
    _say(session, session.stops.add(_placed(session, text)))


def _placed(session: CommandSession, text: str) -> str:
    """Return a breakpoint with its place in the source view written as FILE:LINE."""
    if (source := session.source) is None:
        return text or session.stops.here()
    place, _, rest = (text or ".").partition(" ")
    found = source.place_of(place) if split_source(place) is None else None
    return text or session.stops.here() if found is None else f"{found[0]}:{found[1]} {rest}".rstrip()


@command("tbreak", group="stopping", arguments="PLACE [stream N] [if EXPR] [hits N]", completes=PLACE)
def tbreak(session: CommandSession, text: str) -> None:
    """Set a breakpoint that is deleted when it is hit."""
    point = session.stops.add(_placed(session, text), temporary=True)
    _say(session, point, "Temporary breakpoint")


@command("assert", group="stopping", arguments="EXPR [if EXPR] [hits N]", completes=("value", "function"))
def assert_(session: CommandSession, text: str) -> None:
    """Stop when an expression is false after a value in it is written.

      assert max(abs(%h)) < 6e4      assert all(isfinite($out))
    With `$out`, `assert` checks every result of every statement.  `nncdbg watch --assert EXPR` checks an
    assertion in CI.
    """
    expression, when, hits = split_watched(needs("assert", text))
    _say(session, session.stops.check(expression, when, hits), "Assertion")


@command("log", group="stopping", arguments="PLACE MESSAGE", completes=PLACE)
def log(session: CommandSession, text: str) -> None:
    """Print a message each time a place is reached, and continue.

    `log` replaces each expression in braces with its value:
      log 14 iteration {$iter}: mean {mean(%s)}
    If MESSAGE reads a result of the statement, `log` prints it after the statement.
    """
    _, _, message = split_place(needs("log", text))
    if not message:
        raise UsageError("there is no message", hint="add a message: `log 14 mean is {mean(%s)}`")
    _say(session, session.stops.add(text.removesuffix(message), log=message), "Logpoint")


@command("watch", group="stopping", arguments="EXPR [if EXPR] [hits N]", completes=("value", "function"))
def watch(session: CommandSession, text: str) -> None:
    """Stop after a statement that writes a value or changes an expression.

      watch %h                       watch %h if max(%h) > 100
      watch %h[0, 3]                 watch max(%h) > 1
    `watch` also stops at the first value of the expression, unless this value is false.  In a recorded step,
    `watch h` and `watch h.mean()` stop where a line of the current function has bound `h`, in each call.
    """
    expression, when, hits = split_watched(needs("watch", text))
    if expression.isdecimal():
        raise UsageError("`watch` needs a value, not a line", hint="use a value: `watch %h if max(%h) > 100`")
    if expression.startswith("@"):
        raise UsageError(
            "`watch` needs a value, not a graph",
            hint=f"use `break {expression}` to stop at the start of the graph",
        )
    _say(session, session.stops.watch(expression, when, hits), "Watchpoint")


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
    session.stops.catch(words.replace(",", " ").split(), condition.strip() or None)
    _say_caught(session)


@command("uncatch", group="stopping", arguments="[KIND...]", completes=("catch",))
def uncatch(session: CommandSession, text: str) -> None:
    """Stop catching these kinds of findings; without KIND, all."""
    kinds = text.replace(",", " ").split()
    caught = [each.kind for each in session.stops.catches()]
    for kind in kinds:
        if kind not in caught:
            raise UsageError(f'"{kind}" is not caught', hint=f"caught: {', '.join(caught) or 'nothing'}")
    session.stops.uncatch(kinds)
    _say_caught(session)


def _say_caught(session: CommandSession) -> None:
    session.screen.put(f"Caught: {', '.join(map(str, session.stops.catches())) or 'nothing'}")


def _number(session: CommandSession, name: str, text: str) -> int:
    """Return the number of a breakpoint.  Raises UsageError if none has it."""
    known = [point.number for point in session.stops.points()]
    number = breakpoint_number(known, name, text)
    if number not in known:
        raise unknown_number(number)
    return number


def _numbers(session: CommandSession, name: str, text: str) -> list[int]:
    numbers = [_number(session, name, word) for word in text.replace(",", " ").split()]
    return numbers or [point.number for point in session.stops.points()]


@command("delete", group="stopping", arguments="[NUMBER... | all]", completes=("breakpoint",))
def delete(session: CommandSession, text: str) -> None:
    """Delete breakpoints, watchpoints and logpoints by number.

    Without NUMBER, delete all; at a terminal, this needs confirmation.  `delete all` and scripts need no
    confirmation.
    """
    numbers = _numbers(session, "delete", "" if text == "all" else text)
    count = len(numbers)
    if (
        not text
        and count
        and not session.sure(f"delete all breakpoints ({count})?", "`delete all` deletes them")
    ):
        return
    for number in numbers:
        session.stops.delete(number)


@command("clear", group="stopping", arguments="[PLACE]", completes=PLACE)
def clear(session: CommandSession, text: str) -> None:
    """Delete the breakpoints at a place; without PLACE, at the current line."""
    for point in session.stops.at(text or session.stops.here()):
        session.stops.delete(point.number)
        session.screen.put(f"Deleted breakpoint {point.number}: {point.text}")


@command(
    "condition", group="stopping", arguments="NUMBER [EXPR]", completes=("breakpoint", "value", "function")
)
def condition(session: CommandSession, text: str) -> None:
    """Set the condition of a breakpoint, or remove it without EXPR.

    condition 1 max(abs(%h)) > 6e4
    """
    number, _, expression = needs("condition", text).partition(" ")
    chosen = _number(session, "condition", number)
    _say(session, session.stops.set_condition(chosen, expression.strip() or None))


@command("ignore", group="stopping", arguments="NUMBER COUNT", completes=("breakpoint",))
def ignore(session: CommandSession, text: str) -> None:
    """Ignore the next COUNT hits of a breakpoint."""
    number, _, count = needs("ignore", text).partition(" ")
    point = session.stops.ignore(
        _number(session, "ignore", number), whole_number("ignore", count.strip() or "0")
    )
    hits = f"{point.ignored} hit{'s' * (point.ignored != 1)}"
    session.screen.put(f"breakpoint {point.number} ignores its next {hits}")


@command("disable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def disable(session: CommandSession, text: str) -> None:
    """Disable breakpoints; without NUMBER, all."""
    for number in _numbers(session, "disable", text):
        session.stops.enable(number, False)


@command("enable", group="stopping", arguments="[NUMBER...]", completes=("breakpoint",))
def enable(session: CommandSession, text: str) -> None:
    """Enable breakpoints; without NUMBER, all."""
    for number in _numbers(session, "enable", text):
        session.stops.enable(number, True)
