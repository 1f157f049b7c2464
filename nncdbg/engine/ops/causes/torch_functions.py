"""Causes in PyTorch's special functions, and in its functions of matrices."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nncdbg.engine.ops.aten.names import base_name
from nncdbg.engine.ops.causes import Birth, Cause, arithmetic, reductions
from nncdbg.engine.ops.causes.places import at, counted, element, part, spot
from nncdbg.engine.ops.causes.torch_operands import as_op, paired
from nncdbg.ir.records import Array


def product_with_logarithm(birth: Birth) -> Cause | None:
    """`xlogy`: x * log(y), and 0 where x is 0."""
    pair = paired(birth)
    if pair is None:
        return None
    y = pair.inputs[1]
    number = element(y, spot(birth))
    if number == 0:
        return Cause("log of zero", counted(pair, 1, y == 0, "0"), "")
    if number < 0:
        return Cause("log of a negative number", counted(pair, 1, y < 0, "negative"), "")
    return None


def power_of_two(birth: Birth) -> Cause | None:
    two = np.asarray(2, birth.output.dtype)
    return arithmetic.power(as_op(birth, "Pow", [two, birth.inputs[0]]))


def product(birth: Birth) -> Cause | None:
    given = birth.attributes.get("dim")
    axes = None if given is None else [given]
    keepdims = int(bool(birth.attributes.get("keepdim")))
    named = as_op(birth, "ReduceProd", list(birth.inputs[:1]), axes=axes, keepdims=keepdims)
    return reductions.reduced_product(named)


def gamma(birth: Birth) -> Cause | None:
    """`lgamma`, `digamma` and `polygamma` have poles at 0 and at the negative integers."""
    x = birth.inputs[-1]
    poles = (x <= 0) & (x == np.floor(x))
    if not poles[spot(birth)]:
        return None
    found = counted(birth, len(birth.inputs) - 1, poles, "0 or a negative integer")
    return Cause("outside of the domain", f"{base_name(birth.op)} is infinite there: {found}", "")


def inverse_error(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    outside = np.abs(x) >= 1
    if not outside[spot(birth)]:
        return None
    return Cause("outside of the domain", counted(birth, 0, outside, "outside of (-1, 1)"), "")


def logit_backward(birth: Birth) -> Cause | None:
    x = birth.inputs[1]
    outside, eps = (x <= 0) | (x >= 1), birth.attributes.get("eps")
    if eps not in (None, 0) or not outside[spot(birth)]:
        return None
    found = counted(birth, 1, outside, "outside of (0, 1)")
    given = "" if eps is None else f" with eps={eps}"
    return Cause("outside of the domain", f"the derivative of logit is infinite there{given}: {found}", "")


def remainder(birth: Birth) -> Cause | None:
    pair = paired(birth)
    return None if pair is None else arithmetic.remainder(as_op(pair, "Mod"))


def of_matrix(birth: Birth) -> Cause | None:
    """The inverse, solution or determinant of a singular matrix."""
    return _singular(birth, birth.inputs[0], "")


def of_factors(birth: Birth) -> Cause | None:
    """`linalg_lu_solve`, whose first operand has both triangular factors."""
    return _singular(birth, np.triu(birth.inputs[0]), "the factor U of ")


def _singular(birth: Birth, matrices: Array, what: str) -> Cause | None:
    if not np.isfinite(matrices).all():
        return None
    index = () if birth.output.ndim < matrices.ndim - 2 else spot(birth)[: matrices.ndim - 2]
    matrix = matrices[index].astype(np.float64)
    # Rounding in the type of the matrix makes pivots 0.
    size, step = matrix.shape[-1], float(ml_dtypes.finfo(matrices.dtype).eps)
    rank = int(np.linalg.matrix_rank(matrix, tol=step * size * np.linalg.norm(matrix, 2)))
    if rank == size:
        return None
    name = part(birth, 0, [*index, slice(None), slice(None)])
    evidence = f"{what}{name} is singular: its rank is {rank} of {size}"
    if base_name(birth.op) == "_linalg_slogdet":
        return Cause("log of zero", f"{evidence}, so its determinant is 0", "")
    return Cause("division by zero", evidence, "")


def of_negative_determinant(birth: Birth) -> Cause | None:
    """`where` in `torch.logdet`, which selects NaN where the sign of a determinant is -1."""
    test = birth.makers[0] if birth.makers else None
    if test is None or test.op != "aten.eq.Scalar" or not test.of:
        return None
    sign = test.of[0]
    if birth.kind != "nan" or sign is None or sign.op != "aten._linalg_slogdet.default":
        return None
    negative = np.broadcast_to(birth.inputs[0], birth.output.shape)
    if not negative[spot(birth)]:
        return None
    evidence = f"the determinant of {sign.spelled(0)}{at(spot(birth))} is negative"
    if negative.size > 1:
        evidence += f"; {int(negative.sum())} of {negative.size} determinants are"
    return Cause("log of a negative number", evidence, "")


def triangular(birth: Birth) -> Cause | None:
    matrix = birth.inputs[0]
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    if birth.attributes.get("unitriangular") or not (diagonal == 0).any():
        return None
    place = [int(i) for i in np.argwhere(diagonal == 0)[0]]
    name = part(birth, 0, [*place, place[-1]])
    return Cause("division by zero", f"{name}, on the diagonal, is 0: the matrix is singular", "")
