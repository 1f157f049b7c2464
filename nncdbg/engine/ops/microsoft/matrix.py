"""Matrix products that onnxruntime fuses with transpositions, factors and activations."""

from __future__ import annotations

from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import type_at
from nncdbg.engine.ops.gates import activation_lines
from nncdbg.engine.ops.matrix import gemm_types, matmul_shape, matmul_types
from nncdbg.engine.ops.microsoft.composing import (
    activation_of,
    formula,
    stated,
    wide_formula,
)
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, shape_at, typed


def _order(rank: int, *, batch: bool, last: bool) -> list[int]:
    """Return the axis order: `batch` moves the first axis after the batch, `last` swaps the last two."""
    order = list(range(rank))
    if rank > 1 and batch:
        order = [*order[1:-1], 0, order[-1]]
    return [*order[:-2], order[-1], order[-2]] if rank > 1 and last else order


def _orders(attributes: Attributes, ranks: tuple[int, int]) -> list[list[int]]:
    return [
        _order(rank, batch=bool(attributes.get(f"transBatch{name}")), last=bool(attributes[f"trans{name}"]))
        for name, rank in zip("AB", ranks, strict=True)
    ]


def fused_types(attributes: Attributes, types: Types) -> Types:
    """The types of MatMul on the transposed operands."""
    a, b = shape_at(types, 0), shape_at(types, 1)
    if a is None or b is None:
        return [typed(at(types, 0), None)]
    orders = _orders(attributes, (len(a), len(b)))
    shapes: list[Shape] = [
        tuple(shape[axis] for axis in order) for shape, order in zip((a, b), orders, strict=True)
    ]
    return [typed(at(types, 0), matmul_shape(*shapes))]


def product_lines(attributes: Attributes, types: Types) -> list[str]:
    """Compute `%y.wide`: the operands transposed, multiplied, scaled."""
    orders = _orders(attributes, (len(type_at(types, 0).shape or ()), len(type_at(types, 1).shape or ())))
    lines, names = [], []
    for name, order in zip("ab", orders, strict=True):
        moved = order != sorted(order)
        names.append(f"%{name}_moved" if moved else f"%{name}.wide")
        if moved:
            lines.append(f"%{name}_moved = Transpose(%{name}.wide, perm={order})")
    alpha = attributes["alpha"]
    product = "%y.wide" if alpha == 1 else "%product"
    lines.append(f"{product} = MatMul({', '.join(names)})")
    return lines if alpha == 1 else [*lines, f"%y.wide = Mul(%product, {alpha})"]


@composite("com.microsoft.FusedMatMul", infer=fused_types)
def fused_matmul(attributes: Attributes, types: Types) -> str:
    """alpha A B, with the last two axes of A and B swapped if `transA` and `transB` are set.

    `transBatchA` and `transBatchB` first move the first axis after the other batch axes.
    """
    return wide_formula("FusedMatMul", ["a", "b"], types, product_lines(attributes, types))


@composite("com.microsoft.TransposeMatMul", infer=fused_types)
def transpose_matmul(attributes: Attributes, types: Types) -> str:
    """alpha A B, with the last two axes of A and B swapped if `transA` and `transB` are set."""
    return wide_formula("TransposeMatMul", ["a", "b"], types, product_lines(attributes, types))


@composite("com.microsoft.FusedGemm", infer=gemm_types)
def fused_gemm(attributes: Attributes, types: Types) -> str:
    """Gemm, then an activation."""
    names = ["a", "b", "c"]
    given = [f"%{name}" for index, name in enumerate(names) if at(types, index) is not None]
    own = stated(attributes, ("alpha", "beta", "transA", "transB"))
    name, parameters = activation_of(attributes)
    lines = [
        f"%product = Gemm({', '.join(given)}{own})",
        *activation_lines(name, "%product", "%y", parameters),
    ]
    return formula("FusedGemm", names, types, lines)


@composite("com.microsoft.GemmFastGelu", infer=matmul_types)
def gemm_fast_gelu(attributes: Attributes, types: Types) -> str:
    """FastGelu(X W + bias)."""
    lines = ["%product = MatMul(%x, %weight)"]
    summed = at(types, 2) is not None
    lines += ["%sum = Add(%product, %bias)"] if summed else []
    lines.append(f'%y = Gelu(%{"sum" if summed else "product"}, approximate="tanh")')
    return formula("GemmFastGelu", ["x", "weight", "bias"], types, lines)
