"""Loss scales of f16 and f8 gradients: the factors that a value was multiplied by on its way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.sightings import Sighting
from nncdbg.engine.dtypes import FLOATS, NUMPY
from nncdbg.engine.text.lexemes import name_text

_LEAST = 64.0
"""Least factor that counts as a loss scale."""


def loss_scale_of(sighting: Sighting, debugger: Debugger) -> tuple[str, str] | None:
    """Return (element type, factor) of an infinite narrow result with a loss scale; None without one.

    The cotangent of a call of a gradient is a loss scale.  A factor in a statement must be a power of two.
    """
    if sighting.kind != "inf":
        return None
    code, pc = sighting.statement.code, sighting.statement.pc
    type_ = code.types.get(sighting.value) if sighting.value in code.slot_of else None
    dtype = getattr(type_, "dtype", "")
    if dtype not in FLOATS or NUMPY[dtype].itemsize > 2:
        return None
    for name, factor in (*_factors(code, pc), *_cotangents(sighting, debugger)):
        return dtype, f"%{name_text(name)} = {factor:g}" if name else f"{factor:g}"
    return None


def _cotangents(sighting: Sighting, debugger: Debugger) -> Iterator[tuple[str, float]]:
    """Return the loss scales that the calls around a statement give to gradients, the innermost first."""
    gradients = {f"@{line.name}" for line in debugger.program.backwards}
    states = {state.value.name for state in debugger.program.states}
    for call in reversed(sighting.calls):
        if call.code.nodes[call.pc].op not in gradients:
            continue
        for slot in call.code.operands[call.pc]:
            factor = _scalar(_content(debugger, call.code, slot))
            if factor is not None and factor >= _LEAST:
                # A number in the call has a generated name.
                name = call.code.names[slot]
                yield name if name in states else "", factor


def _content(debugger: Debugger, code: Code, slot: int) -> Any:
    """Return a constant of a block, else what its latest frame has in a slot."""
    machine = debugger.control.machine
    for frame in (*reversed(machine.frames), *machine.finished()):
        if frame.code is code:
            return debugger.backend.to_host(frame.slots[slot])
    return code.template[slot]


def _factors(code: Code, pc: int) -> Iterator[tuple[str, float]]:
    """Return the large powers of two that a statement's operands were multiplied by, nearest first."""
    waiting, seen = [pc], {pc}
    while waiting:
        current = waiting.pop(0)
        for slot in code.operands[current]:
            if code.nodes[current].op == "Mul":
                factor = _scalar(code.template[slot])
                if factor is not None and factor >= _LEAST and math.frexp(factor)[0] == 0.5:
                    yield code.names[slot], factor
            before = code.definition[slot]
            if before >= 0 and before not in seen:
                seen.add(before)
                waiting.append(before)


def _scalar(content: Any) -> float | None:
    """Return the magnitude of a tensor of one number; None for other contents."""
    if not isinstance(content, (np.ndarray, np.generic)) or content.size != 1 or content.dtype.hasobject:
        return None
    return abs(float(content.reshape(())))
