"""Call sites in the user's Python code: their lines, and the names to which they assign their results."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FrameType

from nncdbg.ir.records import Location

_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "COPY", "NOP"})


def location_at(code: CodeType, position: int) -> Location:
    """Return the file and line of an instruction, by its offset in bytes."""
    return _site(id(code), position, code)[0]


def assigned_names(code: CodeType, position: int) -> tuple[str, ...]:
    """Return the names that an assignment gives to the results of a call; empty without an assignment."""
    return _site(id(code), position, code)[1]


def name_in_frame(frame: FrameType, value: object) -> str:
    """Return the name of a local or global variable that is this very object; "" if there is none."""
    for names in (frame.f_locals, frame.f_globals):
        for name, each in names.items():
            if each is value and not name.startswith("_"):
                return str(name)
    return ""


@lru_cache(maxsize=65536)
def _site(identity: int, position: int, code: CodeType) -> tuple[Location, tuple[str, ...]]:
    line = next((line for start, end, line in code.co_lines() if start <= position < end), None)
    return Location(code.co_filename, line), _names_after(code, position)


def _names_after(code: CodeType, position: int) -> tuple[str, ...]:
    """Return the targets of the store instructions that follow the one at `position`."""
    names: list[str] = []
    count = 1
    for instruction in dis.get_instructions(code):
        if instruction.offset <= position or instruction.opname in _SKIPPED:
            continue
        kind, target = instruction.opname, instruction.argval
        if kind == "UNPACK_SEQUENCE" and not names:
            count = int(target)
            continue
        if not kind.startswith("STORE_") or kind in ("STORE_SUBSCR", "STORE_SLICE"):
            # `self.h = ...` loads `self` between the call and the store.
            if count == 1 and not names and kind.startswith("LOAD_") and "FAST" in kind:
                continue
            break
        if kind == "STORE_FAST_LOAD_FAST":
            target = target[:1]
        names.extend(target if isinstance(target, tuple) else (target,))
        if len(names) >= count:
            break
    return tuple(names[:count]) if len(names) >= count else ()
