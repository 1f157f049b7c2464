"""`range:EXPR`: an expression over values that must be false whenever one of them is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.search import candidates
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.sightings import ENTRANCE
from nncdbg.engine.errors import ExpressionError, NotComputed
from nncdbg.engine.execution.check_results import NOT_CHECKED, CheckResult
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.expression import Expression, condition, nodes
from nncdbg.engine.expression.evaluator import Evaluator
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.values.values import Values
from nncdbg.ir.kinds import CONTROL_OPS
from nncdbg.ir.records import type_of
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import RANGE
from nncdbg.nan_watch.records import Operand, WatchFinding
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop


@dataclass(slots=True)
class _Range:
    expression: Expression
    numbers: list[int] = field(default_factory=list)
    """The data breakpoints on its values."""
    asked: int = 0
    """Number of evaluations: times when all its values were available."""


class Ranges:
    """The ranges of a watch on one debugger, as data breakpoints that do not end the run.

    Raises ExpressionError for one that does not parse, matches nothing, or reads no value.
    """

    def __init__(self, debugger: Debugger, texts: tuple[str, ...]) -> None:
        self._debugger = debugger
        self._found: dict[tuple[Any, ...], WatchFinding] = {}
        self._ranges = [self._range(text) for text in texts]

    def _range(self, text: str) -> _Range:
        made = _Range(self._debugger.values.read(text))
        if made.expression.reads_result:
            self._watch_statements(made)
            return made
        written = sorted(made.expression.names & candidates(self._debugger.program, "data"))
        if not written:
            raise ExpressionError(
                f"the gate range:{text} uses no computed value",
                hint="use a computed value, as in range:max(%h) > 1e4, or $out for every result",
            )
        with self._debugger.breakpoints.traps.together():
            made.numbers += [self._debugger.watch_value(f"%{name_text(name)}").number for name in written]
        return made

    def _watch_statements(self, made: _Range) -> None:
        """Stop after every statement whose results make an expression over `$out` true."""
        ops = {node.op for _, graph in blocks(self._debugger.program) for node in graph.nodes if node.outputs}
        with self._debugger.breakpoints.traps.together():
            for op in sorted(op for op in ops if op not in CONTROL_OPS and not op.startswith("@")):
                made.numbers.append(self._debugger.break_at(op=op, when=made.expression.text).number)
        made.asked = 1  # The breakpoints evaluate it, and stop only where it is true.

    @property
    def findings(self) -> list[WatchFinding]:
        return list(self._found.values())

    @property
    def unchecked(self) -> list[CheckResult]:
        """Return the ranges that were never evaluated."""
        return [
            CheckResult(
                f"{RANGE}:{each.expression.text}",
                NOT_CHECKED,
                "its values were never available at the same time",
            )
            for each in self._ranges
            if not each.asked
        ]

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than these breakpoints stops it."""
        for each in self._ranges:
            if not each.expression.reads_result:
                self._judge(each, self._debugger.control.stack[-1])
        while True:
            stop = move()
            hit = [each for each in self._ranges if set(each.numbers) & set(stop.breakpoints)]
            for each in hit:
                assert stop.frame is not None
                self._judge(each, stop.frame)
            if stop.reason not in ("data", "breakpoint") or not hit or self._debugger.ended:
                return stop

    def _judge(self, each: _Range, frame: Frame) -> None:
        scope = self._debugger.values
        if each.expression.reads_result and not _is_numeric(scope.variable("out")):
            return
        try:
            holds = condition(each.expression, scope)
            each.asked += 1
            if not holds:
                return
            fact = "; ".join(_facts(each.expression, scope))
        except NotComputed:
            return
        code = frame.code
        # Before a block's first statement, the written values are its inputs or carried values.
        pc = frame.pc - 1 if frame.pc else ENTRANCE
        key = (each.expression.text, code, pc)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + 1)
            return
        written = code.graph.inputs if pc == ENTRANCE else code.nodes[pc].outputs
        names = each.expression.names
        value = next((out.name for out in written if each.expression.reads_result or out.name in names), "")
        self._found[key] = WatchFinding(
            RANGE,
            "birth",
            site_of(code, pc, value, self._debugger),
            iteration=tuple(frame.iteration for frame in self._debugger.control.stack if frame.is_loop),
            inputs=tuple(_operands(each.expression, scope)),
            evidence=f"{fact}; the gate is range:{each.expression.text}",
            hint="use `why` to see how the value was computed",
            trips=True,
        )


def _is_numeric(content: Any) -> bool:
    return isinstance(content, np.ndarray) and content.dtype.kind not in "OUS"


def _operands(expression: Expression, scope: Values) -> Iterator[Operand]:
    for name in sorted(expression.names):
        content = scope.value(name)
        known = type_of(content)
        tensor = isinstance(content, np.ndarray) and not content.dtype.hasobject
        yield Operand(name, str(known) if known else None, summarize(content) if tensor else None)


def _facts(expression: Expression, scope: Values) -> Iterator[str]:
    """Return each comparison of the expression that holds, with the values of both sides."""
    evaluator = Evaluator(expression.text, scope)
    any_true = False
    for node in _comparisons(expression.root):
        sides = [(part, evaluator.evaluate(part)) for part in node.operands]
        if evaluator.truth(node):
            any_true = True
            yield (
                ", ".join(
                    f"{expression.text[part.start : part.end].strip()} is {_shown(value)}"
                    for part, value in sides
                    if not isinstance(part, nodes.LiteralExpression)
                )
                or expression.text
            )
    if not any_true:
        yield f"{expression.text} is true"


def _comparisons(root: nodes.ExpressionNode) -> Iterator[nodes.Compare]:
    """Return the comparisons that decide the result, through `and` and `or`."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.Compare):
            yield node
        elif isinstance(node, nodes.Boolean):
            stack += [node.right, node.left]


def _shown(value: Any) -> str:
    if np.ndim(value):
        return f"{type_of(np.asarray(value))}"
    return f"{float(value):.6g}" if isinstance(value, (float, np.floating)) else str(value)
