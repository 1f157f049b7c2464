"""Value text in a list of variables: the type, then a few elements or the statistics.

    %h    f32[1,64,56,56] min -0.1 mean 0.4 max 6.1 std 0.9
    %i    i64[] 5

The cost is bounded: statistics are cached per array, taken from the engine's log if they cannot be computed
at once, and otherwise omitted until the client requests them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nncdbg import dtypes
from nncdbg.by_identity import ByIdentity
from nncdbg.engine.execution.statistics_log import COLUMNS
from nncdbg.engine.inputs.npy import read_part
from nncdbg.ir.records import Map, TensorType
from nncdbg.presentation.elements import SMALL, count_of, elements, is_text
from nncdbg.presentation.tensor_text import map_text
from nncdbg.stats import Summary
from nncdbg.stats.histograms import summarize_by_pieces
from nncdbg.stats.inspection import summary_of

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.ir.records import Array

MOST_ANSWERS = 8
"""Cached answers; each has a few MiB at most."""

Answer = TypeVar("Answer")


class Answers:
    """The latest answers, valid while arrays keep their content (as the given predicate returns)."""

    def __init__(self, keeps_content: Callable[[], bool]) -> None:
        self._keeps_content = keeps_content
        self._known: dict[tuple[int, Hashable], Any] = {}
        """By the version of the array, and the question."""
        self._versions: ByIdentity[int] = ByIdentity()
        self._next = count(1).__next__

    def version(self, content: Any) -> int | None:
        """The unique version number of an array; None if its content may change."""
        if not isinstance(content, np.ndarray) or not self._keeps_content():
            return None
        known = self._versions.get(content)
        if known is None:
            known = self._next()
            self._versions.set(content, known)
        return known

    def once(self, content: Any, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer to a question about an array, computed once for this very array."""
        version = self.version(content)
        if version is None:
            return compute()
        key = version, question
        answer: Answer = self._known.pop(key) if key in self._known else compute()
        self._known[key] = answer
        if len(self._known) > MOST_ANSWERS:
            del self._known[next(iter(self._known))]
        return answer


GLANCE = 1 << 22
"""Elements whose statistics one answer computes: about 2 ms."""

FEW = 1 << 12
"""Elements that can be scanned as fast as known statistics are looked up."""

PART = 1 << 20
"""Bytes up to which a part of a file is read alone, without its surroundings."""

UNKNOWN = "…"
"""Placeholder for statistics that are computed on request."""

LONGEST = 1024
"""Displayed characters of one element."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The named slots of a block, in the order in which they are written."""

    written: tuple[int, ...]
    definition: tuple[int, ...]
    """The pc that writes each of them."""
    given: tuple[int, ...]
    """Slots that are set when the block begins: its inputs, and its captures from the enclosing block."""
    constants: tuple[int, ...]

    def before(self, pc: int) -> int:
        """The number of slots written by the statements before `pc`."""
        return bisect_left(self.definition, pc)

    def at(self, code: Code, pc: int) -> Slots:
        """Return the slots without those that hold another value of a state than the one read at `pc`."""
        if not code.definitions:
            return self

        def current(slot: int) -> bool:
            name = code.names[slot]
            return name not in code.definitions or code.slot_at(name, pc) == slot

        pairs = [pair for pair in zip(self.written, self.definition, strict=True) if current(pair[0])]
        return Slots(
            tuple(slot for slot, _ in pairs),
            tuple(pc for _, pc in pairs),
            tuple(filter(current, self.given)),
            tuple(filter(current, self.constants)),
        )


def slots_of(code: Code) -> Slots:
    """The slots of a block, by the time at which they are written."""
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
    """Cache for one program's values: the slots of its blocks, the statistics of its arrays."""

    debugger: Debugger
    _slots: dict[Code, Slots] = field(default_factory=dict)
    _summaries: ByIdentity[Summary] = field(default_factory=ByIdentity)
    encoded: dict[Hashable, dict[int, Any]] = field(default_factory=dict)
    """Per frame and slot how a value was shown, as `EncodedVariables` keeps it."""
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        # Where memory is reused, the content of an array may change.
        self.answers = Answers(lambda: not self.debugger.timeline.overwrites)

    def slots(self, code: Code) -> Slots:
        """The slots of a block."""
        found = self._slots.get(code)
        if found is None:
            found = self._slots[code] = slots_of(code)
        return found

    def summary(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are cached."""
        return self._summaries.get(content)

    def keep(self, content: Any, summary: Summary) -> None:
        """Cache the statistics of an array as long as it is live."""
        if not self.debugger.timeline.overwrites:
            # Where memory is reused, the content of an array may change.
            self._summaries.set(content, summary)

    def noted(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are cached or were logged."""
        found = self.summary(content)
        if found is None and (found := self.logged(content)) is not None:
            self.keep(content, found)
        return found

    def logged(self, content: Any) -> Summary | None:
        """The statistics that the engine logged when this array was written, if it still has them."""
        log = self.debugger.observers.log
        row = log.row_of(content) if log is not None else None
        return None if row is None else summary_of(row, dtypes.name_of(content.dtype))


@dataclass(slots=True)
class Glance:
    """Formats the values of one answer.  `hex`: integers in base 16; `between` raises to cancel."""

    shown: Shown
    hex: bool
    between: Callable[[], None]
    room: int = GLANCE
    """Elements whose statistics this answer may still compute."""

    def text(self, content: Any) -> str:
        """A value in one line."""
        if not is_tensor(content):
            return plain_text(content)
        head = type_text(content)
        if count_of(content) == 0:
            return f"{head} (empty)"
        if count_of(content) <= SMALL or is_text(content):
            return f"{head} {self.elements(self.host(content))}"
        summary = self.summary(content)
        return f"{head} {statistics_text(content, summary)}" if summary is not None else f"{head} {UNKNOWN}"

    def elements(self, array: Array) -> str:
        """The elements of a small tensor, or the first ones of a tensor of strings."""
        if self.hex and dtypes.name_of(array.dtype) in dtypes.INTEGERS:
            return self._nested(array)
        return elements(array)

    def _nested(self, array: Array) -> str:
        if array.ndim == 0:
            return self.element(array[()])
        return f"[{' '.join(map(self._nested, array))}]"

    def element(self, value: Any) -> str:
        """One element in full: numbers in NumPy's form, strings quoted, `true` and `false`."""
        if isinstance(value, bool | np.bool_):
            return "true" if value else "false"
        if isinstance(value, str | bytes):
            text = repr(value)
            return text if len(text) <= LONGEST else text[: LONGEST - 2] + "…" + text[0]
        if self.hex and isinstance(value, np.generic) and dtypes.name_of(value.dtype) in dtypes.INTEGERS:
            return hex(int(value))
        return str(value)

    def host(self, content: Any) -> Array:
        """A tensor on the host."""
        array = np.asarray(self.shown.debugger.backend.to_host(content))
        return read_part(array) if array.nbytes <= PART else array

    def summary(self, content: Any) -> Summary | None:
        """The statistics of a tensor if they are cached, or can be computed at once."""
        known = self.shown.summary(content)
        if known is not None:
            return known
        if count_of(content) > self.room:
            return self.shown.logged(content)
        self.room -= count_of(content)
        return self.full_summary(content)

    def at_hand(self, content: Any) -> Summary | None:
        """The statistics of a tensor without a long pass over it: logged or cached ones."""
        found = self.shown.noted(content)
        return self.full_summary(content) if found is None and count_of(content) <= FEW else found

    def full_summary(self, content: Any) -> Summary:
        """The statistics of a tensor, however long they take; `between` is called regularly."""
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
    """Return whether it is an array of any library, or one of its elements."""
    return hasattr(content, "dtype") and hasattr(content, "shape")


def type_text(content: Any) -> str:
    """`f32[1,64]`; `seq(f32[...])` for a list of tensors; `none` for an absent optional."""
    if is_tensor(content):
        return str(TensorType(dtypes.name_of(content.dtype), tuple(content.shape)))
    if content is None:
        return "none"
    if isinstance(content, Map):
        return str(content.type)
    if isinstance(content, list):
        found = {type_text(item) for item in content[:SMALL]}
        kinds = {text.partition("[")[0] for text in found}
        several = f"{kinds.pop()}[...]" if len(kinds) == 1 else "..." if kinds else ""
        common = found.pop() if len(found) == 1 else several
        return f"seq({common})"
    return type(content).__name__


def plain_text(content: Any) -> str:
    """The text of a sequence, a map, an absent optional, or another result that is not a tensor."""
    if isinstance(content, Map):
        return map_text(content)
    if isinstance(content, list):
        return f"{type_text(content)} {len(content)} {'item' if len(content) == 1 else 'items'}"
    if isinstance(content, bool):
        return "true" if content else "false"
    text = "none" if content is None else str(content)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def statistics_text(content: Any, summary: Summary) -> str:
    """The statistics in one line; for bools the number of true ones."""
    if dtypes.name_of(content.dtype) == "bool":
        return f"{summary.count - summary.zero} of {summary.count} true"
    return str(summary)
