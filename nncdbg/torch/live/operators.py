"""One operator that has just run in the user's program, for breakpoints, conditions and stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any

import torch

from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import current_autograd_node, sequence_number
from nncdbg.engine.ops.aten.signatures import ArgumentKind, Signature, flat_results, written_tensors
from nncdbg.errors import ExpressionError, NotComputed
from nncdbg.expression import STATEMENT_VARIABLE
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.expression.operators import OperandError
from nncdbg.ir.records import Array
from nncdbg.stats import summarize
from nncdbg.text.lexemes import name_text
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER
from nncdbg.torch.source_lines import Lines, calling_modules, user_lines


@dataclass(eq=False)
class Operator:
    """An operator with its arguments and results; `frame` is the innermost frame that called it."""

    signature: Signature
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    frame: FrameType | None
    step: int
    """The number of the training step, from 1."""
    optimizing: bool

    @cached_property
    def node(self) -> Any:
        """The autograd node that ran it; None outside of a backward pass."""
        return current_autograd_node()

    @cached_property
    def phase(self) -> str:
        """``forward``, ``backward`` or ``optimizer``."""
        return BACKWARD if self.node is not None else OPTIMIZER if self.optimizing else FORWARD

    @cached_property
    def sequence(self) -> int:
        """The number that a forward operator and its backward node share; -1 without a node."""
        return -1 if self.node is None else sequence_number(self.node)

    @cached_property
    def lines(self) -> Lines:
        """The user's lines, innermost first."""
        return user_lines(self.frame)

    @cached_property
    def modules(self) -> list[torch.nn.Module]:
        """The modules whose call runs now, innermost first."""
        return [*calling_modules(self.frame)]

    @cached_property
    def operands(self) -> list[Any]:
        """The tensors among the arguments, in the order of the signature; None for an omitted one."""
        found: list[Any] = []
        for index, argument in enumerate(self.signature.arguments):
            if argument.kind is not ArgumentKind.OTHER:
                given = self.args[index] if index < len(self.args) else self.kwargs.get(argument.name)
                found.extend(flat_results(given))
        return found

    @cached_property
    def written(self) -> list[Any]:
        """The tensors that it writes to."""
        return written_tensors(self.signature, self.args, self.kwargs)

    @cached_property
    def results(self) -> list[Any]:
        """The results; the written tensors for an operator that returns nothing."""
        returned = flat_results(self.result) if self.signature.results else self.written
        return [each for each in returned if each is not None]


class OperatorScope:
    """What a condition reads at an operator: `$out`, `$in0`, `$op`, `$step`, and the tensors in `named`."""

    def __init__(self, operator: Operator, named: Mapping[str, Any]) -> None:
        self._operator = operator
        self._named = named

    def has(self, name: str) -> bool:
        return name in self._named

    def names(self) -> Iterable[str]:
        return self._named

    def value(self, name: str) -> Array:
        if name not in self._named:
            raise ExpressionError(
                f"nothing is named %{name_text(name)}", hint="use $out, $in0, a parameter or its gradient"
            )
        found: Array = host_array(self._named[name])
        return found

    def previous(self, name: str) -> Array:
        raise NotComputed(f"%{name_text(name)} has no previous value while the script runs")

    def derivative(self, wanted: DerivativeRequest, vectors: Sequence[Any]) -> Array:
        raise OperandError(f"`{wanted.kind}` needs a program", hint="record the step: nncdbg record")

    def variables(self) -> Iterator[str]:
        """Return the names of the variables."""
        yield from ("op", "step")
        yield from (f"in{number}" for number in range(len(self._operator.operands)))
        yield from (f"out{number or ''}" for number in range(len(self._operator.results)))

    def variable(self, name: str) -> object:
        """Return a variable.  Raises KeyError for an unknown name, ExpressionError for a missing operand."""
        operator = self._operator
        numbered = STATEMENT_VARIABLE.fullmatch(name)
        if numbered is None:
            return {"op": operator.signature.name, "step": operator.step}[name]
        found = operator.results if numbered[1] == "out" else operator.operands
        number = int(numbered[2] or 0)
        if number >= len(found) or found[number] is None:
            what = "results" if numbered[1] == "out" else "operands"
            raise ExpressionError(f"there is no ${name}: {operator.signature.name} has {len(found)} {what}")
        return host_array(found[number])

    def summary(self, array: Array) -> Any:
        return summarize(array)
