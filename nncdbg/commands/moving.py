"""Commands that move through the program, forward and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nncdbg.commands.table import PLACE, command, no_arguments, whole_number
from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import stream_number, stream_words
from nncdbg.target.target import check_not_ended

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import Stop


def _times(name: str, text: str) -> int:
    count = whole_number(name, text) if text else 1
    if count < 1:
        raise UsageError(f"`{name}` cannot run {count} times", hint="use a COUNT of 1 or more")
    return count


def _move(
    session: CommandSession, name: str, text: str, otherwise: Callable[[], Stop], *, forward: bool = True
) -> None:
    """Move as often as `text` says: in the source view as the command `name` does, else by `otherwise`."""
    source, times = session.source, _times(name, text)
    verb = otherwise if source is None else lambda: source.move(name)
    session.move(verb, times, forward=forward, lines=source)


@command("run", "r", group="moving")
def run(session: CommandSession, text: str) -> None:
    """Run from the start to a breakpoint, a finding, a failure or the end.

    If the program has started, `run` at a terminal asks for confirmation.  `finish` runs to the end of
    the graph or loop.
    """
    no_arguments("run", text)
    target, now = session.target, session.target.now
    if (
        now.tick
        and not now.ended
        and not session.sure("the program has already started: run it from the start?")
    ):
        return

    def from_the_start() -> Stop:
        if target.now.tick > 0:
            target.go_to(0)
        return target.run() if session.source is None else session.source.run()

    session.move(from_the_start)


@command("continue", "c", group="moving", arguments="[COUNT]", repeats=True)
def continue_(session: CommandSession, text: str) -> None:
    """Continue to the next breakpoint, finding, failure or the end.

    With COUNT, the breakpoint of this stop stops at its COUNT-th next hit.
    """
    count = _times("continue", text)
    stop = session.target.stop
    if count > 1 and not stop.breakpoints:
        raise UsageError("`continue COUNT` needs a stop at a breakpoint", hint="omit COUNT")
    for number in stop.breakpoints if count > 1 else ():
        session.stops.ignore(number, count - 1)
    session.go_on()


@command("next", "n", group="moving", arguments="[COUNT]", repeats=True)
def next_(session: CommandSession, text: str) -> None:
    """Execute this statement, including the graph or loop that it calls.

    Show the results.  Repeat COUNT times, or until the program stops for another reason.  After `stream N`,
    run until the next statement of this stream has been executed.  In the source view of a recorded step,
    run to the next line of this function, or of its caller; `nexti` executes a statement.
    """
    _move(session, "next", text, lambda: session.target.step_over(session.stream))


@command("nexti", "ni", group="moving", arguments="[COUNT]", repeats=True)
def nexti(session: CommandSession, text: str) -> None:
    """Execute this statement, including the graph or loop that it calls, also in the source view."""
    _move(session, "nexti", text, lambda: session.target.step_over(session.stream))


@command("stream", group="moving", arguments="[N | host | all]", completes=("stream",))
def stream_(session: CommandSession, text: str) -> None:
    """Let `next` follow one stream of a schedule; `all` follows the program again.

    `info streams` shows the streams.  Each has a next statement, and the events that it waits for.
    `break PLACE stream 2` stops only at statements of stream 2.
    """
    number = stream_number(session.target.program, text if text not in ("", "all") else "host")
    if text:
        session.stream = None if text == "all" else number
    followed = "all streams" if session.stream is None else stream_words(session.stream)
    session.screen.put(f"`next` follows {followed}")


@command("step", "s", group="moving", arguments="[COUNT]", repeats=True)
def step(session: CommandSession, text: str) -> None:
    """Execute this statement, or enter its graph, branch or loop.

    In the source view, run to the next line, also in a function that this line calls.
    """
    _move(session, "step", text, session.target.step_into)


@command("stepi", "si", group="moving", arguments="[COUNT]", repeats=True)
def stepi(session: CommandSession, text: str) -> None:
    """Like `step`, but also enter the micro program of an op.

    A micro program computes an op from simpler ops.  For Softmax, the simpler ops are ReduceMax, Sub,
    Exp, ReduceSum and Div.
    """
    session.move(lambda: session.target.step_into(micro=True), _times("stepi", text))


@command("finish", "fin", group="moving", arguments="[COUNT]", repeats=True)
def finish(session: CommandSession, text: str) -> None:
    """Run to the end of the current graph, branch, loop or micro program.

    With COUNT, leave COUNT of them, or stop at a breakpoint before.  In the source view, run until the
    function returns.
    """
    _move(session, "finish", text, session.target.step_out)


@command("until", group="moving", arguments="[PLACE]", repeats=True, completes=PLACE)
def until(session: CommandSession, text: str) -> None:
    """Run to a place; without PLACE, to the next line after the current one.

    PLACE is that of `break`: `until 12`, `until Softmax`, `until @layer1`.  The program stops before the
    first statement of PLACE, at or after a line, or at an earlier breakpoint.
    At the end of an iteration, `next` starts the next iteration; `until` without PLACE leaves the loop.
    In the source view, `until 12` runs to line 12 of this file, and `until` without PLACE does not go back
    in a loop.
    """
    target = session.target
    source = session.source
    if source is not None and (place := source.place_of(text) if text else None) is not None:
        session.move(lambda: source.until(*place), lines=source)
        return
    if source is not None and not text:
        session.move(source.next_after, lines=source)
        return
    if text:
        check_not_ended(target)
        _, lines = target.lines(text)
        session.move(lambda: target.run(to=lines))
        return
    frame = target.frame(0)
    session.move(target.step_out if frame.is_loop and frame.place.at_end else target.step_over)


@command("back", "bk", group="moving", arguments="[COUNT]", repeats=True)
def back(session: CommandSession, text: str) -> None:
    """Step back: undo the last statement of this frame, including its calls.

    From the first statement of a graph, return to its caller.  From the first statement of a loop
    iteration, return to the end of the previous iteration.  In the source view, go back to the line of
    this function that ran before, or to the line that called it; `backi` goes back a statement.
    """
    _move(session, "back", text, session.target.step_back, forward=False)


@command("backi", "bki", group="moving", arguments="[COUNT]", repeats=True)
def backi(session: CommandSession, text: str) -> None:
    """Step back: undo the last statement of this frame, also in the source view."""
    _move(session, "backi", text, session.target.step_back, forward=False)


@command("rback", "rb", group="moving", arguments="[COUNT]", repeats=True)
def rback(session: CommandSession, text: str) -> None:
    """Step back into calls: undo the last statement that was executed.

    In the source view, go back to the line that ran before, in any function.
    """
    _move(session, "rback", text, lambda: session.target.step_back(into=True), forward=False)


@command("rfinish", "rfin", group="moving", repeats=True)
def rfinish(session: CommandSession, text: str) -> None:
    """Go back to the statement that called this graph, branch or loop."""
    no_arguments("rfinish", text)
    _move(session, "rfinish", "", lambda: session.target.step_out(back=True), forward=False)


@command("rcontinue", "rc", group="moving", repeats=True)
def rcontinue(session: CommandSession, text: str) -> None:
    """Go back to the previous breakpoint or finding, or to the start."""
    no_arguments("rcontinue", text)
    session.move(session.target.reverse_continue, forward=False)


@command("restart", group="moving")
def restart(session: CommandSession, text: str) -> None:
    """Go back to the first statement; keep breakpoints, marks and edits.

    The run repeats the edits of this branch.  `branch 0` selects the run without edits.
    """
    no_arguments("restart", text)
    session.move(lambda: session.target.go_to(0), forward=False)
