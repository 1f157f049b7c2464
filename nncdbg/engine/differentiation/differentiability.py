"""Find the ops that stop a gradient through a formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from nncdbg.engine.compilation.code import CONTROL, Compiler, initial_data, walk
from nncdbg.engine.dtypes import FLOATS
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.graph import Node, Program, TensorType, Type, Value
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import REQUIRED, Schema, schema, version_of

_RANKS = (4, 3, 2, 1)
_SAMPLES: dict[str, Any] = {"INT": 1, "FLOAT": 1.0, "FLOATS": (1.0,), "STRING": ""}


@cache
def rule_gaps(name: str) -> frozenset[str] | None:
    """Return the ops in the formula of `name` that have neither a gradient rule nor a formula with one.

    Empty if the gradient passes through; None if `name` has no formula for any sample of operands.
    Statements without float operands or float results are ignored: no gradient passes through them.
    """
    return _gaps(name, frozenset())


def _gaps(name: str, inside: frozenset[str]) -> frozenset[str] | None:
    used = {op for program, types in _formulas(name) for op in _float_ops(program, types)}
    if not used:
        return None
    found: set[str] = set()
    for op in used - inside - {name}:
        declared = lookup(op, version_of(op, {}))
        if declared is not None and declared.vjp is not None:
            continue
        inner = _gaps(op, inside | {name})
        found |= {op} if inner is None else inner
    return frozenset(found)


def _formulas(name: str) -> Iterator[tuple[Program, list[TensorType]]]:
    """Yield an op's formulas for f32 samples of all or only the required operands, with their types."""
    known = schema(name, version_of(name, {}))
    if known is None:
        return
    for rank in _RANKS:
        for inputs in ([each for each in known.inputs if not each.optional], known.inputs):
            node = Node(
                name,
                tuple(each.name for each in inputs),
                tuple(Value(each.name) for each in known.outputs if not each.optional),
                _attributes(known, rank),
            )
            types = [TensorType("f32", (2,) * rank)] * len(inputs)
            try:
                program = formula_of(node, types, {})
            except (NncdbgError, LookupError, TypeError, ValueError, ArithmeticError):
                # The sample's rank or attributes do not fit; another error is a bug of the formula.
                continue
            if program is not None:
                yield program, types


def _float_ops(program: Program, types: Sequence[TensorType]) -> Iterator[str]:
    """Yield the ops of a formula that compute floats from floats."""
    compiler = Compiler(
        program, lambda constant: initial_data(constant, program), lambda path, pc, error: error
    )
    graph = program.graphs[program.entry]
    try:
        code = compiler.compile(graph, types)
    except NncdbgError:
        return
    for each in walk(code):
        for pc, node in enumerate(each.nodes):
            if node.op in CONTROL or node.op.startswith("@"):
                continue
            given = [_may_be_float(each.types.get(each.names[slot])) for slot in each.operands[pc] if slot]
            made = [_may_be_float(each.types.get(value.name)) for value in node.outputs]
            if any(given) and any(made) and _takes_floats(node.op):
                yield node.op


def _takes_floats(name: str) -> bool:
    known = schema(name, version_of(name, {}))
    return known is None or any(each.dtypes is None or "f32" in each.dtypes for each in known.inputs)


def _may_be_float(type_: Type | None) -> bool:
    return not isinstance(type_, TensorType) or type_.dtype in FLOATS


def _attributes(known: Schema, rank: int) -> dict[str, Any]:
    """Return samples of the required attributes; lists of integers have one element per spatial axis."""
    samples = {**_SAMPLES, "INTS": (1,) * max(1, rank - 2)}
    required = [key for key, default in known.attributes.items() if default is REQUIRED]
    # The debugger's own ops declare no kind; their attributes are lists of integers.
    return {key: samples.get(known.kinds.get(key, "INTS"), 1) for key in required}
