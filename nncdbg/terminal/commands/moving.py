"""Commands that move through the program, forward and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.engine.errors import UsageError
from nncdbg.terminal.commands.table import command, needs, no_arguments, whole_number

if TYPE_CHECKING:
    from nncdbg.engine.control import Stop
    from nncdbg.terminal.session import Session


def _times(name: str, text: str) -> int:
    count = whole_number(name, text) if text else 1
    if count < 1:
        raise UsageError(f"`{name}` cannot be done {count} times", hint="COUNT is 1 or more")
    return count


@command("run", "r", group="moving")
def run(session: Session, text: str) -> None:
    """Run from the start until something stops the program.

    A program that is under way or has ended is restarted first.
    """
    no_arguments("run", text)

    def from_the_start() -> Stop:
        debugger = session.debugger
        if debugger.timeline.tick > 0:
            debugger.restart()
        return debugger.run()

    session.move(from_the_start)


@command("continue", "c", group="moving", repeats=True)
def continue_(session: Session, text: str) -> None:
    """Go on until a breakpoint, a caught finding, a failure or the end."""
    no_arguments("continue", text)
    session.go_on()


@command("next", "n", group="moving", arguments="[COUNT]", repeats=True)
def next_(session: Session, text: str) -> None:
    """Execute this statement, with all that it calls.

    Layers, branches and loops are taken whole; what the statement wrote is shown.
    """
    session.move(session.debugger.step_over, _times("next", text))


@command("step", "s", group="moving", arguments="[COUNT]", repeats=True)
def step(session: Session, text: str) -> None:
    """Execute this statement, and enter the graph, branch or loop that it begins."""
    session.move(session.debugger.step_into, _times("step", text))


@command("stepi", "si", group="moving", arguments="[COUNT]", repeats=True)
def stepi(session: Session, text: str) -> None:
    """Like `step`, and enter the micro program of an op that has one.

    The micro program computes the op out of simpler ones: Softmax is ReduceMax, Sub, Exp, ReduceSum, Div.
    """
    session.move(lambda: session.debugger.step_into(micro=True), _times("stepi", text))


@command("finish", "fin", group="moving", repeats=True)
def finish(session: Session, text: str) -> None:
    """Run until the innermost layer, branch, loop or micro program is left."""
    no_arguments("finish", text)
    session.move(session.debugger.step_out)


@command("until", group="moving", arguments="LINE", completes=("line",))
def until(session: Session, text: str) -> None:
    """Run until the statement at LINE, or the next one after it, is about to run."""
    line = whole_number("until", needs("until", text))
    session.move(lambda: session.debugger.run_to(line=line))


@command("back", "b", group="moving", arguments="[COUNT]", repeats=True)
def back(session: Session, text: str) -> None:
    """Step back: undo the last statement of this block, with all that it called.

    At the first statement of a block it goes back to the statement that began the block, in a loop
    to the end of the iteration before.
    """
    session.move(session.debugger.step_back, _times("back", text), forward=False)


@command("rback", "rb", group="moving", arguments="[COUNT]", repeats=True)
def rback(session: Session, text: str) -> None:
    """Step back into: undo the last statement executed, wherever it was."""
    session.move(session.debugger.step_back_into, _times("rback", text), forward=False)


@command("rfinish", "rfin", group="moving", repeats=True)
def rfinish(session: Session, text: str) -> None:
    """Go back to the statement that began the innermost block."""
    no_arguments("rfinish", text)
    session.move(session.debugger.reverse_step_out, forward=False)


@command("rcontinue", "rc", group="moving", repeats=True)
def rcontinue(session: Session, text: str) -> None:
    """Go back to the previous breakpoint hit or caught finding, else to the start."""
    no_arguments("rcontinue", text)
    session.move(session.debugger.reverse_continue, forward=False)


@command("restart", group="moving")
def restart(session: Session, text: str) -> None:
    """Go back to the first statement of this branch and stop there; breakpoints and marks stay.

    Values that were set on this branch are set again when the run reaches them.  `branch 0` goes
    to the run without them.
    """
    no_arguments("restart", text)
    session.move(session.debugger.restart, forward=False)
