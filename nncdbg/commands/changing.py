"""Commands that change values, and that name and visit marks and branches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nncdbg.commands.settings import change_setting
from nncdbg.commands.table import command, needs, no_arguments, whole_number
from nncdbg.errors import UsageError
from nncdbg.expression import (
    evaluate,
    evaluate_index,
    resolve_name,
    split_assignment,
    split_definition,
    split_target,
)
from nncdbg.presentation.run_progress import print_messages
from nncdbg.presentation.stops import value_or_reason
from nncdbg.target.data import split_data
from nncdbg.target.records import Moment
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import integer_of, name_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Target


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
    scope = session.target.scope()
    if change_setting(session, text):
        return
    text = re.sub(r"^var(?:iable)?\s+(?=[%$\w\"])", "", needs("set", text))
    if split_definition(text) is not None:
        session.target.evaluate(text)
        return
    data = split_data(text)
    if data is not None and not scope.has(data[1]):
        target, index = split_target(data[0], scope.has, scope.names, scope.aliases)
        _set(session, target, data[1], None if index is None else evaluate_index(index, scope))
        return
    target, index, value = split_assignment(text, scope.has, scope.names, scope.aliases)
    place = None if index is None else evaluate_index(index, scope)
    _set(session, target, evaluate(value, scope), place)


def _set(session: CommandSession, name: str, value: Any, index: Any = None) -> None:
    edited = session.target.set_value(name, value, index)
    print_messages(session.target, session.screen)
    session.screen.put_line(value_or_reason(session.target, name, session.screen.line_layout))
    if edited.branch is None:
        line = edited.line
        session.screen.put(f"from now on, nncdbg uses this value instead of running the op at line {line}")
        return
    session.screen.put(f"this is branch {edited.branch}; branch {edited.parent} is unchanged")
    for sentence in edited.sentences:
        session.screen.put(sentence)


@command("load", group="changing", arguments="%value = FILE", completes=("value", "file"))
def load(session: CommandSession, text: str) -> None:
    """Set a value to a `.npy`, `.npz` or image file (pickles are refused)."""
    name, equals, path = needs("load", text).partition("=")
    if not equals or not path.strip():
        hint = "add one: `load %h = FILE.npy`, FILE.npz:KEY or FILE.png:STEPS"
        raise UsageError("the file is missing", hint=hint)
    scope = session.target.scope()
    target = resolve_name(name.strip(), scope.has, scope.names)
    _set(session, target, _unquoted(path))


def _unquoted(path: str) -> str:
    return path.strip().strip("\"'")


@command("mark", group="changing", arguments="[NAME]")
def mark(session: CommandSession, text: str) -> None:
    """Set a mark at this point of the run, for `goto NAME`."""
    known = session.target.marks
    name = text or next(f"m{number}" for number in range(1, len(known) + 2) if f"m{number}" not in known)
    if name.lstrip("+-").isdigit():
        raise UsageError(
            f"the name of a mark cannot be a number: {name}",
            hint="choose another name; `goto NUMBER` goes to a line",
        )
    made = session.target.mark(name)
    session.screen.put(f"mark {made.name}: after {counted(made.tick, 'statement')}, branch {made.branch}")


@command("marks", group="changing")
def marks(session: CommandSession, text: str) -> None:
    """List the marks."""
    no_arguments("marks", text)
    known = session.target.marks
    for made in known.values():
        session.screen.put(f"{made.name}: after {counted(made.tick, 'statement')}, branch {made.branch}")
    if not known:
        session.screen.put("there are no marks")


@command("goto", group="changing", arguments="NAME | LINE | [BRANCH]:COUNT", completes=("mark",), varies=True)
def goto(session: CommandSession, text: str) -> None:
    """Go to a mark, to a line, or to the moment after COUNT statements.

      goto before       goto 14       goto :120       goto 1:120 on branch 1
    A line is that of its last execution; if it has not run, or is ahead in a running graph, the program
    runs to it.  `goto` ignores breakpoints on the way.
    """
    target, line = session.target, integer_of(needs("goto", text))
    if line is not None:
        session.move(lambda: target.go_to_line(line), forward=False)
        return
    place: str | Moment = text
    if (found := re.fullmatch(r"([0-9]{1,18})?:([0-9]{1,18})", text)) is not None:
        number = target.now.branch if found[1] is None else known_branch(target, int(found[1]))
        place = Moment(number, int(found[2]))
    session.move(lambda: target.go_to(place), forward=False)


@command("branches", group="changing")
def branches(session: CommandSession, text: str) -> None:
    """List branches: the original run, plus one per `set`."""
    no_arguments("branches", text)
    for branch in session.target.branches.values():
        star = "*" if branch.current else " "
        source = (
            ""
            if branch.parent is None
            else f", from branch {branch.parent} after {counted(branch.since, 'statement')}"
        )
        ahead = "".join(
            f"; %{name_text(edit.name)} is set again after {counted(edit.tick, 'statement')}"
            for edit in branch.ahead
        )
        session.screen.put(
            f"{star}{branch.number}: {branch.title}{source}; "
            f"now after {counted(branch.tick, 'statement')}{ahead}"
        )


@command("branch", group="changing", arguments="NUMBER", completes=("branch",), varies=True)
def branch(session: CommandSession, text: str) -> None:
    """Switch to another branch, at the moment where you left it."""
    target = session.target
    number = known_branch(target, whole_number("branch", needs("branch", text)))

    def switch() -> Stop:
        return target.go_to(Moment(number, target.branches[number].tick))

    session.move(switch, forward=False)


def known_branch(target: Target, number: int) -> int:
    known = target.branches
    if number not in known:
        raise UsageError(f"there is no branch {number}", hint=f"use one of: {', '.join(map(str, known))}")
    return number
