"""Matrix products: MatMul, Gemm, Einsum, Det and the 8-bit MatMulInteger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from nncdbg.engine.ops import gradient as gradients
from nncdbg.engine.ops import remarks
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.formula import LARGE, formula, in_precision, sizes_at, type_at, wide_formula
from nncdbg.engine.ops.influence import PRODUCT, PRODUCT_AND_SUM, Application, Influence, Marked, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    agree,
    at,
    broadcast_dims,
    broadcast_shapes,
    einsum_terms,
    fixed,
    need_rank,
    same_as,
    shape_at,
    shaped,
    typed,
)
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim


def matmul_shape(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> tuple[Dim, ...] | None:
    """Return the shape of NumPy's matmul: the last two axes are matrices, a vector is a row or a column."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise GraphError("matrix multiplication does not accept a scalar", hint="use Mul")
    inner = b[-2] if len(b) > 1 else b[0]
    agree(a[-1], inner, f"a has {a[-1]} columns, but b has {inner} rows", 1)
    batch = broadcast_shapes([tuple(a[:-2]), tuple(b[:-2])])
    assert batch is not None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def product_shape(attributes: Attributes, inputs: Types) -> Shape | None:
    return matmul_shape(shape_at(inputs, 0), shape_at(inputs, 1))


matmul_types = shaped(product_shape)


def matmul_formula(attributes: Attributes, inputs: Types) -> str:
    """All products of a row with a column, then their sum; a loop over the inner axis if there are many."""
    a, b = sizes_at(inputs, 0), sizes_at(inputs, 1)
    shape = matmul_shape(a, b)
    assert shape is not None
    products = math.prod(size for size in shape if isinstance(size, int)) * a[-1]
    looped = products > LARGE and len(a) > 1 and len(b) > 1
    lines = looped_lines(list(shape)) if looped else product_lines(len(a), len(b))
    body = in_precision(type_at(inputs, 0).dtype, ["a", "b"], lines, ["y"])
    if looped:
        body.insert(0, f"%depth: i64[] = {a[-1]}")
    return formula("MatMul", ["a", "b"], inputs, body)


def product_lines(left_rank: int, right_rank: int) -> list[str]:
    """Compute the products [..., M, K, N], summed over K; a vector has no M or N."""
    lines, left, right, axis = [], "%a.wide", "%b.wide", -2
    if right_rank == 1:
        axis = -1
    elif left_rank == 1:
        left = "%rows"
        lines.append("%rows = Unsqueeze(%a.wide, [1])")
    else:
        left, right = "%rows", "%columns"
        lines += ["%rows = Unsqueeze(%a.wide, [-1])", "%columns = Unsqueeze(%b.wide, [-3])"]
    return [
        *lines,
        f"%products = Mul({left}, {right})",
        f"%y.wide = ReduceSum(%products, [{axis}], keepdims=0)",
    ]


def looped_lines(shape: list[Dim]) -> list[str]:
    """Compute the sum over K of a column of a times a row of b, one at a time."""
    return [
        "%zero = CastLike(0, %a.wide)",
        f"%none = Expand(%zero, {shape})",
        "while @inner (%sum = %none) count %k: i64[] times %depth {",
        "  %column = Gather(%a.wide, %k, axis=-1)",
        "  %row = Gather(%b.wide, %k, axis=-2)",
        "  %upright = Unsqueeze(%column, [-1])",
        "  %level = Unsqueeze(%row, [-2])",
        "  %products = Mul(%upright, %level)",
        "  %next = Add(%sum, %products)",
        "  next %sum = %next",
        "} -> (%y.wide = %sum)",
    ]


def _inner(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> int:
    """Return the axis shared by two matrices: [M, K] and [K, N], or transposed, with result [M, N]."""
    return round(math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / max(1, math.prod(result))))


def _in_order(xp: ModuleType, array: Any) -> Any:
    """Return the array with its elements in C order in memory.

    Libraries round a product of transposed matrices differently, and whether a result of Transpose is a view
    or a copy depends on the allocator.
    """
    return array if array.flags.c_contiguous else xp.ascontiguousarray(array)


@op(
    "MatMul",
    since=1,
    infer=matmul_types,
    formula=matmul_formula,
    accepts_out=True,
    vjp=gradients.matmul,
    influence=PRODUCT,
    terms=lambda shapes, result: int(shapes[0][-1]),
    unit_axis=-1,
    cause="sums.matmul",
    remark=remarks.products,
    zeros="pointwise.underflow",
)
def matmul(xp: ModuleType, a: Any, b: Any, *, out: Any = None) -> Any:
    """The product of matrices in the last two axes, broadcast over the others.

    f16 and bf16 are summed in f32.  ONNX MatMul since 1.
    """
    left, right = _in_order(xp, widened(xp, a)), _in_order(xp, widened(xp, b))
    if out is not None and out.dtype == left.dtype:
        return xp.matmul(left, right, out=out)
    return settled(xp, xp.matmul(left, right), a.dtype, out)


@op(
    "MatMulInteger",
    since=10,
    infer=fixed("i32", product_shape),
    influence=PRODUCT,
    unit_axis=-1,
)
def matmul_integer(xp: ModuleType, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """MatMul of 8-bit integers, less their zero points (one, or one per row of a and column of b), in i32.

    Computed in f64, which represents every such sum exactly.
    """
    left, right = a.astype(xp.float64), b.astype(xp.float64)
    if a_zero is not None:
        left = left - (a_zero[:, None] if a_zero.ndim == 1 and a_zero.size > 1 else a_zero)
    if b_zero is not None:
        right = right - b_zero
    return xp.asarray(xp.matmul(left, right)).astype(xp.int32)


# Gemm -----------------------------------------------------------------------------------------


def gemm_types(attributes: Attributes, inputs: Types) -> Types:
    """[M, N]; C broadcasts to it."""
    a, b, c = shape_at(inputs, 0), shape_at(inputs, 1), shape_at(inputs, 2)
    need_rank(inputs, 0, "A", 2, 2)
    need_rank(inputs, 1, "B", 2, 2)
    need_rank(inputs, 2, "C", 0, 2)
    rows, inner = (None, None) if a is None else reversed(a) if attributes["transA"] else a
    depth, columns = (None, None) if b is None else reversed(b) if attributes["transB"] else b
    agree(inner, depth, f"A has {inner} columns, B has {depth} rows", 1)
    if c is not None:
        padded = (1,) * (2 - len(c)) + c
        for axis, (size, wanted) in enumerate(zip(padded, (rows, columns), strict=True)):
            if size != 1:
                agree(wanted, size, f"C has {size} {('rows', 'columns')[axis]}, the product has {wanted}", 2)
    return [typed(at(inputs, 0), (rows, columns))]


def gemm_formula(attributes: Attributes, inputs: Types) -> str:
    """Transpose, MatMul, Mul, Add, as far as the attributes require them."""
    alpha, beta, given = attributes["alpha"], attributes["beta"], at(inputs, 2)
    left, right, lines = "%a.wide", "%b.wide", []
    if attributes["transA"]:
        left = "%at"
        lines.append("%at = Transpose(%a.wide, perm=[1, 0])")
    if attributes["transB"]:
        right = "%bt"
        lines.append("%bt = Transpose(%b.wide, perm=[1, 0])")
    steps = [f"MatMul({left}, {right})"]
    if alpha != 1:
        steps.append(f"Mul({{}}, {alpha})")
    if given is not None:
        offset = "%c.wide" if beta == 1 else "%offset"
        if beta != 1:
            lines.append(f"%offset = Mul(%c.wide, {beta})")
        steps.append(f"Add({{}}, {offset})")
    names = [*("%product", "%scaled")[: len(steps) - 1], "%y.wide"]
    for number, (name, step) in enumerate(zip(names, steps, strict=True)):
        lines.append(f"{name} = {step.format(names[number - 1])}")
    return wide_formula("Gemm", ["a", "b", "c"], inputs, lines)


@op(
    "Gemm",
    since=7,
    infer=gemm_types,
    formula=gemm_formula,
    accepts_out=True,
    vjp=gradients.gemm,
    influence=PRODUCT_AND_SUM,
    terms=_inner,
    unit_axis=-1,
    cause="sums.gemm",
    remark=remarks.products,
    zeros="pointwise.underflow",
)
def gemm(
    xp: ModuleType,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float,
    beta: float,
    transA: int,  # noqa: N803 - ONNX's names
    transB: int,  # noqa: N803
    out: Any = None,
) -> Any:
    """alpha A B + beta C, with A and B optionally transposed; C broadcasts.  ONNX Gemm since 7."""
    left, right, offset = _in_order(xp, widened(xp, a)), _in_order(xp, widened(xp, b)), widened(xp, c)
    left, right = left.T if transA else left, right.T if transB else right
    if left.dtype.kind in "iu":
        # Integer factors are applied in the integers' own type; others use f64 and truncate.
        by, share = (int(factor) if factor == int(factor) else factor for factor in (alpha, beta))
        result = xp.matmul(left, right) * by if by != 1 else xp.matmul(left, right)
        if offset is not None:
            result = result + (offset * share if share != 1 else offset)
        return settled(xp, result, a.dtype, out)
    target = out if out is not None and out.dtype == left.dtype else None
    result = xp.matmul(left, right, out=target)
    if alpha != 1:
        result *= alpha
    if offset is not None:
        result += offset if beta == 1 else beta * offset
    return settled(xp, result, a.dtype, out)


@other_version("Gemm", 1)
def gemm_with_broadcast(xp: ModuleType, a: Any, b: Any, c: Any, *, broadcast: int, **attributes: Any) -> Any:
    """Gemm before opset 7; `broadcast` allows a C smaller than the product."""
    return gemm(xp, a, b, c, **attributes)


# Einsum, Det ----------------------------------------------------------------------------------


def einsum_types(attributes: Attributes, inputs: Types) -> Types:
    """Each letter has one size; the axes of the ellipsis broadcast."""
    terms, right = einsum_terms(attributes["equation"], len(inputs))
    sizes: dict[str, Dim] = {}
    ellipsis: tuple[Dim, ...] | None = ()
    for term, given in zip(terms, inputs, strict=True):
        if given is None or given.shape is None:
            ellipsis = None if "." in term else ellipsis
            continue
        covered = _cover(term, given.shape)
        if ellipsis is not None:
            ellipsis = broadcast_shapes([ellipsis, covered.pop(".", ())])
        for letter, size in covered.items():
            sizes[letter] = broadcast_dims(sizes.get(letter, size[0]), size[0])
    if ellipsis is None and "." in right:
        return [typed(at(inputs, 0), None)]
    shape: list[Dim] = []
    for letter in right:
        shape.extend(ellipsis or () if letter == "." else (sizes.get(letter),))
    return [typed(at(inputs, 0), tuple(shape))]


def _cover(term: str, shape: tuple[Dim, ...]) -> dict[str, tuple[Dim, ...]]:
    """Return the sizes of each letter of a term, and of its ellipsis."""
    letters = term.replace(".", "")
    extra = len(shape) - len(letters)
    if extra < 0 or (extra and "." not in term):
        raise GraphError(
            f"the term {term.replace('.', '...')!r} does not match an input of {len(shape)} axes"
        )
    covered: dict[str, tuple[Dim, ...]] = {".": ()}
    place = 0
    for letter in term:
        width = extra if letter == "." else 1
        size = shape[place : place + width]
        if letter in covered and letter != ".":
            agree(
                covered[letter][0],
                size[0],
                f"the sizes of {letter!r} differ: {covered[letter][0]} and {size[0]}",
            )
        covered[letter] = size
        place += width
    return covered


def _einsum_remark(statement: remarks.Evaluated) -> str:
    terms, _ = einsum_terms(statement.attributes["equation"], len(statement.inputs))
    sizes: dict[str, Sequence[Dim]] = {}
    for term, each in zip(terms, statement.inputs, strict=True):
        sizes |= _cover(term, each.shape)
    all_terms = math.prod(size for each in sizes.values() for size in each if isinstance(size, int))
    return remarks.all_terms(replace(statement, terms=all_terms // max(1, statement.result.size)))


@op(
    "Einsum",
    since=12,
    infer=einsum_types,
    vjp=gradients.einsum,
    influence=probed(every=True),
    cause="sums.einsum",
    remark=_einsum_remark,
)
def einsum(xp: ModuleType, *inputs: Any, equation: str) -> Any:
    """Sums of products by Einstein's convention: ``ij,jk->ik``.  ONNX Einsum since 12."""
    terms, right = einsum_terms(equation, len(inputs))
    explicit = f"{','.join(terms)}->{right}".replace(".", "...")
    wide = [widened(xp, each) for each in inputs]
    return settled(xp, xp.einsum(explicit, *wide, optimize=len(inputs) > 1), inputs[0].dtype)


def _matrix_influence(application: Application) -> Sequence[Marked]:
    return [application.marked[0].any(axis=(-2, -1))]


_MATRIX = Influence("the result of the matrix that contains the element", _matrix_influence)


def det_types(attributes: Attributes, inputs: Types) -> Types:
    """The leading axes of x; the last two are square."""
    need_rank(inputs, 0, "input", 2)
    x = shape_at(inputs, 0)
    if x is not None:
        agree(x[-2], x[-1], f"a matrix of {x[-2]} rows and {x[-1]} columns has no determinant")
    return [typed(at(inputs, 0), None if x is None else x[:-2])]


@op("Det", since=11, infer=det_types, vjp=gradients.determinant, influence=_MATRIX, cause="sums.determinant")
def det(xp: ModuleType, x: Any) -> Any:
    """The determinant of the matrices in the last two axes."""
    return settled(xp, xp.linalg.det(widened(xp, x)), x.dtype)


@op("nncdbg.Cofactors", infer=same_as(0), vjp=gradients.cofactors, influence=probed(0))
def cofactors(xp: ModuleType, x: Any) -> Any:
    """The derivative of Det: the matrices of cofactors of the matrices in the last two axes.

    By the singular values, so that a singular matrix has cofactors, too.  NaN for one that is not finite.
    """
    wide, n = widened(xp, x), x.shape[-1]
    finite = xp.isfinite(wide).all(axis=(-2, -1), keepdims=True)
    # LAPACK may not return from a matrix with NaN or Inf.
    left, sizes, right = xp.linalg.svd(xp.where(finite, wide, wide.dtype.type(0)))
    others = xp.where(xp.eye(n, dtype=bool), sizes.dtype.type(1), sizes[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(left) * xp.linalg.det(right)
    result = sign[..., None, None] * xp.matmul(left * others[..., None, :], right)
    return settled(xp, xp.where(finite, result, result.dtype.type(xp.nan)), x.dtype)
