"""Value text in a list of variables: the type, then a few elements or the statistics.

    %h    f32[1,64,56,56] min -0.1 mean 0.4 max 6.1 std 0.9
    %i    i64[] 5

The cost is bounded: statistics are cached per array, taken from the engine's log if they cannot be computed
at once, and otherwise omitted until the client requests them.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nncdbg import dtypes
from nncdbg.by_identity import ByIdentity
from nncdbg.ir.records import Map, TensorType
from nncdbg.presentation.elements import SMALL, count_of, elements, is_text
from nncdbg.presentation.tensor_text import map_text
from nncdbg.stats import Summary

if TYPE_CHECKING:
    from nncdbg.ir.records import Array
    from nncdbg.target.target import Target

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


@dataclass(eq=False)
class Shown:
    """Cache for one program's values: the statistics of its arrays, and how they were sent."""

    target: Target
    _summaries: ByIdentity[Summary] = field(default_factory=ByIdentity)
    encoded: dict[Hashable, dict[int, Any]] = field(default_factory=dict)
    """Per frame and number how a value was shown, as `EncodedVariables` keeps it."""
    indexes: dict[Hashable, Any] = field(default_factory=dict)
    """The names in its graphs, as `index_of` keeps them."""
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(lambda: self.keeps_content)

    @cached_property
    def keeps_content(self) -> bool:
        """Whether an array keeps its content: its memory is not used again."""
        return not self.target.setup.reuses_memory

    def summary(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are cached."""
        return self._summaries.get(content)

    def keep(self, content: Any, summary: Summary) -> None:
        """Cache the statistics of an array as long as it is live."""
        if self.keeps_content:
            self._summaries.set(content, summary)

    def noted(self, content: Any) -> Summary | None:
        """The statistics of an array, if they are cached or were logged."""
        summary = self.summary(content)
        if summary is None and (summary := self.target.summary(content)) is not None:
            self.keep(content, summary)
        return summary


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
        array = np.asarray(self.shown.target.host(content))
        return read_part(array) if array.nbytes <= PART else array

    def summary(self, content: Any) -> Summary | None:
        """The statistics of a tensor if they are cached, or can be computed at once."""
        known = self.shown.summary(content)
        if known is not None:
            return known
        if count_of(content) > self.room:
            return self.shown.target.summary(content)
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
            summary = self.shown.target.summary(content, self.between)
            assert summary is not None, "it is computed"
            self.shown.keep(content, summary)
        return summary


def read_part(part: Array) -> Array:
    """Return the elements of a small part of an array, copied if they are in a mapped file.

    Reads only the pages that contain them: by default the system reads megabytes ahead, which suits
    only a pass over the whole file.
    """
    pages: Any = part
    of_file = False
    while isinstance(pages, np.ndarray):
        of_file |= isinstance(pages, np.memmap)
        pages = pages.base
    if not of_file or not isinstance(pages, mmap.mmap) or not part.size:
        return part
    low, high = np.lib.array_utils.byte_bounds(part)
    origin = np.frombuffer(pages, np.uint8).ctypes.data
    start = (low - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    where = (start, high - origin - start)
    pages.madvise(mmap.MADV_RANDOM, *where)
    try:
        return np.array(part)
    finally:
        pages.madvise(mmap.MADV_NORMAL, *where)


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
