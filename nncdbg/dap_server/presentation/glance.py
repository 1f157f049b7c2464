"""How a value reads in a list of variables: its type, then its few elements or its statistics.

    %h    f32[1,64,56,56] min -0.1 mean 0.4 max 6.1 std 0.9
    %i    i64[] 5

Never more than a glance: statistics are kept per array, taken from what the engine logged where
they cannot be computed at once, and else left out until somebody asks.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dap_server.presentation.answers import Answers
from nncdbg.engine import dtypes
from nncdbg.engine.graph import TensorType
from nncdbg.engine.inputs.npy import read_part
from nncdbg.engine.observers.statistics_log import COLUMNS
from nncdbg.presentation.elements import SMALL, elements, is_text
from nncdbg.stats import Summary
from nncdbg.stats.inspection import summary_of
from nncdbg.stats.piecewise import summarize_by_pieces

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.graph import Array

GLANCE = 1 << 22
"""Elements of which one answer computes statistics: some 2 ms."""

FEW = 1 << 12
"""Elements that one goes through as fast as one asks for what is known of them."""

PART = 1 << 20
"""Bytes up to which a part of a file is read by itself, without what stands around it."""

UNKNOWN = "…"
"""Stands for statistics that are computed when somebody asks."""

LONGEST = 1024
"""Characters of one element that are shown."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a block that have names, in the order in which they are written."""

    written: tuple[int, ...]
    definition: tuple[int, ...]
    """The pc that writes each of them."""
    given: tuple[int, ...]
    """What is there when the block begins: its inputs, and what it takes from the block around."""
    constants: tuple[int, ...]

    def before(self, pc: int) -> int:
        """How many are written by the statements before `pc`."""
        return bisect_left(self.definition, pc)


def slots_of(code: Code) -> Slots:
    """The slots of a block, by when they are written."""
    constants = {constant.value.name for constant in code.graph.constants}
    named = [(slot, pc) for slot, pc in enumerate(code.definition) if code.names[slot]]
    written = [(slot, pc) for slot, pc in named if pc >= 0]
    given = [slot for slot, pc in named if pc < 0]
    return Slots(
        tuple(slot for slot, _ in written),
        tuple(pc for _, pc in written),
        tuple(slot for slot in given if code.names[slot] not in constants),
        tuple(slot for slot in given if code.names[slot] in constants),
    )


@dataclass(eq=False)
class Shown:
    """What is remembered of one program's values: the slots of its blocks, the statistics of its arrays."""

    debugger: Debugger
    _slots: dict[Code, Slots] = field(default_factory=dict)
    _summaries: dict[int, tuple[weakref.ref[Any], Summary]] = field(default_factory=dict)
    sent: dict[Hashable, dict[int, Any]] = field(default_factory=dict)
    """Per frame and slot how a value was shown, as `Sent` keeps it."""
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        # Where memory is used again, an array may come to hold something else.
        self.answers = Answers(lambda: self.debugger.timeline.retains)

    def slots(self, code: Code) -> Slots:
        """The slots of a block."""
        found = self._slots.get(code)
        if found is None:
            found = self._slots[code] = slots_of(code)
        return found

    def summary(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are known."""
        known = self._summaries.get(id(content))
        return known[1] if known is not None and known[0]() is content else None

    def keep(self, content: Any, summary: Summary) -> None:
        """Remember the statistics of an array as long as it lives."""
        if self.debugger.timeline.retains:
            # Where memory is used again, an array may come to hold something else.
            key = id(content)
            self._summaries[key] = weakref.ref(content, partial(self._summaries.pop, key)), summary

    def noted(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are known or were logged."""
        found = self.summary(content)
        if found is None and (found := self.logged(content)) is not None:
            self.keep(content, found)
        return found

    def logged(self, content: Any) -> Summary | None:
        """What the engine logged when this array was written, if it has it still."""
        log = self.debugger.observers.log
        row = log.row_of(content) if log is not None else None
        return None if row is None else summary_of(row, dtypes.name_of(content.dtype))


@dataclass(slots=True)
class Glance:
    """What one answer shows of contents.  `hex`: integers in base 16; `between` raises to give up."""

    shown: Shown
    hex: bool
    between: Callable[[], None]
    room: int = GLANCE
    """Elements whose statistics this answer may still compute."""

    def text(self, content: Any) -> str:
        """A value in a line."""
        if not is_tensor(content):
            return plain_text(content)
        head = type_text(content)
        if content.size == 0:
            return f"{head} (empty)"
        if content.size <= SMALL or is_text(content):
            return f"{head} {self.elements(self.host(content))}"
        summary = self.summary(content)
        return f"{head} {statistics_text(content, summary)}" if summary is not None else f"{head} {UNKNOWN}"

    def elements(self, array: Array) -> str:
        """The elements of a small tensor, or the first ones of one of strings."""
        if self.hex and dtypes.name_of(array.dtype) in dtypes.INTEGERS:
            return self._nested(array)
        return elements(array)

    def _nested(self, array: Array) -> str:
        if array.ndim == 0:
            return self.element(array[()])
        return f"[{' '.join(map(self._nested, array))}]"

    def element(self, value: Any) -> str:
        """One element in full, numbers as NumPy spells them; strings quoted, `true` and `false`."""
        if isinstance(value, bool | np.bool_):
            return "true" if value else "false"
        if isinstance(value, str | bytes):
            text = repr(value)
            return text if len(text) <= LONGEST else text[: LONGEST - 2] + "…" + text[0]
        if self.hex and isinstance(value, np.generic) and dtypes.name_of(value.dtype) in dtypes.INTEGERS:
            return hex(int(value))
        return str(value)

    def host(self, content: Any) -> Array:
        """A tensor where one can look at it."""
        array = np.asarray(self.shown.debugger.backend.to_host(content))
        return read_part(array) if array.nbytes <= PART else array

    def summary(self, content: Any) -> Summary | None:
        """The statistics of a tensor if they are known, or can be had at once."""
        known = self.shown.summary(content)
        if known is not None:
            return known
        if content.size > self.room:
            return self.shown.logged(content)
        self.room -= content.size
        return self.full_summary(content)

    def at_hand(self, content: Any) -> Summary | None:
        """The statistics of a tensor without a long pass over it: what was logged or is known."""
        found = self.shown.noted(content)
        return self.full_summary(content) if found is None and content.size <= FEW else found

    def full_summary(self, content: Any) -> Summary:
        """The statistics of a tensor, however long it takes; `between` is asked now and then."""
        summary = self.shown.summary(content)
        if summary is None:
            if isinstance(content, (np.ndarray, np.generic)):
                summary = summarize_by_pieces(np.asarray(content), self.between)
            else:
                summary = self._summary_on_device(content)
            self.shown.keep(content, summary)
        return summary

    def _summary_on_device(self, content: Any) -> Summary:
        backend = self.shown.debugger.backend
        row = backend.to_device(np.zeros(COLUMNS))
        backend.summarize(content, row)
        return summary_of(backend.to_host(row).tolist(), dtypes.name_of(content.dtype))


def is_tensor(content: Any) -> bool:
    """Whether it is an array, of whichever library, or one of its elements."""
    return hasattr(content, "dtype") and hasattr(content, "shape")


def type_text(content: Any) -> str:
    """`f32[1,64]`; `seq(f32[...])` of a list of tensors; `none` of an optional that is absent."""
    if is_tensor(content):
        return str(TensorType(dtypes.name_of(content.dtype), tuple(content.shape)))
    if content is None:
        return "none"
    if isinstance(content, list):
        found = {type_text(item) for item in content[:SMALL]}
        kinds = {text.partition("[")[0] for text in found}
        several = f"{kinds.pop()}[...]" if len(kinds) == 1 else "..." if kinds else ""
        common = found.pop() if len(found) == 1 else several
        return f"seq({common})"
    return type(content).__name__


def plain_text(content: Any) -> str:
    """The text of a sequence, an absent optional, or another result of an expression that is not a tensor."""
    if isinstance(content, list):
        return f"{type_text(content)} {len(content)} {'item' if len(content) == 1 else 'items'}"
    if isinstance(content, bool):
        return "true" if content else "false"
    text = "none" if content is None else str(content)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def statistics_text(content: Any, summary: Summary) -> str:
    """The statistics in a line; of bools how many are true."""
    if content.dtype.kind == "b":
        return f"{summary.count - summary.zero} of {summary.count} true"
    return str(summary)
