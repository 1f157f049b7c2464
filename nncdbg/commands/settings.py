"""Settings of a session: `set NAME VALUE` changes one, `show NAME` and `show settings` print them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_SETTING = re.compile(r"(?P<name>[a-z-]+)\s+(?P<value>[^=\s]+)\s*")


@dataclass(frozen=True, slots=True)
class PromptSetting:
    """A setting: `values` describes the valid values; `write` raises ValueError for others."""

    values: str
    help: str
    read: Callable[[CommandSession], str]
    write: Callable[[CommandSession, str], None]


def _between(low: int, high: int, value: str) -> int:
    number = int(value)
    if not low <= number <= high:
        raise ValueError
    return number


def _write_names(session: CommandSession, value: str) -> None:
    session.screen.full_names = {"short": False, "full": True}[value]


def _write_unread_views(session: CommandSession, value: str) -> None:
    session.screen.hides_unread_views = {"show": False, "hide": True}[value]


def _write_pager(session: CommandSession, value: str) -> None:
    session.screen.pager = {"off": False, "on": True}[value]


def _write_precision(session: CommandSession, value: str) -> None:
    session.screen.precision = _between(1, 17, value)


def _write_echo(session: CommandSession, value: str) -> None:
    session.echoes = {"off": False, "on": True}[value]


def _write_times(session: CommandSession, value: str) -> None:
    session.target.times({"off": False, "on": True}[value])


def _write_view(session: CommandSession, value: str) -> None:
    if value not in VIEWS:
        raise ValueError
    if value != "graph" and not session.has_source:
        raise UsageError(
            "there is no source to show", hint="record a step with `nncdbg record train.py`, and open it"
        )
    session.view = value


VIEWS = ("source", "graph", "split")


def _write_width(session: CommandSession, value: str) -> None:
    session.screen.fix_width(None if value == "auto" else _between(20, 1000, value))


SETTINGS = {
    "names": PromptSetting(
        "short or full",
        "Names of values: their distinguishing part, or in full.",
        lambda session: "full" if session.screen.full_names else "short",
        _write_names,
    ),
    "pager": PromptSetting(
        "on or off",
        "Show output that is longer than the terminal in $PAGER.",
        lambda session: "on" if session.screen.pager else "off",
        _write_pager,
    ),
    "precision": PromptSetting(
        "1 to 17",
        "Significant digits of statistics and elements.",
        lambda session: str(session.screen.precision),
        _write_precision,
    ),
    "times": PromptSetting(
        "on or off",
        "Measure statements; `list` and `info time` show the times.",
        lambda session: "on" if session.target.times().on else "off",
        _write_times,
    ),
    "trace-commands": PromptSetting(
        "on or off",
        "Print the commands of a script before their output.",
        lambda session: "on" if session.echoes else "off",
        _write_echo,
    ),
    "unread-views": PromptSetting(
        "show or hide",
        "Statements that only view memory, such as aten.detach, and whose results nothing reads.",
        lambda session: "hide" if session.screen.hides_unread_views else "show",
        _write_unread_views,
    ),
    "view": PromptSetting(
        "source, graph or split",
        "What stops and steps follow: lines of the source, statements, or lines with their statements.",
        lambda session: session.view,
        _write_view,
    ),
    "width": PromptSetting(
        "20 to 1000, or auto",
        "Columns of output; auto is the width of the terminal.",
        lambda session: str(session.screen.layout.width),
        _write_width,
    ),
}


_ELSEWHERE = {"pagination": "pager"}
"""Maps names of gdb to names of settings."""


def change_setting(session: CommandSession, text: str) -> bool:
    """Change a setting given as `NAME VALUE`; return False for other texts. Raises UsageError."""
    match = _SETTING.fullmatch(text)
    setting = SETTINGS.get(_ELSEWHERE.get(match["name"], match["name"])) if match else None
    if match is None or setting is None:
        return False
    try:
        setting.write(session, match["value"])
    except (ValueError, KeyError):
        name = match["name"]
        raise UsageError(
            f"{name} cannot be {match['value']}", hint=f"use `set {name} VALUE`; VALUE is {setting.values}"
        ) from None
    return True


def show_settings(session: CommandSession, text: str) -> bool:
    """Print one setting, or all for `settings`; return False for other texts."""
    name = _ELSEWHERE.get(text, text)
    shown = SETTINGS if text == "settings" else {name: SETTINGS[name]} if name in SETTINGS else {}
    for name, setting in shown.items():
        session.screen.put(f"{name} is {setting.read(session)} ({setting.values}): {setting.help}")
    return bool(shown)
