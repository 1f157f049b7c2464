"""Tracebacks of the user's errors without the frames of nncdbg that pass calls on."""

from __future__ import annotations

from collections.abc import Callable
from os.path import dirname
from types import TracebackType

from nncdbg.engine.ops.aten.internals import operator_file

_OWN = f"{dirname(dirname(__file__))}/"

_HIDDEN = "__tracebackhide__"
"""A function with this local variable only passes a call of the user on, as in pytest."""

Cut = Callable[[TracebackType | None], TracebackType | None]


def without_own_frames(error: BaseException, cut: Cut) -> BaseException:
    """Return an error whose traceback, and those of its causes, have no frames of nncdbg.

    `cut` selects the part of each traceback that is shown.  If nncdbg itself raises the error, its innermost
    frames remain.
    """
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _shown(cut(each.__traceback__))
        pending += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return error


def _shown(found: TracebackType | None) -> TracebackType | None:
    """Return a traceback without own frames that called code of others or are marked."""
    entries = []
    while found is not None:
        entries.append(found)
        found = found.tb_next
    shown: TracebackType | None = None
    foreign = False
    for number in range(len(entries) - 1, -1, -1):
        entry = entries[number]
        code = entry.tb_frame.f_code
        own = code.co_filename.startswith(_OWN)
        if own and (foreign or _HIDDEN in code.co_varnames):
            foreign = True
            continue
        caller = entries[number - 1].tb_frame.f_code if number else code
        if code.co_filename == operator_file and caller.co_filename.startswith(_OWN):
            foreign = True  # An operator that a dispatch mode of nncdbg calls.
            continue
        foreign = foreign or not own
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown
