"""Key bindings for commands: (keys as shown, command, key names of prompt_toolkit)."""

from __future__ import annotations

from typing import TypeAlias

Keys: TypeAlias = "tuple[str, ...]"

BOUND: tuple[tuple[str, str, tuple[Keys, ...]], ...] = (
    ("Ctrl-X n, F10", "next", (("c-x", "n"), ("f10",))),
    ("Ctrl-X s, F11", "step", (("c-x", "s"), ("f11",))),
    ("Ctrl-X i", "stepi", (("c-x", "i"),)),
    ("Ctrl-X f, S-F11", "finish", (("c-x", "f"), ("f23",))),
    ("Ctrl-X b, Alt-←", "back", (("c-x", "b"), ("escape", "left"), ("f22",))),
    ("Ctrl-X c, F5", "continue", (("c-x", "c"), ("f5",))),
    ("Ctrl-X r, S-F5", "rcontinue", (("c-x", "r"), ("f17",))),
    ("F9", "break", (("f9",),)),
    ("Ctrl-X l", "list", (("c-x", "l"),)),
    ("Ctrl-X w", "where", (("c-x", "w"),)),
)

_EDITING = (
    ("Tab", "", "complete commands, values, ops, graphs, marks, files"),
    ("Up, Ctrl-R", "", "earlier lines; Ctrl-R searches"),
    ("Enter, empty", "", "repeat the last step"),
    ("Ctrl-C", "", "stop the running program within one op; at the prompt, clear the line"),
    ("Ctrl-D", "quit", ""),
)

SHORTCUTS = (*((press, line, "") for press, line, _ in BOUND), *_EDITING)
"""(keys as shown, command, remark) for `help keys`."""
