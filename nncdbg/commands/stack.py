"""Commands that show the stack and select a frame of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.commands.table import command, whole_number
from nncdbg.dtypes import FLOATS
from nncdbg.errors import UsageError
from nncdbg.escaping import printable_line
from nncdbg.expression import resolve_name, spelled
from nncdbg.expression.operators import OperandError
from nncdbg.ir.records import tensor_only, type_of
from nncdbg.presentation.listing_window import around, window
from nncdbg.presentation.source_files import source_place
from nncdbg.presentation.source_view import frame_title, source_window, value_lines
from nncdbg.presentation.stops import marks_of, statement_lines, value_or_reason
from nncdbg.presentation.tensor_text import value_line
from nncdbg.stats import summarize
from nncdbg.target.breakpoint_syntax import split_value

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import Frame
    from nncdbg.target.source import SourceView


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
        _show_backward_stack(session, rest.strip())
        return
    target = session.target
    full = text == "full"
    count = whole_number("where", text) if text and not full else _ALL
    if (source := session.source) is not None and source.frames():
        _show_calls(session, source, count, full)
        return
    chosen = max(0, target.selected)
    frames = target.frames()
    for frame in frames[:count] if count >= 0 else frames[count:]:
        star = "*" if frame.number == chosen else " "
        head = f"{star}#{frame.number} {frame.title}, line {frame.line}: "
        for words in statement_lines(frame.listing, session.screen, frame.line, head):
            session.screen.put_line(Text(words[: len(head)]).append(words[len(head) :], "dim"))
        node = frame.node
        place = source_place(target.program, node.location) if node is not None else ""
        if place and " loc(" not in words:
            session.screen.put_line(Text(f"     {place}", "dim"))
        if full:
            _show_computed(session, frame)


_ALL = 1 << 30


def _show_calls(session: CommandSession, source: SourceView, count: int, full: bool) -> None:
    """Print the calls of the user's functions."""
    frames = source.frames()
    for frame in frames[:count] if count >= 0 else frames[count:]:
        star = "*" if frame.number == source.selected else " "
        text = source.lines(frame.file).get(frame.line, "").strip()
        head = Text(f"{star}#{frame.number} {frame_title(frame)}")
        session.screen.put_line(head.append(f": {printable_line(text)}" if text else "", "dim"))
        if full:
            for line in value_lines(session.screen, session.target, frame.names, "     "):
                session.screen.put_line(line)


_COMPUTED = 20
"""Most values per frame that `where full` shows."""


def _show_computed(session: CommandSession, frame: Frame) -> None:
    """Print the latest computed values of a frame."""
    values, names = session.target.scope(frame.number), frame.computed
    layout = session.screen.line_layout
    for name in dict.fromkeys(names[-_COMPUTED:]):
        session.screen.put_line(Text("     ").append_text(value_or_reason(values, name, layout)))
    if len(names) > _COMPUTED:
        session.screen.put(f"     and {len(names) - _COMPUTED} earlier values")


_GRADIENT_HINT = "write `where grad %loss`, or `where grad %loss by %x, %w`"


def _show_backward_stack(session: CommandSession, text: str) -> None:
    """Show the steps of the backward pass that `text`, ``%loss by %x, %w``, describes."""
    if not text:
        raise UsageError("`where grad` needs a value", hint=_GRADIENT_HINT)
    scope = session.target.scope()
    first, rest = split_value(text)
    y = resolve_name(first, scope.has, scope.names, scope.aliases)
    word, _, names = rest.strip().partition(" ")
    if word and (word != "by" or not names.strip()):
        raise UsageError(f'`where grad` cannot read "{rest.strip()}"', hint=_GRADIENT_HINT)
    given = [each.strip() for each in names.split(",")] if word else []
    xs = [resolve_name(each, scope.has, scope.names, scope.aliases) for each in given] or _leaves(session, y)
    try:
        stages = session.target.gradient(y, [*dict.fromkeys(xs)])
    except OperandError as error:
        raise UsageError(str(error), hint=error.hint) from None
    screen = session.screen
    screen.put_line(Text(f"the gradient of {spelled(y)} by {spelled(y)} is 1"))
    for number, stage in enumerate(stages):
        place = f"{stage.where}: " if stage.where else ""
        screen.put_line(Text(f"#{number} {place}").append(stage.text, "dim"))
        for name, gradient in stage.cotangents.items():
            for part, array in _tensors(gradient):
                shown = value_line(name, array, summarize(array), screen.line_layout)
                screen.put_line(Text(f"     {part}") + shown)


def _tensors(gradient: Any) -> list[tuple[str, Any]]:
    """Return the tensors of a gradient; those of a sequence with their places."""
    if isinstance(gradient, list):
        return [(f"[{index}] of ", np.asarray(each)) for index, each in enumerate(gradient)]
    return [("", np.asarray(gradient))]


def _leaves(session: CommandSession, name: str) -> list[str]:
    """Return the floats that a value depends on, and that no statement of its frame computes."""
    scope, place = session.target.scope(), session.target.state(name).place
    needed, found = {name}, []
    for node in reversed(place.graph.nodes[: place.pc + 1]):
        outputs = {value.name for value in node.outputs}
        if outputs & needed:
            needed -= outputs
            needed |= {each for each in node.inputs if isinstance(each, str)}
    order = dict.fromkeys(
        (
            *(value.name for value in place.graph.inputs),
            *(constant.value.name for constant in place.graph.constants),
            *(each for node in place.graph.nodes for each in node.inputs),
        )
    )
    for each in sorted(needed - {name}, key=[*order].index):
        known = tensor_only(type_of(scope.content(each)))
        if known is not None and known.dtype in FLOATS:
            found.append(each)
    if not found:
        raise UsageError(f"{spelled(name)} depends on no floats of its frame", hint=_GRADIENT_HINT)
    return found


@command("frame", "f", group="looking", arguments="[NUMBER]")
def frame_(session: CommandSession, text: str) -> None:
    """Select a frame by its number in `where`, or show the selected frame.

    Value names, `list`, `break` and `info` refer to the selected frame until the program moves.
    """
    _show_frame(session, whole_number("frame", text) if text else _selected(session))


def _selected(session: CommandSession) -> int:
    return max(0, session.target.selected) if session.source is None else session.source.selected


@command("up", "u", group="looking", arguments="[COUNT]", repeats=True)
def up(session: CommandSession, text: str) -> None:
    """Select the frame that called this one, or COUNT frames up."""
    _select(session, whole_number("up", text) if text else 1)


@command("down", group="looking", arguments="[COUNT]", repeats=True)
def down(session: CommandSession, text: str) -> None:
    """Select the frame that this one called, or COUNT frames down."""
    _select(session, -(whole_number("down", text) if text else 1))


def _select(session: CommandSession, steps: int) -> None:
    before = _selected(session)
    last = session.target.frame(0).depth if session.source is None else len(session.source.frames()) - 1
    chosen = min(max(0, before + steps), last)
    if chosen == before:
        which = "outermost" if steps > 0 else "innermost"
        raise UsageError(f"this is the {which} frame", hint="show the stack with `where`")
    _show_frame(session, chosen)


def _show_frame(session: CommandSession, chosen: int) -> None:
    """Select a frame and print its title and the lines around its statement."""
    if (source := session.source) is not None:
        frames = source.frames()
        if not 0 <= chosen < len(frames):
            raise UsageError(f"there is no frame {chosen}", hint="list the frames with `where`")
        source.selected, session.listed = chosen, None
        session.screen.put_line(Text(f"#{chosen} {frame_title(frames[chosen])}", "bold"))
        for line in source_window(session.screen, session.target, source, chosen):
            session.screen.put_line(line)
        return
    frame = session.target.frame(chosen)
    session.target.selected, session.listed = chosen, None
    session.screen.put_line(Text(f"#{chosen} {frame.title}", "bold"))
    for line in window(
        frame.listing,
        around(frame.line, 3, len(frame.listing.lines)),
        marks_of(session.target, chosen),
        session.screen.line_layout.width,
        session.screen.names,
        hidden=session.screen.hidden_lines(frame.listing),
    ):
        session.screen.put_line(line)
