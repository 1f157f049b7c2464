"""Gradient rules: their inputs, steps that many share, and the rules of elementwise ops and of products.

A rule (`Op.vjp`) computes the cotangents of an op's operands from that of its output.  It emits statements in
the newest form of each op; the graph builder adapts them to the opset.  No rule masks a NaN: where an operand
or a cotangent is NaN, the values that depend on it are NaN.

At a jump of the slope: 0 for `Abs` and `Relu`, equal shares for `Max` and `Min`, the inner slope for `Clip`,
the slope of the negative side for `LeakyRelu` and `PRelu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from nncdbg.dtypes import ONNX
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.types import einsum_terms, without_ellipsis
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.records import Attribute, Literal, Operand, TensorType
from nncdbg.text.lexemes import name_text


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


Slope: TypeAlias = Callable[[Emit, Operand, str], Operand]
"""The derivative of an output with respect to its operand, from operand and output."""


def _chained(op: str, slope: Slope) -> Vjp:
    """Return the rule that multiplies the cotangent by a slope, or divides it by the inverse."""

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        return (emit(op, at.d, slope(emit, at.x, at.y)),)

    return vjp


sloped, over = partial(_chained, "Mul"), partial(_chained, "Div")


def _square(emit: Emit, x: Operand) -> str:
    return emit("Mul", x, x)


def _one_minus_square(emit: Emit, x: Operand) -> str:
    return emit("Sub", number(1), _square(emit, x))


def _one_plus_square(emit: Emit, x: Operand) -> str:
    return emit("Add", _square(emit, x), number(1))


def _root(emit: Emit, x: str) -> str:
    return emit("Sqrt", x)


def _negated(emit: Emit, x: str) -> str:
    return emit("Neg", x)


def _erf_slope(emit: Emit, x: Operand, y: str) -> str:
    bell = emit("Exp", _negated(emit, _square(emit, x)))
    return emit("Mul", bell, number(2 / math.sqrt(math.pi)))


def negative(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The negated cotangent."""
    return (emit("Neg", at.d),)


absolute = sloped(lambda emit, x, y: emit("Sign", x))
exponential = sloped(lambda emit, x, y: y)
logarithm = over(lambda emit, x, y: x)
root = over(lambda emit, x, y: emit("Mul", y, number(2)))
reciprocal = sloped(lambda emit, x, y: _negated(emit, _square(emit, y)))
sine = sloped(lambda emit, x, y: emit("Cos", x))
cosine = sloped(lambda emit, x, y: _negated(emit, emit("Sin", x)))
tangent = sloped(lambda emit, x, y: _one_plus_square(emit, y))
arcsine = over(lambda emit, x, y: _root(emit, _one_minus_square(emit, x)))
arccosine = over(lambda emit, x, y: _negated(emit, _root(emit, _one_minus_square(emit, x))))
arctangent = over(lambda emit, x, y: _one_plus_square(emit, x))
hyperbolic_sine = sloped(lambda emit, x, y: emit("Cosh", x))
hyperbolic_cosine = sloped(lambda emit, x, y: emit("Sinh", x))
tanh = sloped(lambda emit, x, y: _one_minus_square(emit, y))
area_sine = over(lambda emit, x, y: _root(emit, _one_plus_square(emit, x)))
area_cosine = over(lambda emit, x, y: _root(emit, emit("Sub", _square(emit, x), number(1))))
area_tangent = over(lambda emit, x, y: _one_minus_square(emit, x))
sigmoid = sloped(lambda emit, x, y: emit("Mul", y, emit("Sub", number(1), y)))
erf = sloped(_erf_slope)
relu = sloped(lambda emit, x, y: emit("Max", emit("Sign", x), number(0)))


def leaky_relu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """1 above 0, alpha elsewhere."""
    low = emit("LessOrEqual", at.x, number(0))
    slope = emit("Where", low, number(at.attributes["alpha"]), emit("Sign", at.x))
    return (emit("Mul", at.d, slope),)


def prelu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """As for LeakyRelu; for the slope, x where it is below 0."""
    x, slope = at.operands
    low = emit("LessOrEqual", x, number(0))
    steep = emit("Where", low, slope, emit("Sign", x))
    below = emit("Min", x, number(0))
    return emit("Mul", at.d, steep), summed_like(emit, emit("Mul", at.d, below), slope)


def thresholded_relu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """1 above alpha, else 0."""
    high = emit("Greater", at.x, number(at.attributes["alpha"]))
    return (emit("Mul", at.d, indicator(emit, high, at.x)),)


def add(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, for each operand."""
    return [summed_like(emit, at.d, operand) for operand in at.operands]


def subtract(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, and the negated cotangent."""
    a, b = at.operands
    return summed_like(emit, at.d, a), summed_like(emit, emit("Neg", at.d), b)


def multiply(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent times the other operand."""
    a, b = at.operands
    return summed_like(emit, emit("Mul", at.d, b), a), summed_like(emit, emit("Mul", at.d, a), b)


def divide(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d / b, and -d y / b."""
    a, b = at.operands
    share = emit("Div", at.d, b)
    return summed_like(emit, share, a), summed_like(emit, emit("Neg", emit("Mul", share, at.y)), b)


def remainder(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, and minus the whole quotient times the cotangent."""
    a, b = at.operands
    quotient = emit("Round", emit("Div", emit("Sub", a, at.y), b))
    to_b = emit("Neg", emit("Mul", at.d, quotient))
    return summed_like(emit, at.d, a), summed_like(emit, to_b, b)


def power(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d e x^(e-1) for the base, 0 where e is 0; d y log(x) for the exponent, 0 where base and y are 0."""
    x, e = at.operands
    if isinstance(e, Literal) and not isinstance(e.data, tuple):
        lower = emit("Pow", x, Literal(e.data - 1))
        slope = emit("Mul", lower, number(e.data)) if e.data else emit("Mul", at.y, number(0))
        return (summed_like(emit, emit("Mul", at.d, slope), x),)
    exponent = cast_like(emit, e, x) if isinstance(e, str) else e
    lower = emit("Pow", x, emit("Sub", exponent, number(1)))
    slope = emit("Mul", lower, exponent)
    slope = emit("Where", emit("Equal", exponent, number(0)), number(0), slope)
    # log(0) y is 0 in the limit where y is 0, and minus infinity where the exponent is 0.
    vanishes = emit("And", emit("Equal", x, number(0)), emit("Equal", at.y, number(0)))
    curve = emit("Mul", emit("Log", emit("Where", vanishes, number(1), x)), at.y)
    towards_e = emit("Mul", at.d, curve)
    return (
        summed_like(emit, emit("Mul", at.d, slope), x),
        summed_like(emit, cast_like(emit, towards_e, e), e),
    )


def extreme(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Max and Min: the cotangent to the operand that equals the result; equal shares if several do."""
    if len(at.operands) == 1:
        return (at.d,)
    hits = [cast_like(emit, emit("Equal", operand, at.y), at.y) for operand in at.operands]
    ties = emit("Sum", *hits) if len(hits) > 1 else hits[0]
    # Where the result is NaN, no operand equals it, and 0 / 0 is NaN.
    return [
        summed_like(emit, emit("Div", emit("Mul", at.d, hit), ties), operand)
        for hit, operand in zip(hits, at.operands, strict=True)
    ]


def clip(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent to the operand where it is within the bounds, else to the active bound."""
    inside = indicator(emit, emit("Equal", at.x, at.y), at.x)
    low, high = at.operand(1), at.operand(2)
    towards_x = emit("Mul", at.d, inside)
    raised = at.x if low is None else emit("Max", at.x, low)
    above = None if high is None else emit("Greater", raised, high)
    below = None
    if low is not None:
        below = emit("Less", at.x, low)
        below = below if above is None else emit("And", below, emit("Not", above))
    bounds = [
        None
        if condition is None
        else summed_like(emit, emit("Mul", at.d, indicator(emit, condition, at.x)), bound)
        for condition, bound in ((below, low), (above, high))
    ]
    return towards_x, *bounds


def where(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent to the selected operand; none to the condition."""
    condition, x, y = at.operands
    to_x = emit("Where", condition, at.d, number(0))
    to_y = emit("Where", condition, number(0), at.d)
    return None, summed_like(emit, to_x, x), summed_like(emit, to_y, y)


GEMM_WITHOUT_C = 11
"""The first opset in which Gemm needs no third operand."""


def matmul(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d bᵀ and aᵀ d, summed over the axes that were broadcast; a vector is a matrix of one row or column."""
    a, b = at.operands
    if emit.version >= GEMM_WITHOUT_C and rank_of(emit, a) == rank_of(emit, b) == 2:
        # A library multiplies by a transposed matrix without a copy of it.
        return emit("Gemm", at.d, b, transB=1), emit("Gemm", a, at.d, transA=1)
    row, column = rank_of(emit, a) == 1, rank_of(emit, b) == 1
    left, right, d = a, b, at.d
    if column:
        right, d = emit("Unsqueeze", b, Literal((1,))), emit("Unsqueeze", d, Literal((-1,)))
    if row:
        left, d = emit("Unsqueeze", a, Literal((0,))), emit("Unsqueeze", d, Literal((-2,)))
    to_left = summed_like(emit, emit("MatMul", d, _turned(emit, right)), left)
    to_right = summed_like(emit, emit("MatMul", _turned(emit, left), d), right)
    assert isinstance(to_left, str)
    assert isinstance(to_right, str)
    return reshaped_like(emit, to_left, a), reshaped_like(emit, to_right, b)


def _turned(emit: Emit, matrix: Operand) -> str:
    rank = rank_of(emit, matrix)
    return emit("Transpose", matrix, perm=(*range(rank - 2), rank - 1, rank - 2))


def gemm(emit: Emit, at: Applied) -> Sequence[Operand]:
    """alpha d Bᵀ and alpha Aᵀ d, each transposed like its matrix; beta d, summed to the shape of C."""
    a, b, c = at.operand(0), at.operand(1), at.operand(2)
    alpha, beta = at.attributes["alpha"], at.attributes["beta"]
    turned_a, turned_b = at.attributes["transA"], at.attributes["transB"]

    def product(left: Operand, right: Operand, turn_left: bool, turn_right: bool) -> str:
        attributes: dict[str, Attribute] = {} if alpha == 1 else {"alpha": alpha}
        turns = {"transA": turn_left, "transB": turn_right}
        return emit("Gemm", left, right, **attributes, **{key: 1 for key, turn in turns.items() if turn})

    to_a = product(b, at.d, turned_b, True) if turned_a else product(at.d, b, False, not turned_b)
    to_b = product(at.d, a, True, turned_a) if turned_b else product(a, at.d, not turned_a, False)
    if c is None:
        return to_a, to_b
    scaled = at.d if beta == 1 else emit("Mul", at.d, number(beta))
    return to_a, to_b, summed_like(emit, scaled, c)


def einsum(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For each operand: the Einsum of the cotangent with the other operands."""
    terms, right = einsum_terms(at.attributes["equation"], len(at.operands))
    terms, right = without_ellipsis(terms, right, [rank_of(emit, each) for each in at.operands])
    return [_einsum_part(emit, at, terms, right, index) for index in range(len(terms))]


def _einsum_part(emit: Emit, at: Applied, terms: Sequence[str], right: str, index: int) -> Operand:
    operand, term = at.operands[index], terms[index]
    others = [each for i, each in enumerate(terms) if i != index]
    values = [each for i, each in enumerate(at.operands) if i != index]
    letters = "".join(dict.fromkeys(term))
    kept = "".join(letter for letter in letters if any(letter in each for each in (right, *others)))
    equation = f"{','.join([right, *others])}->{kept}"
    part = at.d if equation == f"{right}->{right}" else emit("Einsum", at.d, *values, equation=equation)
    diagonal = letters != term
    source = operand
    if diagonal:
        source = emit("Einsum", positions_of(emit, operand), equation=f"{term}->{letters}")
    if kept != letters:
        # The cotangent is the same along an axis that is only summed.
        places = tuple(place for place, letter in enumerate(letters) if letter not in kept)
        part = emit("Expand", emit("Unsqueeze", part, Literal(places)), shape_of(emit, source))
    if diagonal:
        return emit("nncdbg.SumAt", part, source, operand)
    return summed_like(emit, part, operand)


def determinant(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent times the cofactors."""
    d = emit("Unsqueeze", at.d, Literal((-2, -1)))
    return (emit("Mul", d, emit("nncdbg.Cofactors", at.x)),)


def cofactors(emit: Emit, at: Applied) -> Sequence[Operand]:
    """With the inverse A = Cᵀ / det(x): sum(d C) Aᵀ - Aᵀ dᵀ C; Inf or NaN for a singular matrix."""
    both = Literal((-2, -1))
    inverse = emit("Div", at.y, emit("Unsqueeze", emit("Det", at.x), both))
    total = emit("ReduceSum", emit("Mul", at.d, at.y), both)
    product = emit("MatMul", emit("MatMul", inverse, _turned(emit, at.d)), at.y)
    return (emit("Sub", emit("Mul", total, inverse), product),)


def softmax(*, log: bool = False, flatten: bool = False) -> Vjp:
    """y (d - sum(d y)), or with `log` d - exp(y) sum(d); `flatten`: over rows, as before opset 13."""

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        axis, y, d = at.attributes["axis"], at.y, at.d
        if flatten:
            y, d, axis = emit("Flatten", y, axis=axis), emit("Flatten", d, axis=axis), 1
        along = Literal((axis,))
        if log:
            result = emit("Sub", d, emit("Mul", emit("Exp", y), emit("ReduceSum", d, along)))
        else:
            total = emit("ReduceSum", emit("Mul", d, y), along)
            result = emit("Mul", emit("Sub", d, total), y)
        return (reshaped_like(emit, result, at.x) if flatten else result,)

    return vjp


def affine_grid(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent times the homogeneous coordinates, which are the grid of the identity and a 1."""
    known = emit.type_of(at.x)
    axes = known.shape[1] if known is not None and known.shape is not None else None
    if not isinstance(axes, int):
        raise UnsupportedOp(f"the sizes of %{name_text(str(at.x))} are not known before the run")
    eye = tuple(tuple(float(i == j) for j in range(axes + 1)) for i in range(axes))
    identity = emit("Add", emit("nncdbg.FullLike", at.x, value=0.0), Literal(eye))
    grid = emit("AffineGrid", identity, at.operand(1), align_corners=at.attributes["align_corners"])
    one_more = Literal((0,) * (2 * axes + 3) + (1,))
    points = emit("Reshape", emit("Pad", grid, one_more, number(1)), Literal((0, -1, axes + 1)))
    cotangents = emit("Transpose", emit("Reshape", at.d, Literal((0, -1, axes))), perm=(0, 2, 1))
    return (emit("MatMul", cotangents, points),)
