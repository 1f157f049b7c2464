"""The time of a statement in the hover over its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nncdbg.engine.expression.nodes import Name
from nncdbg.presentation.times.margin import time_of

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import Variable
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values


def with_time(session: Session, scope: Values, text: str, shown: Variable) -> Variable:
    """Return the hover over a value with the median time of its statement and its share of all kernels.

    Without measured times, and for an expression that is not a name, return the hover unchanged.
    """
    debugger = session.program.debugger
    root = scope.read(text).root if debugger.times.on else None
    if not isinstance(root, Name):
        return shown
    place = next(scope.places(root.name), None)
    time = time_of(debugger, place.code, place.slot) if place is not None else ""
    return msgspec.structs.replace(shown, value=f"{shown.value} ({time})") if time else shown
