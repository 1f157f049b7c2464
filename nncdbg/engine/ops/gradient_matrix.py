"""Gradient rules of matrix products, and of Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.graph import Attribute, Literal, Operand
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    number,
    rank_of,
    reshaped_like,
    summed_like,
)


def matmul(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d bᵀ and aᵀ d, summed over the axes that were broadcast; a vector is a matrix of one row or column."""
    a, b = at.operands
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
