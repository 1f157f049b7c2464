"""Commands that show the stack and select a frame of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.commands.backward_stack import show_backward_stack
from nncdbg.commands.table import command, whole_number
from nncdbg.errors import UsageError
from nncdbg.presentation.frame_titles import frame_title
from nncdbg.presentation.listing_window import around, window
from nncdbg.presentation.source_files import source_place
from nncdbg.presentation.stops import marks_of, statement_lines, value_or_reason

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


@command(
    "where",
    "w",
    "bt",
    "backtrace",
    group="looking",
    arguments="[COUNT | full | grad %value [by %value, ...]]",
    completes=("value",),
)
def where(session: CommandSession, text: str) -> None:
    """Show the stack of graphs, branches and loops, innermost first.

    With COUNT, show the COUNT innermost frames; with -COUNT, the COUNT outermost frames; with `full`, the
    computed values of each frame too, at most 20.  The command
    `where grad %loss by %x` shows the backward pass as a stack: #0 is the gradient of the last statement,
    which runs first.  Below each statement are the gradients that it adds to, with their sums so far.
    Without `by`, the backward pass goes to all inputs, states and constants of the frame.
    """
    word, _, rest = text.partition(" ")
    if word == "grad":
        show_backward_stack(session, rest.strip())
        return
    debugger = session.debugger
    chosen = max(0, debugger.selected)
    frames = [*enumerate(debugger.frames)]
    full = text == "full"
    count = whole_number("where", text) if text and not full else len(frames)
    for number, frame in frames[:count] if count >= 0 else frames[count:]:
        line = debugger.loaded.line(frame.code, frame.pc) or 0
        star = "*" if number == chosen else " "
        head = f"{star}#{number} {frame_title(debugger.frames, number)}, line {line}: "
        for words in statement_lines(debugger, session.screen, frame.code, line, head):
            session.screen.put_line(Text(words[: len(head)]).append(words[len(head) :], "dim"))
        node = frame.code.nodes[frame.pc] if frame.pc < len(frame.code.nodes) else None
        place = source_place(debugger.program, node.location) if node is not None else ""
        if place and " loc(" not in words:
            session.screen.put_line(Text(f"     {place}", "dim"))
        if full:
            _show_computed(session, len(frames) - 1 - number)


_COMPUTED = 20
"""Most values per frame that `where full` shows."""


def _show_computed(session: CommandSession, depth: int) -> None:
    """Print the latest computed values of the frame at `depth`."""
    debugger = session.debugger
    frame, values = debugger.control.stack[depth], debugger.values_at(depth)
    names = [value.name for node in frame.code.nodes[: frame.pc] for value in node.outputs if value.name]
    layout = session.screen.line_layout
    for name in dict.fromkeys(names[-_COMPUTED:]):
        session.screen.put_line(Text("     ").append_text(value_or_reason(values, name, layout)))
    if len(names) > _COMPUTED:
        session.screen.put(f"     and {len(names) - _COMPUTED} earlier values")


@command("frame", "f", group="looking", arguments="[NUMBER]")
def frame_(session: CommandSession, text: str) -> None:
    """Select a frame by its number in `where`, or show the selected frame.

    Value names, `list`, `break` and `info` refer to the selected frame until the program moves.
    """
    debugger = session.debugger
    number = whole_number("frame", text) if text else max(0, debugger.selected)
    if not 0 <= number < len(debugger.frames):
        raise UsageError(f"there is no frame {number}", hint="list the frames with `where`")
    _show_frame(session, number)


@command("up", "u", group="looking", arguments="[COUNT]", repeats=True)
def up(session: CommandSession, text: str) -> None:
    """Select the frame that called this one, or COUNT frames up."""
    _select(session, whole_number("up", text) if text else 1)


@command("down", group="looking", arguments="[COUNT]", repeats=True)
def down(session: CommandSession, text: str) -> None:
    """Select the frame that this one called, or COUNT frames down."""
    _select(session, -(whole_number("down", text) if text else 1))


def _select(session: CommandSession, steps: int) -> None:
    debugger = session.debugger
    before = max(0, debugger.selected)
    chosen = min(max(0, before + steps), len(debugger.frames) - 1)
    if chosen == before:
        which = "outermost" if steps > 0 else "innermost"
        raise UsageError(f"this is the {which} frame", hint="show the stack with `where`")
    _show_frame(session, chosen)


def _show_frame(session: CommandSession, chosen: int) -> None:
    """Select a frame and print its title and the lines around its statement."""
    debugger = session.debugger
    debugger.selected, session.listed = chosen, None
    frame = debugger.frames[chosen]
    session.screen.put_line(Text(f"#{chosen} {frame_title(debugger.frames, chosen)}", "bold"))
    listing = debugger.loaded.listing_of(frame.code)
    for line in window(
        listing,
        around(session.here(), 3, len(listing.lines)),
        marks_of(debugger, chosen),
        session.screen.line_layout.width,
        session.screen.names,
    ):
        session.screen.put_line(line)
