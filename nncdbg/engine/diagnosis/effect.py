"""The effect of bad values: which origins the outputs of a program depend on.

A recorded training step returns each tensor that is live at its end.  A mask of -inf among these is no
finding; nor are gradients that a GradScaler has tested, as the optimizer's step is skipped then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.finding_records import NONE, FindingRecords, Origins
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks, Role, Stage
from nncdbg.engine.diagnosis.widened import Widened
from nncdbg.text.torch_names import is_torch


def step_outputs(code: Code) -> Sequence[str]:
    """Return the names of the values that the graph of a block returns."""
    return [code.names[slot] for slot in code.operands[-1]]


def is_training_state(name: str) -> bool:
    """Whether a recorded step names a parameter, buffer, gradient or moment like this: ``fc.weight.1``."""
    return sum(not part.isdigit() for part in name.split(".")) > 1


@dataclass(frozen=True, slots=True)
class Effect:
    """Determines the origins that outputs depend on; `legal` are those of intended infinities."""

    marks: MarkedTensors
    seen: FindingRecords
    to_host: Callable[[Any], Any]
    legal: set[int]
    widened: Widened

    def reaching(self, outputs: Sequence[Any], names: Sequence[str]) -> dict[int, str]:
        """Return the origins that the outputs, with these names, depend on, with evidence or ""."""
        found: dict[int, str] = {}
        for value, name in zip(outputs, names, strict=False):
            known = self._known(value)
            if known is not None:
                meant = {key for key in known.meant if not self._is_kept_mask(*key, value, name)}
                plain = (*(known.origins - self.widened.judged), *(number for number, _ in meant))
                wrong = self.widened.wrong(known, self.to_host(value), name)
                found |= {
                    **dict.fromkeys(plain, ""),
                    **wrong,
                    **{key: why for key, why in found.items() if why},
                }
        return found

    def nearest(self, outputs: Sequence[Any]) -> Origins:
        """Return the recorded findings nearest to the outputs."""
        return NONE.union(*(known.latest for known in map(self._known, outputs) if known is not None))

    def of_scalars(self, outputs: Sequence[Any]) -> Origins:
        """Return the origins that outputs of one number depend on, such as the loss."""
        scalars = [value for value in outputs if getattr(self.to_host(value), "ndim", None) == 0]
        return NONE.union(*(known.origins for known in map(self._known, scalars) if known is not None))

    def _known(self, value: Any) -> Marks | None:
        known = self.marks.of(value)
        return None if known is None or Role.SCREENED in known.role else known

    def _is_kept_mask(self, number: int, stage: Stage, value: Any, name: str) -> bool:
        statement = self.seen[number].statement
        if number not in self.legal or not is_torch(statement.code.nodes[statement.pc].op):
            return False
        return stage is Stage.RAW or not (np.ndim(self.to_host(value)) == 0 or is_training_state(name))
