"""The statements of a run as a graph, with the properties that pairing compares."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.divergence.declared import attributes_of
from nncdbg.engine.divergence.trace import RunTrace
from nncdbg.engine.divergence.written import Fixed, Given, Place, Source, Written, WrittenResult
from nncdbg.engine.dtypes import COMPLEX, FLOATS, INTEGERS, name_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Inline

Operand: TypeAlias = "tuple[Any, ...]"
"""("result", unit, index), ("given", name), ("fixed", digest, elements) or ("none",)."""


@dataclass(slots=True)
class Unit:
    """A statement at its first visit.  `form` is its op, and the kind and shape of each result."""

    number: int
    place: Place
    op: str
    names: tuple[str, ...]
    form: tuple[Any, ...]
    attributes: Any
    operands: tuple[Operand, ...]
    kernel: bool
    """False for control flow and calls."""
    commutative: bool
    meaning: str = ""
    """A digest of everything that the results are computed from; empty if that is unknown."""
    skeleton: str = ""
    """Like `meaning`, with the shapes of constants in place of their elements."""
    readers: list[tuple[int, int]] = field(default_factory=list)
    """(unit, position of the operand) of each statement that reads a result."""
    output: int | None = None
    """The index of the program output that the statement gives."""

    @property
    def alias(self) -> str:
        """Return the name of the result; for a tensor that onnxruntime quantized, the original name."""
        return self.names[0].removesuffix("_DequantizeLinear_Output") if self.names else ""


@dataclass(slots=True)
class RunUnits:
    """The statements of a run in order of execution, with the readers of each input and constant."""

    all: list[Unit]
    of_input: dict[str, list[tuple[int, int]]]
    of_constant: dict[str, list[tuple[int, int]]]
    names: set[str] = field(default_factory=set)
    """The aliases of all units."""


def units_of(trace: RunTrace, input_names: Mapping[str, str]) -> RunUnits:
    """Return the units of a trace; `input_names` maps an input to its common name on both sides."""
    found = RunUnits([], {}, {})
    numbers: dict[Place, int] = {}
    for place, written in trace.first.items():
        number = numbers[place] = len(found.all)
        operands = tuple(_operand(source, numbers, input_names) for source in written.sources)
        unit = _unit(number, place, trace.at(written.key), operands)
        unit.meaning = _meaning(unit, found.all, whole=True)
        unit.skeleton = _meaning(unit, found.all, whole=False)
        found.all.append(unit)
        found.names.add(unit.alias)
        for position, operand in enumerate(operands):
            _register(found, operand, (number, position))
    for number, source in enumerate(trace.outputs):
        if isinstance(source, WrittenResult) and source.key[0] in numbers:
            found.all[numbers[source.key[0]]].output = number
    return found


def _register(units: RunUnits, operand: Operand, reader: tuple[int, int]) -> None:
    match operand:
        case ("result", number, _):
            units.all[number].readers.append(reader)
        case ("given", name):
            units.of_input.setdefault(name, []).append(reader)
        case ("fixed", digest, _):
            units.of_constant.setdefault(digest, []).append(reader)


def _unit(number: int, place: Place, written: Written, operands: tuple[Operand, ...]) -> Unit:
    kernel = written.operands is not None
    op = "@" if written.node.kind is Kind.CALL else written.node.op
    return Unit(
        number,
        place,
        op,
        written.names,
        (op, *map(form_of, written.contents)),
        _digest_of(attributes_of(written)) if kernel else None,
        operands,
        kernel,
        commutative(written),
    )


def commutative(written: Written) -> bool:
    """Return whether a statement's operands can be swapped."""
    declared = lookup(written.node.op, version_of(written.node.op, written.code.opsets))
    return declared is not None and declared.commutative


def form_of(content: Any) -> Any:
    """Return the element kind and shape of a tensor, or the kind of another content."""
    if not isinstance(content, (np.ndarray, np.generic)):
        return type(content).__name__
    name = name_of(content.dtype)
    for kind in (FLOATS, INTEGERS, COMPLEX):
        if name in kind:
            return sorted(kind)[0], content.shape
    return name, content.shape


def _operand(source: Source, numbers: Mapping[Place, int], input_names: Mapping[str, str]) -> Operand:
    match source:
        case WrittenResult(key, index):
            return ("result", numbers[key[0]], index) if key[0] in numbers else ("none",)
        case Given(name):
            return ("given", input_names.get(name, name))
        case Fixed(content):
            return ("fixed", _digest_of(content), int(np.size(content)))
    return ("none",)


def _meaning(unit: Unit, before: Sequence[Unit], *, whole: bool) -> str:
    """Return a digest that is equal for equal computations on equal inputs and, if `whole`, constants."""
    if not unit.kernel:
        return ""
    parts = [unit.op, unit.attributes, str(unit.form)]
    for operand in unit.operands:
        if operand[0] == "result":
            producer = before[operand[1]]
            inner = producer.meaning if whole else producer.skeleton
            if not inner:
                return ""
            operand = ("result", inner, operand[2])
        elif operand[0] == "fixed" and not whole:
            operand = ("fixed", operand[2])
        parts.append(str(operand))
    return _digest_of(tuple(parts))


def _digest_of(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Inline):
        value = value.array
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            digest.update(f"{key}=".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value};".encode())
