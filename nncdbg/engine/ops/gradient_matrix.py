"""Gradient rules of matrix products, Einsum, Det and AffineGrid, and of Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.einsum_equation import einsum_terms, without_ellipsis
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    number,
    positions_of,
    rank_of,
    reshaped_like,
    shape_of,
    summed_like,
)
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Attribute, Literal, Operand

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
