"""Evaluate the tree of an expression in a scope.

Every error shows the underlined place and the types of the operands.  See `operators` and `functions`
for the operators and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from nncdbg.errors import ExpressionError
from nncdbg.expression import nodes
from nncdbg.expression.functions import DERIVATIVES, FUNCTIONS, DerivativeRequest, derivative_of
from nncdbg.expression.nodes import ExpressionNode, fault
from nncdbg.expression.operators import (
    OperandError,
    binary,
    check_index,
    compare,
    index_item,
    integer,
    number,
    stack,
    truth,
    type_text,
    unary,
)
from nncdbg.expression.tokens import nearest, shortened
from nncdbg.ir.records import Array

_OPERANDS = 8
"""Maximum number of operands listed in an error."""


class VisibleValues(Protocol):
    """The values visible to an expression, at one moment of one frame.

    Arrays may be read-only and share memory with the program; expressions never write to them.  `value`
    and `previous` raise NotComputed for a value that does not exist at this moment.
    """

    def has(self, name: str) -> bool: ...

    def names(self) -> Iterable[str]: ...

    def value(self, name: str) -> Array: ...

    def previous(self, name: str) -> Array:
        """Return the value at the previous iteration or visit."""
        ...

    def variable(self, name: str) -> object:
        """Return the variable `name` (without the `$`).  Raises KeyError if there is none."""
        ...

    def variables(self) -> Iterable[str]:
        """Return the names accepted by `variable`."""
        ...

    def summary(self, array: Array) -> Any:
        """Return the one-pass statistics of the finite elements of an array."""
        ...

    def derivative(self, wanted: DerivativeRequest, vectors: Sequence[Any]) -> Array:
        """Return a derivative at the values of this moment.  Raises OperandError if it does not exist."""
        ...


class Evaluator:
    """Evaluates one text in one scope."""

    def __init__(self, text: str, scope: VisibleValues) -> None:
        self._text = text
        self._scope = scope

    def evaluate(self, node: ExpressionNode) -> Any:
        """Return the value of `node`; floating-point warnings are suppressed, as in kernels.

        Raises ExpressionError, and the errors of the scope.
        """
        with np.errstate(all="ignore"):
            return self._value(node)

    def truth(self, node: ExpressionNode) -> bool:
        """Return the value of `node` as one truth value."""
        with np.errstate(all="ignore"):
            return self._truth(node)

    def _truth(self, node: ExpressionNode) -> bool:
        return bool(self._guarded(node, truth, (node,)))

    def index(self, items: nodes.Sequence) -> tuple[Any, ...]:
        """Return the items of an index for NumPy."""
        with np.errstate(all="ignore"):
            return tuple(self._index_item(item) for item in items.items)

    def _value(self, node: ExpressionNode) -> Any:
        return _EVALUATE[type(node)](self, node)

    def _guarded(
        self, node: ExpressionNode, compute: Callable[..., Any], operands: Iterable[ExpressionNode]
    ) -> Any:
        """Return `compute(*operands)`; errors underline `node`."""
        parts = tuple(operands)
        values = [self._value(part) for part in parts]
        return self._compute(node, lambda: compute(*values), parts, values)

    def _compute(
        self,
        node: ExpressionNode,
        compute: Callable[[], Any],
        parts: Iterable[ExpressionNode],
        values: list[Any],
    ) -> Any:
        hint = None
        try:
            return compute()
        except OperandError as fact:
            message, hint = str(fact), fact.hint
        except TypeError:
            message = f"this operation does not accept {' and '.join(map(type_text, values))}"
        except MemoryError:
            message = "there is not enough memory for the result"
        except (ValueError, IndexError, OverflowError) as error:
            message = str(error)
        operands = [
            f"{shortened(self._text[part.start : part.end])}: {type_text(value)}"
            for part, value in zip(parts, values, strict=True)
            if not isinstance(part, nodes.LiteralExpression)
        ]
        raise fault(self._text, node.start, node.end, message, operands=operands[:_OPERANDS], hint=hint)

    # -- one per node ----------------------------------------------------------------------------

    def _variable(self, node: nodes.VariableExpression) -> Any:
        try:
            return self._scope.variable(node.name)
        except KeyError:
            raise unknown_variable(self._text, node, self._scope) from None

    def _sequence(self, node: nodes.Sequence) -> Any:
        if not node.is_list:
            return tuple(self._value(item) for item in node.items)
        return self._guarded(node, lambda *items: stack(items), node.items)

    def _unary(self, node: nodes.Unary) -> Any:
        if node.symbol == "not":
            return not self._truth(node.operand)
        return self._guarded(node, lambda a: unary(node.symbol, a), (node.operand,))

    def _binary(self, node: nodes.Binary) -> Any:
        return self._guarded(node, lambda a, b: binary(node.symbol, a, b), (node.left, node.right))

    def _comparison(self, node: nodes.Compare) -> Any:
        """Evaluate `a < b < c` as `(a < b) & (b < c)`; scalars stop at the first false one, as in Python."""
        result: Any = None
        left = self._value(node.operands[0])
        for position, symbol in enumerate(node.symbols):
            parts = node.operands[position : position + 2]
            right = self._value(parts[1])
            one = self._compute(node, lambda: compare(symbol, left, right), parts, [left, right])  # noqa: B023
            result = one if position == 0 else self._compute(node, lambda: result & one, (), [])  # noqa: B023
            if np.ndim(result) == 0 and not result:
                break
            left = right
        return result

    def _boolean(self, node: nodes.Boolean) -> bool:
        if self._truth(node.left) is (node.symbol == "or"):
            return node.symbol == "or"
        return self._truth(node.right)

    def _call(self, node: nodes.CallExpression) -> Any:
        if node.function == "prev":
            argument = node.arguments[0]
            assert isinstance(argument, nodes.Name)
            return self._scope.previous(argument.name)
        if node.function in DERIVATIVES:
            vectors: list[Any] = []
            wanted = derivative_of(node, vectors, self._value)
            return self._compute(node, lambda: self._scope.derivative(wanted, vectors), (), [])
        run = self._stats if node.function == "stats" else FUNCTIONS[node.function].run
        assert run is not None
        names = node.parameters
        return self._guarded(
            node, lambda *values: run(**dict(zip(names, values, strict=True))), node.arguments
        )

    def _stats(self, x: Any) -> Any:
        return self._scope.summary(np.asarray(x if isinstance(x, np.ndarray | np.generic) else number(x)))

    def _field(self, node: nodes.Field) -> Any:
        value = getattr(self._value(node.operand), node.name)
        return float("nan") if value is None else value

    def _index(self, node: nodes.IndexExpression) -> Any:
        indexed = self._value(node.operand)
        items = tuple(self._index_item(item) for item in node.items.items)
        return self._compute(node, lambda: _indexed(indexed, items), (node.operand,), [indexed])

    def _index_item(self, item: ExpressionNode) -> Any:
        if not isinstance(item, nodes.Slice):
            return self._guarded(item, index_item, (item,))
        bounds = [
            None if part is None else self._guarded(part, _slice_bound, (part,))
            for part in (item.first, item.stop, item.step)
        ]
        return slice(*bounds)


def unknown_variable(text: str, node: nodes.VariableExpression, scope: VisibleValues) -> ExpressionError:
    """Return the error for an unknown variable, without raising it."""
    names = list(scope.variables())
    hint = nearest(node.name, names)
    if hint is None:
        hint = (
            f"the variables are {', '.join(f'${name}' for name in names[:_OPERANDS])}; define one: $x = EXPR"
        )
    return fault(text, node.start, node.end, f"there is no variable `${shortened(node.name)}`", hint=hint)


def _slice_bound(value: Any) -> int | None:
    return None if value is None else integer(value, "the bound of a slice")


def _indexed(value: Any, items: tuple[Any, ...]) -> Any:
    if isinstance(value, tuple | list):
        if len(items) != 1 or not isinstance(items[0], int | slice):
            raise OperandError(f"the index of {type_text(value)} must be one integer or slice")
        return value[items[0]]
    if not isinstance(value, np.ndarray):
        raise OperandError(f"{type_text(value)} cannot be indexed")
    check_index(value.shape, items)
    return value[items]


_EVALUATE: dict[type[ExpressionNode], Callable[[Evaluator, Any], Any]] = {
    nodes.LiteralExpression: lambda _, node: node.data,
    nodes.Name: lambda evaluator, node: evaluator._scope.value(node.name),
    nodes.VariableExpression: Evaluator._variable,
    nodes.Sequence: Evaluator._sequence,
    nodes.Unary: Evaluator._unary,
    nodes.Binary: Evaluator._binary,
    nodes.Compare: Evaluator._comparison,
    nodes.Boolean: Evaluator._boolean,
    nodes.Conditional: lambda evaluator, node: evaluator._value(
        node.then if evaluator._truth(node.condition) else node.otherwise
    ),
    nodes.CallExpression: Evaluator._call,
    nodes.Field: Evaluator._field,
    nodes.IndexExpression: Evaluator._index,
}
