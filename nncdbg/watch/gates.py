"""What a watch fails on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from nncdbg.engine.diagnosis.sightings import Sighting
from nncdbg.engine.errors import UsageError

USUAL = ("nan", "inf", "uninitialized")
KINDS = ("nan", "inf", "uninitialized", "overflow", "guard")

_OVERFLOWS = frozenset({"overflow", "overflow of the exponential", "cast out of range"})


@dataclass(frozen=True, slots=True)
class Gates:
    """The kinds of findings that fail a watch; with `strict` those too that never reach an output."""

    kinds: frozenset[str]
    strict: bool = False

    @classmethod
    def of(cls, asked: str | Iterable[str], *, strict: bool = False) -> Gates:
        """From `"nan,inf"` or a list.  Raises UsageError for a gate that there is not."""
        names = asked.split(",") if isinstance(asked, str) else list(asked)
        kinds = [name.strip() for name in names]
        for kind in kinds:
            if kind not in KINDS:
                near = difflib.get_close_matches(kind, KINDS, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
                raise UsageError(f"there is no gate {kind!r}", hint=hint)
        return cls(frozenset(kinds), strict)

    def kind_of(self, sighting: Sighting) -> str:
        """The kind under which something is told: an overflow is told as one where that is asked for."""
        cause = sighting.cause
        overflows = sighting.kind == "inf" and cause is not None and cause.name in _OVERFLOWS
        return "overflow" if overflows and "overflow" in self.kinds else sighting.kind

    def trips(self, sighting: Sighting) -> bool:
        """Whether a sighting fails the watch: it began here, and is a kind that was asked for.

        What is not a number has to reach an output; misused memory and overflow, where they are asked
        for, need not: they make the numbers wrong.
        """
        kind = self.kind_of(sighting)
        matters = self.strict or sighting.reaches_output or kind not in ("nan", "inf")
        return sighting.born and matters and kind in self.kinds
