"""Checks of an op's declaration against its kernel, on a sample statement."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.diagnosis.explaining import cause_of, legal
from nncdbg.engine.ops.causes.evidence import flat
from nncdbg.engine.ops.declaration import declared
from nncdbg.engine.ops.influence import Content
from nncdbg.engine.ops.schema import split
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Inline, Node, Value
from nncdbg.textual_repr.printer import print_statement
from tests.engine.diagnosis.births import births
from tests.engine.differentiation.gradients import check
from tests.engine.ops.one_node import assert_same, by_formula, by_kernel
from tests.engine.ops.samples import Sample

OFFSET = 0.0137
"""Moves operands away from 0 and 1, where derivatives of activations are discontinuous."""

SPECIAL = (0.0, -1.0, 1e-30, 6e4, 3e38, np.inf, -np.inf)
"""Numbers for which ops produce NaN or Inf."""


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and name_of(value.dtype) in FLOATS


def is_differentiable(sample: Sample) -> bool:
    """Whether a sample of an op's newest version has a gradient rule, and only tensors of floats."""
    op = sample.op
    floats = bool(sample.operands) and all(map(is_float, sample.operands)) and op.content is not Content.CAST
    newest = op in declared(op.name)[-1:]
    if not (newest and op.vjp is not None and floats and sample.outputs == 1 and not op.jumps):
        return False
    return not op.name.startswith(("Optional", "Sequence", "nncdbg.EmptySequence"))


def check_formula(sample: Sample) -> None:
    """Check that the formula and the kernel agree."""
    given = {key: value for key, value in sample.attributes.items() if value is not None}
    wanted = by_kernel(sample.op.name, sample.operands, given, count=sample.outputs, version=sample.version)
    found = by_formula(sample.op.name, sample.operands, given, version=sample.version)
    common = min(len(found), len(wanted))
    assert_same(found[:common], wanted[:common])


def check_gradient(sample: Sample) -> None:
    """Check the gradient by the float operands against finite differences in f64."""
    operands = {
        f"x{number}": value.astype(np.float64) + OFFSET if is_float(value) else value
        for number, value in enumerate(sample.operands)
    }
    node = Node(sample.op.name, tuple(operands), (Value("y"),), _literals(sample))
    floats = [name for name, value in operands.items() if is_float(value)]
    loss = "%loss = ReduceSum(%y, keepdims=0)"
    check(
        [print_statement(node), loss],
        operands,
        floats,
        opset=13 if split(sample.op.name)[0] else sample.version,
    )


def _literals(sample: Sample) -> dict[str, Any]:
    given = {key: value for key, value in sample.attributes.items() if value is not None}
    return {key: Inline(value) if isinstance(value, np.ndarray) else value for key, value in given.items()}


def check_causes(sample: Sample) -> None:
    """Check that each NaN or Inf produced from a special number has a cause."""
    op = sample.op
    for number in SPECIAL:
        operands = [_with_first_element(value, number) for value in sample.operands]
        try:
            found = [
                *births(op.name, operands, sample.attributes, sample.version, sample.outputs, "abcdefgh")
            ]
        except (NncdbgError, ValueError, TypeError, RuntimeError, LookupError, ArithmeticError):
            continue  # The op refuses such operands.
        for birth in found:
            cause = cause_of(birth)
            assert cause.name not in ("unknown", "kernel") or legal(birth, [None] * len(operands)), (
                birth,
                cause,
            )


def _with_first_element(value: Any, number: float) -> Any:
    if not is_float(value) or not value.size:
        return value
    changed = value.copy()
    with np.errstate(all="ignore"):
        changed.flat[0] = number
    return changed


def check_facts(sample: Sample) -> None:
    """Check the results against the fields of the declaration."""
    op, operands = sample.op, sample.operands
    results = sample.run(operands)
    floats = [each for each in flat(results) if is_float(each)]
    if op.content is Content.MOVED:
        arrays = [value for value in flat(operands) if isinstance(value, np.ndarray)]
        kinds = {value.dtype for value in arrays}
        elements = {item for value in arrays for item in value.reshape(-1).tolist()} | {0}
        moved = [each for each in flat(results) if each.dtype in kinds]
        assert all(item in elements for each in moved for item in each.reshape(-1).tolist())
    if op.content is Content.SIZES:
        other = [np.zeros_like(value) for value in operands]
        assert all(np.array_equal(a, b) for a, b in zip(results, sample.run(other), strict=True))
    if op.bounds is not None:
        low, high = op.bounds
        assert all(((each >= low) & (each <= high)).all() for each in floats)
    if op.shares is not None:
        axis = sample.attributes.get("axis", -1)
        rest = tuple(range(axis % results[0].ndim, results[0].ndim)) if op.since < 13 else axis
        np.testing.assert_allclose(op.shares(results[0]).sum(axis=rest), 1, rtol=1e-5)
    if op.rectifies:
        below = [
            _with_first_element(value, -100.0) if number == 0 else value
            for number, value in enumerate(operands)
        ]
        least = sample.attributes.get("min", operands[1] if len(operands) > 1 else 0)
        assert sample.run(below)[0].flat[0] in (0, -100 + sample.attributes.get("bias", 0), np.min(least))
    given = [operands[index] for index in op.limits if index < len(operands) and operands[index] is not None]
    if len(given) > 1:
        pairs = [(one, other) for one in given for other in (np.minimum, np.maximum)]
        assert any(np.array_equal(other(results[0], one), results[0]) for one, other in pairs)
    if op.training_operand is not None and len(operands) <= op.training_operand:
        assert not op.draws(operands)
    if op.pointwise and floats and operands and is_float(operands[0]):
        part = [value[:1] if getattr(value, "ndim", 0) == results[0].ndim else value for value in operands]
        if results[0].ndim and all(np.shape(value)[:1] == (len(results[0]),) for value in operands[:1]):
            np.testing.assert_array_equal(results[0][:1], sample.run(part)[0])
