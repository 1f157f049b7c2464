"""The values that a run keeps for history, as rows of a table: types, steps, sizes and errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from nncdbg.ir.records import TensorType

if TYPE_CHECKING:
    from nncdbg.journal import KeptValue

_ERRORS = ("absolute", "relative", "rms")


def all_values(records: Sequence[KeptValue]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one row per value: types, codecs, steps, the size and the largest errors."""
    columns = ["value", "type", "codec", "steps", "first", "last", "bytes", *_ERRORS]
    rows = []
    for name, group in groupby(sorted(records, key=lambda each: each.name), lambda each: each.name):
        found = sorted(group, key=lambda each: each.step)
        types = ", ".join(dict.fromkeys(map(_type, found)))
        codecs = ", ".join(dict.fromkeys(each.codec for each in found))
        sizes = len(found), found[0].step, found[-1].step, sum(each.bytes for each in found)
        errors = [max(getattr(each.error, kind) for each in found) for kind in _ERRORS]
        rows.append([name, types, codecs, *sizes, *errors])
    return columns, rows


def steps_of_value(records: Sequence[KeptValue], name: str) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one row per step of a value: its type, the codec, the size and the errors."""
    rows = [
        [each.step, _type(each), each.codec, each.bytes, *(getattr(each.error, kind) for kind in _ERRORS)]
        for each in records
        if each.name == name
    ]
    return ["step", "type", "codec", "bytes", *_ERRORS], rows


def _type(value: KeptValue) -> str:
    return str(TensorType(value.dtype, value.shape))
