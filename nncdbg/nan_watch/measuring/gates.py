"""Gates, which define when a watch fails: `nan,inf,dead:0.9,max>1e4 in layer*,range:mean(%h) > 3`.

A gate is a kind of finding (`nan`), a measured quantity with a limit (`dead:0.9`, `max>1e4`), or a range:
an expression that must be false whenever one of its values is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from nncdbg.engine.execution.findings import NUMERIC, STATE_RESET
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program, SourceLines
from nncdbg.nan_watch.records import REUSE
from nncdbg.text.lexemes import nearest

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.finding_records import FindingRecord

USUAL = ("nan", "inf", "uninitialized", "integer", "contract", "guard", "race")

KINDS = {
    "nan": "a NaN originates at an op, or is in an input or a parameter",
    "inf": "an unintentional Inf originates at an op, or is in an input or a parameter",
    "uninitialized": "uninitialized memory is read",
    "integer": "an integer is divided by zero, a cast is out of range, or a scale is zero",
    "contract": "an op gets operands that its definition does not allow, such as duplicate scatter indices",
    "overflow": "a finite number too large for its type becomes Inf",
    "guard": "a kernel writes outside of its buffer",
    "race": "a schedule does not order two uses of the same memory, or has a wrong event",
    STATE_RESET: "an update sets a moment or step counter of an optimizer back to 0",
    "training": "a training diverges, learns nothing, or has a learning rate of 0 or below",
}
"""Kinds of findings, each with its meaning."""

RANGE = "range"


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity that a gate can limit.

    `limit` is the default limit, None if the gate must give one; `above` is whether values above the limit
    are trouble, None if the gate must say so with `<` or `>`.
    """

    meaning: str
    limit: float | None = None
    above: bool | None = True
    hint: str = ""
    percent: bool = False


MEASURES = {
    "dead": Measure(
        "share of a layer's units (channels) that are 0 in every sample",
        0.9,
        hint="try a smaller learning rate, LeakyRelu instead of Relu, or another initial bias",
        percent=True,
    ),
    "saturated": Measure(
        "share of the results of Sigmoid, Tanh or Softmax at their limits, where the gradient is 0",
        0.95,
        hint="try smaller weights, or a normalization before the activation",
        percent=True,
    ),
    "zeros": Measure(
        "share of a result's elements that are 0", 0.99, hint="inspect its operands", percent=True
    ),
    "subnormals": Measure(
        "share of a result's elements too small for full precision",
        0.1,
        hint="scale the values up (loss scaling), or keep this op in f32",
        percent=True,
    ),
    "headroom": Measure(
        "largest number of the f16, bf16 or f8 type divided by the largest value",
        4.0,
        False,
        "scale the values down, or keep this op in f32",
    ),
    "growth": Measure(
        "largest value of a result divided by the largest value of its operands",
        1e3,
        hint="try a normalization, a smaller scale, or an epsilon in the division",
    ),
    "depth": Measure(
        "largest value of a result divided by the smallest maximum on its path",
        1e6,
        hint="try a normalization between the layers, or smaller initial weights",
    ),
    "update": Measure(
        "norm of a carried value's change in an iteration divided by the norm of the value",
        1.0,
        hint="reduce the learning rate or weight decay, or clip the gradient",
    ),
    "runaway": Measure(
        "norm of a carried value divided by the norm of its first value",
        100.0,
        hint="reduce the learning rate, or clip the gradient",
    ),
    "change": Measure(
        "largest relative change of min, max, mean and std against the recorded good run",
        0.1,
        hint="compare the two runs from this statement onward",
    ),
    "max": Measure("largest element of a result", None, None),
    "min": Measure("smallest element of a result", None, None),
    "abs": Measure("largest magnitude in a result", None, None),
    "span": Measure("largest minus smallest element of a result", None, None),
    "mean": Measure("mean of a result", None, None),
    "std": Measure("standard deviation of a result", None, None),
}
"""Quantities measured of the finite elements of every float result."""

_MEASURED = re.compile(
    r"(?P<name>[A-Za-z_]+)\s*(?:(?P<side>[:<>])\s*(?P<limit>[^\s]+))?(?:\s+in\s+(?P<pattern>.+))?"
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A measured gate: it trips where the quantity `kind` reaches or passes `limit`.

    `pattern` selects values by their name, their graph's name, or the name of the model's node.
    """

    kind: str
    limit: float
    above: bool
    pattern: str | None = None

    def exceeded(self, actual: float) -> bool:
        """Return whether this quantity trips the gate."""
        return actual >= self.limit if self.above else actual <= self.limit

    def concerns(self, *names: str) -> bool:
        """Return whether the gate measures a value with these names."""
        return self.pattern is None or any(fnmatchcase(name, self.pattern) for name in names)

    def shown(self, quantity: float) -> str:
        """Return the formatted quantity."""
        if MEASURES[self.kind].percent:
            return f"{100 * quantity:.4g} %"
        return f"{quantity:.6g}"

    def clause(self) -> str:
        """Return the gate with its limit and side, as the end of a sentence."""
        return f"the gate {self} fails at or {'above' if self.above else 'below'} {self.shown(self.limit)}"

    def __str__(self) -> str:
        usual = MEASURES[self.kind].above == self.above
        where = f" in {self.pattern}" if self.pattern is not None else ""
        return f"{self.kind}{':' if usual else '>' if self.above else '<'}{self.limit:g}{where}"


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a watch; with `strict`, findings without effect on an output also fail it."""

    kinds: frozenset[str]
    strict: bool = False
    thresholds: tuple[Threshold, ...] = ()
    ranges: tuple[str, ...] = ()
    """Expressions that must be false."""

    @classmethod
    def of(cls, asked: str | Iterable[str], *, strict: bool = False, in_place_states: bool = False) -> Gates:
        """Parse gates such as `"nan,dead:0.9"`, or a list of them.  Raises UsageError for an unknown gate.

        With `in_place_states`, misused memory fails the watch too.
        """
        kinds, thresholds, ranges = {"guard"} if in_place_states else set(), [], []
        for text in [part for each in ([asked] if isinstance(asked, str) else asked) for part in split(each)]:
            name, colon, rest = text.partition(":")
            if text in KINDS:
                kinds.add(text)
            elif colon and name.strip() == RANGE:
                if not rest.strip():
                    raise UsageError(
                        f"the gate {text!r} has no expression", hint="write range:max(abs(%h)) > 1e4"
                    )
                ranges.append(rest.strip())
            else:
                thresholds.append(_threshold(text))
        return cls(frozenset(kinds), strict, tuple(thresholds), tuple(ranges))

    @property
    def measured(self) -> bool:
        """Return whether statistics of the results are needed."""
        return bool(self.thresholds)

    def kind_of(self, sighting: FindingRecord) -> str:
        """Return the kind of a finding in reports: `overflow` only if that gate is on.

        A read of memory that another statement has overwritten is `reuse`, as with `--memory`.
        """
        if sighting.kind == "guard" and sighting.other is not None:
            return REUSE
        cause = sighting.cause
        overflows = sighting.kind == "inf" and cause is not None and cause.is_overflow
        return "overflow" if overflows and "overflow" in self.kinds else sighting.kind

    def trips(self, sighting: FindingRecord) -> bool:
        """Return whether a finding fails the watch: an origin, of a kind with a gate.

        NaN, Inf and integer faults need an effect on an output unless `strict`; misused memory always counts.
        """
        kind = self.kind_of(sighting)
        matters = self.strict or sighting.reaches_output or kind not in NUMERIC
        return sighting.born and matters and (kind in self.kinds or (kind == REUSE and "guard" in self.kinds))


def split(text: str) -> Iterator[str]:
    """Return the gates in a list, split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth <= 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def gate_names() -> list[str]:
    """Return every name that a gate can begin with."""
    return [*KINDS, RANGE, *MEASURES]


def table() -> list[tuple[str, str]]:
    """Return each gate as it is written, with its meaning, for help texts and documentation."""
    rows = list(KINDS.items())
    rows.append(("range:EXPR", "the expression is true after a statement writes a value used in EXPR"))
    for name, measure in MEASURES.items():
        written = f"{name}>X, {name}<X" if measure.above is None else f"{name}:{measure.limit:g}"
        side = {True: "; trips at or above the limit", False: "; trips at or below the limit", None: ""}[
            measure.above
        ]
        rows.append((written, measure.meaning + side))
    return rows


def _threshold(text: str) -> Threshold:
    found = _MEASURED.fullmatch(text)
    name = found["name"] if found else re.split(r"[^A-Za-z_]", text, maxsplit=1)[0]
    measure = MEASURES.get(name)
    if found is None or measure is None:
        raise _unknown(text, name)
    side, written = found["side"], found["limit"]
    above = measure.above if side in (None, ":") else side == ">"
    if above is None:
        raise UsageError(f"the gate {text!r} needs < or >", hint=f"write '{name}>1e4' or '{name}<1e4'")
    limit = measure.limit if written is None else _number(text, written)
    if limit is None:
        raise UsageError(f"the gate {text!r} has no limit", hint=f"add a limit: '{name}>1e4'")
    return Threshold(name, limit, above, found["pattern"])


def _number(text: str, written: str) -> float:
    try:
        limit = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        limit = math.nan
    if math.isnan(limit):
        raise UsageError(
            f"the limit of the gate {text!r} is not a number: {written}", hint="use a number, as in dead:0.9"
        )
    return limit


def _unknown(text: str, name: str) -> UsageError:
    if name in KINDS:
        return UsageError(f"the gate {name!r} does not accept a limit: {text!r}", hint=f"write {name}")
    if name == RANGE:
        return UsageError(f"the gate {text!r} has no expression", hint="write range:max(%h) > 1e4")
    hint = nearest(name, gate_names()) or f"the gates are {', '.join(gate_names())}"
    return UsageError(f"there is no gate {text!r}", hint=hint)


class OnScreen(Protocol):
    """Fits the lines of a report to a screen."""

    def statement(self, text: str) -> str:
        """Return a statement of the program, shortened to one line."""


@dataclass(frozen=True, slots=True)
class ReportContext:
    """The parts of a watch that are not in its report.

    `lines` is the program's text, from which statements are quoted; `gates` are the requested gates, so
    that reports can name those that passed.
    """

    lines: Sequence[str] = ()
    gates: Sequence[str] = ()
    screen: OnScreen | None = None
    """Fits lines to a screen; None for complete lines."""
    unicode: bool = True
    """Whether the output can have characters beyond ASCII, such as bars."""
    sources: Mapping[str, SourceLines] = field(default_factory=dict)
    """The user's lines that a recorded step has."""

    @classmethod
    def of(cls, program: Program, gates: Gates | None = None) -> ReportContext:
        """Return the context of a program: its text with numbered lines, and its gates."""
        lines = program.as_listing().full_lines()
        if gates is None:
            return cls(lines, sources=program.saved.sources)
        kinds = [kind for kind in KINDS if kind in gates.kinds]
        ranges = [f"{RANGE}:{expression}" for expression in gates.ranges]
        shown = (*kinds, *map(str, gates.thresholds), *ranges)
        return cls(lines, shown, sources=program.saved.sources)
