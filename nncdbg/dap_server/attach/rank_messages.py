"""Translate messages between one client and the adapters of several ranks.

Each number of a rank, such as that of a thread or a frame, becomes a number of the job:
``number * ranks + rank``.  Addresses get the suffix ``@rank``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nncdbg.dap_server.breakpoints.breakpoint_requests import split_condition
from nncdbg.text.lexemes import integer_of

_NUMBERS = frozenset(
    {
        "threadId",
        "frameId",
        "stackFrameId",
        "variablesReference",
        "sourceReference",
        "valueLocationReference",
        "declarationLocationReference",
        "locationReference",
        "indexedReference",
    }
)
"""Fields with a number that is valid within its rank."""

_ADDRESSES = frozenset(
    {"memoryReference", "instructionPointerReference", "instructionReference", "progressId"}
)
"""Fields with a text that is valid within its rank."""

_CONDITION = re.compile(r"\s*\$rank\s*==\s*(?P<rank>\d+)\s*(?:$|and\s+(?P<rest>.+))", re.DOTALL)

Message = dict[str, Any]


class RankNumbers:
    """The numbers of a job with `ranks` ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def outgoing(self, rank: int, content: Any) -> Any:
        """Return a body of a rank, with the numbers of the job."""
        return _mapped(
            content,
            lambda number: number * self.ranks + rank if number > 0 else number,
            lambda text: f"{text}@{rank}",
        )

    def incoming(self, arguments: Any) -> Any:
        """Return the arguments of the client, with the numbers of the rank."""
        return _mapped(
            arguments,
            lambda number: number // self.ranks if number > 0 else number,
            lambda text: text.rpartition("@")[0] if "@" in text else text,
        )

    def rank_of(self, arguments: Any) -> int | None:
        """Return the rank that the arguments of a request name; None if they name none."""
        found: list[int] = []

        def number(value: int) -> int:
            if value > 0:
                found.append(value % self.ranks)
            return value

        def text(value: str) -> str:
            _, mark, rank = value.rpartition("@")
            number = integer_of(rank)
            if mark and number is not None and number >= 0:
                found.append(number)
            return value

        _mapped(arguments, number, text)
        return found[0] if found and 0 <= found[0] < self.ranks else None


def _mapped(content: Any, number: Callable[[int], int], text: Callable[[str], str]) -> Any:
    if isinstance(content, list):
        return [_mapped(each, number, text) for each in content]
    if not isinstance(content, dict):
        return content
    found: Message = {}
    for name, each in content.items():
        if name in _NUMBERS and isinstance(each, int):
            found[name] = number(each)
        elif name in _ADDRESSES and isinstance(each, str):
            found[name] = text(each)
        elif name in ("stackFrames", "threads"):
            found[name] = [{**_mapped(frame, number, text), "id": number(frame["id"])} for frame in each]
        else:
            found[name] = _mapped(each, number, text)
    return found


def breakpoints_of_rank(arguments: Message, rank: int) -> tuple[Message, list[int]]:
    """Return the arguments of a request for breakpoints for one rank, and the positions of these breakpoints.

    A breakpoint whose condition begins with ``$rank == N`` is only for that rank.
    """
    own, positions = [], []
    for position, each in enumerate(arguments.get("breakpoints") or ()):
        name, condition = split_condition(each.get("name", ""), each.get("condition"))
        found = _CONDITION.fullmatch(condition or "")
        if found is None:
            own.append(each)
        elif int(found["rank"]) == rank:
            rest = {key: value for key, value in each.items() if key not in ("name", "condition")}
            rest |= {"name": name} if "name" in each else {}
            own.append({**rest, "condition": found["rest"]} if found["rest"] else rest)
        else:
            continue
        positions.append(position)
    return {**arguments, "breakpoints": own}, positions
