"""Commands that change values, and that name and visit marks and branches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nncdbg.commands.settings import change_setting
from nncdbg.commands.table import command, needs, no_arguments, whole_number
from nncdbg.engine.inputs.data_specs import split_data
from nncdbg.engine.time.timeline import Mark
from nncdbg.engine.values.editing import late_decisions
from nncdbg.errors import UsageError
from nncdbg.expression import (
    evaluate,
    evaluate_index,
    resolve_name,
    split_assignment,
    split_definition,
    split_target,
)
from nncdbg.opening.progress import RunningProgram
from nncdbg.presentation.run_progress import print_messages
from nncdbg.presentation.stops import value_or_reason
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import integer_of, name_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop


@command("set", group="changing", arguments="%value[INDEX] = EXPR", completes=("value", "function"))
def set_(session: CommandSession, text: str) -> None:
    """Change a value or a part of it, and recompute dependent values.

      set %h[0, 3] = 0        set %h += 1            set %h[isnan(%h)] = 0
      set %h = zeros          set %h = normal[2,3]   set %h = FILE.npy
      set %x = photo.png:/255,resize
      set $limit = 3          defines a name for expressions, and prints nothing
      set names full          shows long names whole; `show settings` lists the settings
      set times on            measures statements; see `info time` and `list`
    The run without the change remains as a branch (see `branches`, `diff`).  After `back` or
    `restart`, the run repeats the change at the same point.  If the current op has no kernel,
    set its results to continue the run.
    """
    debugger = session.debugger
    scope = debugger.values
    if change_setting(session, text):
        return
    text = re.sub(r"^var(?:iable)?\s+(?=[%$\w\"])", "", needs("set", text))
    if split_definition(text) is not None:
        debugger.evaluate(text)
        return
    data = split_data(text)
    if data is not None and not scope.has(data[1]):
        target, index = split_target(data[0], scope.has, scope.names)
        _set(session, target, data[1], None if index is None else evaluate_index(index, scope))
        return
    target, index, value = split_assignment(text, scope.has, scope.names)
    place = None if index is None else evaluate_index(index, scope)
    _set(session, target, evaluate(value, scope), place)


def _set(session: CommandSession, name: str, value: Any, index: Any = None) -> None:
    debugger = session.debugger
    awaited = name in debugger.awaited
    branch = debugger.set_value(name, value, index)
    print_messages(RunningProgram(debugger), session.screen)
    session.screen.put_line(value_or_reason(debugger, name, session.screen.line_layout))
    if awaited:
        line = debugger.loaded.line(debugger.frames[0].code, debugger.frames[0].pc)
        session.screen.put(f"from now on, nncdbg uses this value instead of running the op at line {line}")
    else:
        session.screen.put(f"this is branch {branch.number}; branch {branch.parent} is unchanged")
        for sentence in late_decisions(debugger.values):
            session.screen.put(sentence)


@command("load", group="changing", arguments="%value = FILE", completes=("value", "file"))
def load(session: CommandSession, text: str) -> None:
    """Set a value to a `.npy`, `.npz` or image file (pickles are refused)."""
    name, equals, path = needs("load", text).partition("=")
    if not equals or not path.strip():
        hint = "add one: `load %h = FILE.npy`, FILE.npz:KEY or FILE.png:STEPS"
        raise UsageError("the file is missing", hint=hint)
    scope = session.debugger.values
    target = resolve_name(name.strip(), scope.has, scope.names)
    _set(session, target, _unquoted(path))


def _unquoted(path: str) -> str:
    return path.strip().strip("\"'")


@command("mark", group="changing", arguments="[NAME]")
def mark(session: CommandSession, text: str) -> None:
    """Set a mark at this point of the run, for `goto NAME`."""
    known = session.debugger.timeline.marks
    name = text or next(f"m{number}" for number in range(1, len(known) + 2) if f"m{number}" not in known)
    if name.lstrip("+-").isdigit():
        raise UsageError(
            f"the name of a mark cannot be a number: {name}",
            hint="choose another name; `goto NUMBER` goes to a line",
        )
    made = session.debugger.mark(name)
    session.screen.put(f"mark {made.name}: after {counted(made.tick, 'statement')}, branch {made.branch}")


@command("marks", group="changing")
def marks(session: CommandSession, text: str) -> None:
    """List the marks."""
    no_arguments("marks", text)
    for made in session.debugger.timeline.marks.values():
        session.screen.put(f"{made.name}: after {counted(made.tick, 'statement')}, branch {made.branch}")
    if not session.debugger.timeline.marks:
        session.screen.put("there are no marks")


@command("goto", group="changing", arguments="NAME | LINE | [BRANCH]:COUNT", completes=("mark",), varies=True)
def goto(session: CommandSession, text: str) -> None:
    """Go to a mark, to a line, or to the moment after COUNT statements.

      goto before       goto 14       goto :120       goto 1:120 on branch 1
    A line is that of its last execution; if it has not run, or is ahead in a running graph, the program
    runs to it.  `goto` ignores breakpoints on the way.
    """
    debugger, line = session.debugger, integer_of(needs("goto", text))
    if line is not None:
        session.move(lambda: debugger.go_to_line(line), forward=False)
        return
    place: str | Mark = text
    if (found := re.fullmatch(r"([0-9]{1,18})?:([0-9]{1,18})", text)) is not None:
        number = debugger.timeline.branch if found[1] is None else known_branch(debugger, int(found[1]))
        place = Mark("", number, int(found[2]))
    session.move(lambda: debugger.go_to(place), forward=False)


@command("branches", group="changing")
def branches(session: CommandSession, text: str) -> None:
    """List branches: the original run, plus one per `set`."""
    no_arguments("branches", text)
    timeline = session.debugger.timeline
    for branch in timeline.branches.values():
        star = "*" if branch.number == timeline.branch else " "
        tick = timeline.tick_on(branch)
        source = (
            ""
            if branch.parent is None
            else f", from branch {branch.parent} after {counted(branch.tick, 'statement')}"
        )
        ahead = "".join(
            f"; %{name_text(edit.name)} is set again after {counted(edit.tick, 'statement')}"
            for edit in timeline.ahead_on(branch)
        )
        session.screen.put(
            f"{star}{branch.number}: {branch.title}{source}; now after {counted(tick, 'statement')}{ahead}"
        )


@command("branch", group="changing", arguments="NUMBER", completes=("branch",), varies=True)
def branch(session: CommandSession, text: str) -> None:
    """Switch to another branch, at the moment where you left it."""
    number = known_branch(session.debugger, whole_number("branch", needs("branch", text)))

    def switch() -> Stop:
        timeline = session.debugger.timeline
        tick = timeline.tick_on(timeline.branches[number])
        return session.debugger.go_to(Mark("", number, tick))

    session.move(switch, forward=False)


def known_branch(debugger: Debugger, number: int) -> int:
    known = debugger.timeline.branches
    if number not in known:
        raise UsageError(f"there is no branch {number}", hint=f"use one of: {', '.join(map(str, known))}")
    return number
