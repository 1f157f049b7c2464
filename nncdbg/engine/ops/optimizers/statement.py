"""The operands and results of optimizers: their types, and the checks of a statement.

A statement updates one parameter::

    %w.1, %m.1 = nncdbg.SGD(%w, %d_w, %m, lr=0.1, momentum=0.9)

Its operands are the parameter, the gradient, the states of the parameter, and the learning rate.  Its results
are the new parameter and the new states, in the order of the operands, without the states that are omitted.
A constant learning rate is the attribute `lr`.  A learning rate that other statements compute, such as those
of a schedule, is the operand `rate`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, ONNX
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.types import Attributes, Types, agree, at
from nncdbg.ir.records import Dim, TensorType

STEP = "step"
RATE = "rate"
COUNTER = TensorType("i64", ())
"""The type of a step counter: the number of earlier updates of the parameter."""

Limits = tuple[float, float]
RATIO: Limits = (0.0, 1.0)
POSITIVE: Limits = (0.0, float("inf"))
"""The limits of an attribute; the lower one is allowed, the upper one is not."""

Needs = Callable[[Attributes], Iterable[tuple[str, str]]]
"""`needs(attributes)`: pairs of a state and the attribute, as text, that needs it."""


def number(value: float) -> float:
    """Return the decimal number that the text of a float attribute contains.

    The parser rounds a float attribute to f32.  The f32 nearest to 0.999 is 0.99900001287, so that
    1 - beta2 would be wrong by 1e-5.
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


@dataclass(frozen=True, slots=True, eq=False)
class Optimizer:
    """The statements of one optimizer: the names of its states, of which the first `required` must be given.

    A state that is not required is updated if it is given.  `limits` are those of the attributes except `lr`.
    `sources` lists the other states that a new state is computed from.
    """

    name: str
    states: Sequence[str]
    required: int
    limits: Mapping[str, Limits]
    needs: Needs = lambda attributes: ()
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decays_gradient: bool = True
    """True if the weight decay is added to the gradient, False if it shrinks the parameter itself."""
    by_norm: bool = False
    """True if the update is scaled by norms, which depend on all elements."""

    @property
    def operands(self) -> Sequence[str]:
        return ("parameter", "gradient", *self.states, RATE)

    def infer(self, attributes: Attributes, types: Types) -> Types:
        """Return the types of the new parameter and the new states.

        Raises GraphError for operands of different types, attributes out of range and missing states.  The
        type None may be that of an omitted operand; the kernel checks such operands.
        """
        attributes = self._numbers(attributes)
        self._check_attributes(attributes)
        maybe = [index < len(types) for index in range(len(self.operands))]
        self._check_missing(attributes, maybe)
        self._check_rate(attributes, at(types, len(maybe) - 1) is not None)
        like = self._parameter_type(types)
        return (like, *(COUNTER if name == STEP else like for name in self.states))

    def checked(self, attributes: Attributes, operands: Sequence[Any]) -> Mapping[str, Any]:
        """Return the attributes, with each float as the number in the program text (see `number`).

        `operands` are values or types, None for an omitted one.  Raises GraphError for missing states and
        results without a state.
        """
        count = len(operands)
        given = tuple([index < count and operands[index] is not None for index in range(len(self.operands))])
        return _checked(self, (*attributes.items(),), given)

    def _numbers(self, attributes: Attributes) -> dict[str, Any]:
        floats = {name for name in ("lr", *self.limits) if attributes[name] is not None}
        return {key: number(value) if key in floats else value for key, value in attributes.items()}

    def _check_attributes(self, attributes: Attributes) -> None:
        for name, (low, high) in {"lr": POSITIVE, **self.limits}.items():
            value = attributes[name]
            if value is not None and not low <= value < high:
                limit = (
                    "a finite number of at least 0"
                    if high == POSITIVE[1]
                    else f"at least {low:g} and below {high:g}"
                )
                raise GraphError(
                    f"the attribute {name} is {value!r}, expected {limit}",
                    hint="see the formula: `nncdbg ops " + self.name + "`",
                    attribute=name,
                )

    def _check_missing(self, attributes: Attributes, given: Sequence[bool]) -> None:
        needed = [*((name, "") for name in self.operands[: 2 + self.required]), *self.needs(attributes)]
        for name, reason in needed:
            index = self.operands.index(name)
            if not given[index]:
                raise GraphError(
                    f"the operand {name} is missing" + (f", but {reason} needs it" if reason else ""),
                    hint=f"use these operands: {', '.join(self.operands)}",
                    operand=index,
                    code="arity",
                )
        if not given[-1] and attributes["lr"] is None:
            raise GraphError(
                "the learning rate is missing", hint="write lr=0.1, or give the operand rate", attribute="lr"
            )
        count, most = attributes.get("outputs_count", 1), 1 + sum(given[2:-1])
        if count > most:
            raise GraphError(
                f"{count} results are named, but the operands give {most}: the new parameter, "
                "and one new state per given state",
                hint=f"give the states as operands: {', '.join(self.states)}",
                output=most,
                code="arity",
            )

    def _check_rate(self, attributes: Attributes, rate: bool) -> None:
        if rate and attributes["lr"] is not None:
            raise GraphError(
                "the learning rate is given twice: as the attribute lr and as the operand rate",
                hint="remove lr",
                attribute="lr",
            )

    def _parameter_type(self, types: Types) -> TensorType | None:
        """Return the common type of the parameter, the gradient and the moments, None if none is known."""
        like: TensorType | None = None
        source = ""
        for index, (name, given) in enumerate(zip(self.operands, types, strict=False)):
            if given is None:
                continue
            if name == STEP:
                _check_counter(given, index)
            elif name == RATE:
                _check_scalar(given, index)
            elif like is None:
                _check_float(name, given, index)
                like, source = given, name
            else:
                like = _joined(like, source, given, name, index)
        return like


@functools.lru_cache(maxsize=1024)
def _checked(
    optimizer: Optimizer, items: tuple[tuple[str, Any], ...], given: tuple[bool, ...]
) -> Mapping[str, Any]:
    """Return `Optimizer.checked` for attributes and the operands that are given; each step calls it."""
    attributes = optimizer._numbers(dict(items))
    optimizer._check_missing(attributes, given)
    optimizer._check_rate(attributes, given[-1])
    return attributes


def _check_counter(given: TensorType, index: int) -> None:
    if given.dtype != COUNTER.dtype or given.shape not in (None, ()):
        raise GraphError(
            f"the operand {STEP} is {given}, expected {COUNTER}: the number of earlier updates",
            hint="use a scalar such as `%step: i64[] = 0`",
            operand=index,
        )


def _check_scalar(given: TensorType, index: int) -> None:
    _check_float(RATE, given, index)
    if given.shape not in (None, ()):
        raise GraphError(
            f"the operand {RATE} is {given}, expected a scalar",
            hint="use Reshape(%rate, []) for a tensor of one element",
            operand=index,
        )


def _check_float(name: str, given: TensorType, index: int) -> None:
    if given.dtype not in FLOATS:
        raise GraphError(f"the operand {name} is {given}, expected floats", operand=index)


def _joined(like: TensorType, source: str, given: TensorType, name: str, index: int) -> TensorType:
    """Return the common type of two operands; GraphError with both types if there is none."""
    fact = f"the operand {name} is {given}, but {source} is {like}"
    if given.dtype != like.dtype:
        hint = f"cast one of them, e.g. {name} with Cast(to={ONNX[like.dtype]})"
        raise GraphError(fact, hint=hint, operand=index)
    if given.shape is None or like.shape is None:
        return like if given.shape is None else given
    if len(given.shape) != len(like.shape):
        raise _different(fact, index)
    pairs = zip(like.shape, given.shape, strict=True)
    return TensorType(like.dtype, tuple(_size(a, b, fact, index) for a, b in pairs))


def _size(a: Dim, b: Dim, fact: str, index: int) -> Dim:
    try:
        return agree(a, b, fact, index)
    except GraphError:
        raise _different(fact, index) from None


def _different(fact: str, index: int) -> GraphError:
    hint = "the parameter, its gradient and its moments have the same shape"
    return GraphError(fact, hint=hint, operand=index)
