"""`diff`: compare a value with another branch, another side, or its micro program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.commands.changing import known_branch
from nncdbg.commands.table import command, needs, whole_number
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate_index, spelled, split_target
from nncdbg.target.breakpoint_syntax import split_value
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.stats import Comparison
    from nncdbg.target.target import Target


@command("diff", group="changing", arguments="%value[INDEX] [BRANCH]", completes=("value", "branch"))
def diff(session: CommandSession, text: str) -> None:
    """Compare a value with the same value at this step of another branch.

    Without BRANCH, use the parent branch, or the latest branch if there is no parent.  After
    `nncdbg diff --stop`, compare the value with side B.  At a stop of `--check micro`, compare the
    kernel with the micro program.  With an index (`diff %h[0, :4]`), show the elements of both values.
    """
    debuggee, scope = session.target, session.target.scope()
    target, number = _split(needs("diff", text))
    name, index = split_target(target, scope.has, scope.names, scope.aliases)
    here = scope.value(name)
    micro = debuggee.micro
    if number:
        there, titles = _on_branch(debuggee, name, known_branch(debuggee, whole_number("diff", number)))
    elif session.companion is not None:
        other, there = session.companion(name)
        titles = ("side A", "side B" if other == name else f"side B, {spelled(other)}")
    elif micro is not None and micro.name == name and debuggee.stop.finding is not None:
        there, titles = micro.content, ("the kernel", "the micro program")
    else:
        there, titles = _on_branch(debuggee, name, other_branch(debuggee))
    if index is None:
        _show_comparison(session, name, (here, there), titles)
    else:
        _show_parts(session, (here, there), titles, evaluate_index(index, scope))


def _split(text: str) -> tuple[str, str]:
    """Return the value with its index, and the branch number ("" if there is none)."""
    name, rest = split_value(text)
    if rest.startswith("["):
        end = rest.rindex("]") + 1 if "]" in rest else len(rest)
        return name + rest[:end], rest[end:].strip()
    return name, rest


def _on_branch(target: Target, name: str, branch: int) -> tuple[Any, tuple[str, str]]:
    there = target.on_branch(name, branch)
    return there, (f"branch {target.now.branch}", f"branch {branch}")


def other_branch(target: Target) -> int:
    """Return the parent branch, or else the latest other branch. Raises UsageError if there is none."""
    present, branches = target.now.branch, target.branches
    parent = branches[present].parent
    others = [number for number in branches if number != present]
    if parent is not None:
        return parent
    if not others:
        raise UsageError("there is only one branch", hint="start another branch with `set`")
    return others[-1]


def _show_parts(session: CommandSession, pair: tuple[Any, Any], titles: tuple[str, str], index: Any) -> None:
    from nncdbg.presentation.element_grid import grid

    for title, array in zip(titles, pair, strict=True):
        if not isinstance(array, np.ndarray):
            raise UsageError("only a tensor can be indexed")
        session.screen.put(f"{title}:")
        session.screen.put(grid(array, index, layout=session.screen.layout))


def _show_comparison(
    session: CommandSession, name: str, pair: tuple[Any, Any], titles: tuple[str, str]
) -> None:
    from nncdbg.presentation.tensor_text import described
    from nncdbg.stats import compare

    layout = session.screen.line_layout
    for title, array in zip(titles, pair, strict=True):
        side = f"  ({title})"
        line = described(name, array, replace(layout, width=max(1, layout.width - len(side))))
        session.screen.put_line(line.append(side, "dim"))
    if not all(isinstance(array, np.ndarray) for array in pair) or pair[0].shape != pair[1].shape:
        return  # No distances: these are not arrays of one shape.
    found = compare(*pair)
    if not found.mismatched:
        session.screen.put("all elements are equal")
        return
    session.screen.put(f"{found.mismatched} of {counted(found.count, 'element')} differ")
    for fact in _distances(found):
        session.screen.put(f"  {fact}")
    if found.worst is not None:
        left, right = (array[found.worst] for array in pair)
        session.screen.put(f"  worst at {list(found.worst)}: {left} ({titles[0]}), {right} ({titles[1]})")


def _distances(found: Comparison) -> Iterator[str]:
    """Yield the differences: elements that are not finite on one side, then distances of the others."""
    if found.nan_mismatch:
        yield f"NaN on one side: {found.nan_mismatch}"
    if found.inf_mismatch:
        yield f"Inf on one side, or of the other sign: {found.inf_mismatch}"
    if found.mismatched == found.nan_mismatch + found.inf_mismatch:
        if found.mismatched < found.count:
            yield "the other elements are equal"
        return
    for label, figure in (
        ("largest difference", found.max_abs),
        ("largest relative difference", found.max_rel),
        ("mean difference", found.mean_abs),
        ("cosine", found.cosine),
    ):
        if figure is not None:
            yield f"{label} {figure:.6g}"
