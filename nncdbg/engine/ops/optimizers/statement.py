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
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.dtypes import FLOATS, ONNX
from nncdbg.engine.ops.declaration import Formula, Kernel, op
from nncdbg.engine.ops.formula import formula_text, in_precision, type_at, wide_name
from nncdbg.engine.ops.influence import Application, Influence, Marked
from nncdbg.engine.ops.types import Attributes, Types, agree, at
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType

STEP = "step"
RATE = "rate"
COUNTER = TensorType("i64", ())
"""The type of a step counter: the number of earlier updates of the parameter."""

Limits = tuple[float, float]
RATIO: Limits = (0.0, 1.0)
POSITIVE: Limits = (0.0, float("inf"))
"""The limits of an attribute; the lower one is allowed, the upper one is not."""

Compute = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""`compute(xp, operands, given)`: the results; an omitted operand is None, `given` are checked attributes."""

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

    A state that is not required is updated if it is given.  `options` are the attributes except `lr`: the
    default and the limits of each.  `sources` lists the other states that a new state is computed from.
    """

    name: str
    states: Sequence[str]
    required: int
    options: Mapping[str, tuple[float, Limits | None]]
    needs: Needs = lambda attributes: ()
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decays_gradient: bool = True
    """True if the weight decay is added to the gradient, False if it shrinks the parameter itself."""
    by_norm: bool = False
    """True if the update is scaled by norms, which depend on all elements."""

    @property
    def limits(self) -> Mapping[str, Limits]:
        """The limits of the attributes that have some."""
        return {name: limits for name, (_, limits) in self.options.items() if limits is not None}

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

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the kernel: operands, None for those that may be omitted, and attributes."""
        required = self.operands[: 2 + self.required]
        operands = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if name in ("xp", *required) else None,
            )
            for name in ("xp", *self.operands)
        ]
        attributes = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation="float | None" if default is None else type(default).__name__,
            )
            for name, default in self.defaults.items()
        ]
        return inspect.Signature([*operands, *attributes])

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The attributes of a kernel, with their defaults."""
        return {
            "lr": None,
            **{name: default for name, (default, _) in self.options.items()},
            "outputs_count": 1,
        }

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
                if given.dtype != COUNTER.dtype or given.shape not in (None, ()):
                    raise GraphError(
                        f"the operand {STEP} is {given}, expected {COUNTER}: the number of earlier updates",
                        hint="use a scalar such as `%step: i64[] = 0`",
                        operand=index,
                    )
            elif name == RATE:
                _check_float(RATE, given, index)
                if given.shape not in (None, ()):
                    raise GraphError(
                        f"the operand {RATE} is {given}, expected a scalar",
                        hint="use Reshape(%rate, []) for a tensor of one element",
                        operand=index,
                    )
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
    try:
        sizes = [agree(a, b, fact) for a, b in zip(like.shape, given.shape, strict=True)]
    except (GraphError, ValueError):
        hint = "the parameter, its gradient and its moments have the same shape"
        raise GraphError(fact, hint=hint, operand=index) from None
    return TensorType(like.dtype, tuple(sizes))


def declare_optimizer(
    optimizer: Optimizer, formula: Formula, cause: str | None = None
) -> Callable[[Compute], Kernel]:
    """Declare an optimizer by the decorated function, whose docstring documents the op.

    `cause` names the rule for NaN and Inf that the statements of the formula explain less well.
    """

    def enter(compute: Compute) -> Kernel:
        count, defaults = len(optimizer.operands), optimizer.defaults

        def kernel(xp: Any, *operands: Any, **attributes: Any) -> Any:
            every = (*operands, *[None] * (count - len(operands)))
            return compute(xp, every, optimizer.checked({**defaults, **attributes}, every))

        kernel.__doc__ = compute.__doc__
        vars(kernel)["__signature__"] = optimizer.signature
        return op(
            optimizer.name,
            infer=optimizer.infer,
            formula=formula,
            influence=influence_of(optimizer),
            cause=cause,
            outputs_count=True,
            optimizer=optimizer,
            results=("new_parameter", "new_states..."),
            types={STEP: "tensor(int64)", RATE: "R", "new_states...": "S"},
        )(kernel)

    return enter


def influence_of(optimizer: Optimizer) -> Influence:
    """Return the row of an optimizer.

    A result that takes the greater of two elements, or a decay of 0, does not change with each operand.
    """

    def find(application: Application) -> Sequence[Marked]:
        given = [
            name for index, name in enumerate(optimizer.operands) if application.operand(index) is not None
        ]
        results = [name for name in given if name not in ("gradient", RATE)]
        return [
            _marks(optimizer, application, name, np.shape(result))
            for name, result in zip(results, application.results, strict=False)
        ]

    words = "element by element; for step and rate, all new parameters"
    if optimizer.by_norm:
        words = "all new parameters; for new states, element by element"
    return Influence(words, find, exact=False)


def _marks(optimizer: Optimizer, application: Application, name: str, shape: tuple[int, ...]) -> Marked:
    """Return the marks of the result for `name`, from those of the operands that it is computed from."""
    if name == STEP:
        sources: Sequence[str] = (STEP,)
    elif name == "parameter":
        sources = optimizer.operands
    else:
        regularized = ("parameter",) if optimizer.decays_gradient else ()
        sources = ("gradient", *regularized, name, *optimizer.sources.get(name, ()))
    marked = np.zeros(shape, bool)
    for source in sources:
        marks = application.marks(optimizer.operands.index(source))
        if marks is not None:
            marked |= marks.any() if optimizer.by_norm and name == "parameter" else marks
    return marked


SCALARS = ONNX["f64"]


def optimizer_formula(optimizer: Optimizer, types: Types, lines: Sequence[str]) -> str:
    """Return the formula: `lines` read `%name.wide` and write `%new_name.wide`, except for the step."""
    given = [(name, at(types, index)) for index, name in enumerate(optimizer.operands)]
    present = [name for name, type_ in given if type_ is not None]
    tensors = [name for name in present if name not in (STEP, RATE)]
    results = [f"new_{name}" for name in present if name not in ("gradient", RATE)]
    cast_back = [name for name in results if name != f"new_{STEP}"]
    body = in_precision(type_at(types, 0).dtype, tensors, lines, cast_back)
    return formula_text(optimizer.name.rpartition(".")[2], given, body, results)


def rate_line(lr: float | None) -> str:
    """The learning rate as an f64 scalar."""
    return f"%lr = Cast(%{RATE}, to={SCALARS})" if lr is None else f"%lr: f64[] = {lr!r}"


def rounded_line(target: str, source: str, types: Types) -> str:
    """A scalar in the type in which the moments are computed."""
    return f"%{target} = Cast(%{source}, to={ONNX[wide_name(type_at(types, 0).dtype)]})"


def descent_lines(direction: str, source: str, types: Types, start: str = "%parameter.wide") -> list[str]:
    """The new parameter: `start` less the direction times the learning rate `source`, rounded."""
    return [
        rounded_line("rounded_lr", source, types),
        f"%update = Mul({direction}, %rounded_lr)",
        f"%new_parameter.wide = Sub({start}, %update)",
    ]


def regularized_lines(weight_decay: float) -> tuple[list[str], str]:
    """The gradient plus the gradient of weight_decay / 2 * |parameter|^2, and the name of the sum."""
    if not weight_decay:
        return [], "%gradient.wide"
    lines = [
        f"%penalty = Mul(%parameter.wide, {weight_decay!r})",
        "%regularized = Add(%gradient.wide, %penalty)",
    ]
    return lines, "%regularized"


def average_lines(name: str, source: str, beta: float) -> list[str]:
    """The moving average `beta * old + (1 - beta) * source` of a state."""
    return [
        f"%{name}.kept = Mul(%{name}.wide, {beta!r})",
        f"%{name}.added = Mul({source}, {1 - beta!r})",
        f"%new_{name}.wide = Add(%{name}.kept, %{name}.added)",
    ]


def step_lines() -> list[str]:
    """The number of this update, from 1 on, as an integer and as a float."""
    return [f"%new_step = Add(%{STEP}, 1)", f"%count = Cast(%new_step, to={SCALARS})"]


def correction_lines(number: int, beta: float) -> list[str]:
    """1 - beta ** count, the sum of the weights of a moving average that starts at 0."""
    return [
        f"%beta{number}: f64[] = {beta!r}",
        f"%power{number} = Pow(%beta{number}, %count)",
        f"%correction{number} = Sub(1.0, %power{number})",
    ]
