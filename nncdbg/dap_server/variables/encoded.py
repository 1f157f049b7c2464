"""Cache of encoded variables, sent again while they would be shown the same.

A step changes few of the values on the screen, and clients request all of them again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.dap_server.variables.memory_references import number_in
from nncdbg.dap_server.variables.value_text import UNKNOWN, is_tensor
from nncdbg.engine.compilation.code import UNSET

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import Variable
    from nncdbg.dap_server.variables.children import Listed, View
    from nncdbg.dap_server.variables.places import FramePlace
    from nncdbg.engine.execution.frame import Frame


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """How a value was shown: `encoded` as it was sent, with the `numbers` of the places in it.

    `stamp` holds everything besides array and slot that affects its text.
    """

    content: Callable[[], Any]
    stamp: tuple[bool, ...]
    encoded: msgspec.Raw
    numbers: tuple[int, ...]


class EncodedVariables:
    """The variables sent for one frame, as one view shows it."""

    def __init__(self, view: View, place: FramePlace, frame: Frame) -> None:
        self._known = view.glance.shown.encoded.setdefault(place, {})
        self._stamp = view.glance.hex, view.typed, view.addressed, frame.iteration > 0
        self._handles = view.session.handles
        # Where memory is reused, the content of an array may change.
        self._keeps = not view.session.program.debugger.timeline.overwrites

    def again(self, slot: int, content: Any) -> msgspec.Raw | None:
        """The encoded variable of an array in a slot, if it was sent and is still valid."""
        known = self._known.get(slot)
        if known is None or known.content() is not content or known.stamp != self._stamp:
            return None
        return known.encoded if self._handles.refresh(known.numbers) else None

    def keep(self, slot: int, content: Any, variable: Variable) -> Listed:
        """Store how an array is shown, as long as it is live, or that a value is not computed (UNSET).

        Variables with pending statistics are not stored.
        """
        if content is UNSET:
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[slot] = EncodedValue(lambda: UNSET, self._stamp, encoded, ())
            return encoded
        keeps = self._keeps and is_tensor(content) and not isinstance(content, np.generic)
        if keeps and not variable.value.endswith(UNKNOWN):
            gone = partial(self._known.pop, slot)
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[slot] = EncodedValue(
                weakref.ref(content, gone), self._stamp, encoded, _numbers(variable)
            )
            return encoded
        return variable


def _numbers(variable: Variable) -> tuple[int, ...]:
    reference = variable.memory_reference
    found = (
        variable.variables_reference or None,
        variable.declaration_location_reference,
        variable.value_location_reference,
        number_in(reference) if reference is not None else None,
    )
    return tuple(number for number in found if number is not None)
