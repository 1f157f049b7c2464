"""The tables of requests in docs/DAP.md, from the declarations of their handlers."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from nncdbg.dap_server import handlers  # noqa: F401  registers the handlers
from nncdbg.dap_server.registry import ALWAYS, HANDLERS, Handler, State

PAGE = Path(__file__).resolve().parent.parent / "docs" / "DAP.md"

CUSTOM = "nncdbg/"

_STATES = {
    State.NEW: "before `initialize`",
    State.INITIALIZED: "before `launch`",
    State.CONFIGURING: "before `configurationDone`",
    State.RUNNING: "running",
    State.STOPPED: "stopped",
    State.ENDED: "ended",
}


def page() -> str:
    """Return docs/DAP.md with its tables of requests written anew."""
    text = PAGE.read_text(encoding="utf-8")
    custom = [handler for name, handler in sorted(HANDLERS.items()) if name.startswith(CUSTOM)]
    text = _with_rows(text, "| state of the session | requests |", _rows_by_state())
    return _with_rows(text, "| request | arguments | response |", [request_row(each) for each in custom])


def _with_rows(text: str, head: str, rows: list[str]) -> str:
    """Replace the rows below a table's head."""
    before, found, after = text.partition(head + "\n")
    assert found, f"{PAGE} has no table {head}"
    columns = head.count("|") - 1
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return before + "\n".join([head, "|" + "---|" * columns, *rows, rest])


def _rows_by_state() -> list[str]:
    """Return a row for each set of states: the requests that the server accepts in these states."""
    requests: dict[frozenset[State], list[str]] = defaultdict(list)
    for name, handler in HANDLERS.items():
        requests[handler.when].append(f"`{name}`")
    return [
        f"| {_states(when)} | {', '.join(sorted(requests[when]))} |"
        for when in sorted(requests, key=len, reverse=True)
    ]


def _states(when: frozenset[State]) -> str:
    return "any" if when == ALWAYS else ", ".join(_STATES[state] for state in State if state in when)


def request_row(handler: Handler) -> str:
    """Return the row of a custom request: its arguments, and the docstring of its handler."""
    record = handler.arguments
    hints = get_type_hints(record)
    fields = ", ".join(_field(each, hints[each.name]) for each in msgspec.structs.fields(record))
    arguments = ". ".join(filter(None, [fields, _prose(record)])) if fields else "none"
    result = handler.handle.__annotations__["return"]
    response = [_prose(handler.handle), _fields_of(inspect.unwrap(handler.handle).__globals__.get(result))]
    return f"| `{handler.command}` | {arguments} | {' '.join(filter(None, response))} |"


def _field(field: Any, hint: Any) -> str:
    """Return the name of an argument with its default; of several words, all with the default first."""
    name = f"`{field.encode_name}`"
    choices = _choices(hint)
    if field.default in choices:
        choices.sort(key=field.default.__ne__)
        return f"{name} ({', '.join(f'`{each}`' for each in choices)})"
    shown = isinstance(field.default, (bool, int))
    return f"{name} ({str(field.default).lower()})" if shown else name


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [each for each in get_args(hint) if isinstance(each, str)]
    return [choice for each in get_args(hint) for choice in _choices(each)]


def _fields_of(record: Any) -> str:
    """Return the sentence with the fields of a response that is a record."""
    if not isinstance(record, type) or not issubclass(record, msgspec.Struct):
        return ""
    names = (f"`{each.encode_name}`" for each in msgspec.structs.fields(record))
    return f"Fields: {', '.join(names)}."


def _prose(declared: Any) -> str:
    """Return a docstring as one paragraph."""
    return " ".join((vars(declared).get("__doc__") or getattr(declared, "__doc__", "") or "").split())
