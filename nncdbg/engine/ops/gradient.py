"""The inputs of gradient rules, and steps that many rules share.

A rule (`Op.vjp`) computes the cotangents of an op's operands from that of its output.  It emits statements in
the newest form of each op; the graph builder adapts them to the opset.  No rule masks a NaN: where an operand
or a cotangent is NaN, the values that depend on it are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nncdbg.engine.dtypes import ONNX
from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Attribute, Literal, Operand, TensorType


class Emit(Protocol):
    """The interface through which a rule emits statements."""

    @property
    def version(self) -> int:
        """The version of the default ONNX opset."""

    def __call__(self, op: str, *operands: Operand, **attributes: Attribute) -> str:
        """Append a statement of one output and return the name of its value."""

    def output(self, index: int, op: str, *operands: Operand, **attributes: Attribute) -> str:
        """Append a statement and return the name of its output `index`; the others have no names."""

    def outputs(self, count: int, op: str, *operands: Operand, **attributes: Attribute) -> Sequence[str]:
        """Append a statement and return the names of its `count` outputs."""

    def type_of(self, operand: Operand) -> TensorType | None:
        """Return the type of an operand, as far as it is known before the run."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A statement of the forward graph, and the cotangents of its outputs."""

    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    """Names of the outputs; empty for an output that is never read."""
    cotangents: tuple[str | None, ...]
    attributes: Mapping[str, Any]
    """The attributes as a kernel takes them, with defaults filled in."""
    given: Mapping[str, Attribute]
    """The attributes as given in the statement."""

    @property
    def x(self) -> Operand:
        """The first operand."""
        return self.operands[0]

    @property
    def y(self) -> str:
        """The first output."""
        return self.outputs[0]

    def output(self, index: int) -> str:
        """Return the name of output `index`, "" if it has none."""
        return self.outputs[index] if index < len(self.outputs) else ""

    @property
    def d(self) -> str:
        """The cotangent of the first output; UnsupportedOp if only other outputs have one."""
        if self.cotangents[0] is None:
            raise UnsupportedOp("its rule is for the first output only")
        return self.cotangents[0]

    def operand(self, index: int) -> Operand:
        """Return operand `index`, None if it is not given."""
        return self.operands[index] if index < len(self.operands) else None


def nothing(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The rule of an op that is constant between jumps, or independent of its operands' elements."""
    return ()


def same_shape(emit: Emit, a: Operand, b: Operand) -> bool:
    """Return True if both shapes are known and equal."""
    known = [emit.type_of(a), emit.type_of(b)]
    shapes = [each.shape if each is not None else None for each in known]
    return shapes[0] is not None and None not in shapes[0] and shapes[0] == shapes[1]


def summed_like(emit: Emit, cotangent: str, operand: Operand) -> Operand:
    """Sum the cotangent over the axes along which the operand was broadcast."""
    if not isinstance(operand, str):
        return None
    return cotangent if same_shape(emit, cotangent, operand) else emit("nncdbg.SumLike", cotangent, operand)


def shape_of(emit: Emit, operand: Operand) -> str:
    """Emit the sizes of an operand, read at run time."""
    return emit("Shape", operand)


def reshaped_like(emit: Emit, cotangent: str, operand: Operand) -> str:
    """Reshape the cotangent to the shape of the operand."""
    if same_shape(emit, cotangent, operand):
        return cotangent
    # Without `allowzero` a size of 0 would mean the cotangent's size of that axis.
    attributes: dict[str, Attribute] = {"allowzero": 1} if emit.version >= 14 else {}
    return emit("Reshape", cotangent, shape_of(emit, operand), **attributes)


def fitted_like(emit: Emit, value: str, operand: Operand) -> str:
    """Crop the last elements along each axis, or append zeros, up to the sizes of the operand."""
    if same_shape(emit, value, operand):
        return value
    missing = emit("Sub", shape_of(emit, operand), shape_of(emit, value))
    none = emit("Mul", missing, Literal(0))
    return emit("Pad", value, emit("Concat", none, missing, axis=0), number(0))


def cast_like(emit: Emit, value: str, operand: Operand) -> str:
    """Cast the value to the element type of the operand."""
    source, target = emit.type_of(value), emit.type_of(operand)
    if target is None:
        return emit("CastLike", value, operand)
    if source is not None and source.dtype == target.dtype:
        return value
    return emit("Cast", value, to=ONNX[target.dtype])


def indicator(emit: Emit, condition: str, operand: Operand) -> str:
    """Emit 1 where the condition holds, else 0, and NaN where the operand is NaN; in its element type."""
    return emit("Where", emit("IsNaN", operand), operand, cast_like(emit, condition, operand))


def positions_of(emit: Emit, operand: Operand) -> str:
    """Emit the flat position of each element: 0, 1, 2 ... in the shape of the operand."""
    return emit("nncdbg.Positions", operand)


def other_factors(emit: Emit, factor: Operand, product: str, nonzero: str, zeros: str) -> str:
    """Emit the product of all factors except one, without a division by 0.

    `nonzero` is the product of the factors that are not 0, `zeros` the number of those that are 0.
    """
    is_zero = emit("Equal", factor, number(0))
    at_zero = emit("Where", emit("Equal", zeros, number(1)), nonzero, number(0))
    quotient = emit("Div", product, emit("Where", is_zero, number(1), factor))
    return emit("Where", is_zero, at_zero, quotient)


def number(value: float) -> Literal:
    """Return a literal number, which takes the element type of its neighbors."""
    return Literal(float(value))


def rank_of(emit: Emit, operand: Operand) -> int:
    """Return the number of axes; UnsupportedOp if it is not known before the run."""
    known = emit.type_of(operand)
    if known is None or known.shape is None:
        raise UnsupportedOp(f"the number of axes of %{name_text(str(operand))} is not known before the run")
    return len(known.shape)
