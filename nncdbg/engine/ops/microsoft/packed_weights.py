"""Products with weights of 2, 4 or 8 bits, quantized in blocks of a row and packed into bytes."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import sizes_at, type_at
from nncdbg.engine.ops.microsoft.composing import wide_formula
from nncdbg.engine.ops.microsoft.quantizing import element_of
from nncdbg.engine.ops.types import Attributes, Types, at, normal_axis, shape_at, typed
from nncdbg.ir.records import Dim

_BITS = (2, 4, 8)


def unpacked(target: str, source: str, bits: int, shape: Sequence[int]) -> list[str]:
    """Compute `%target` in f32, of `shape`, from the bytes of `%source`; low bits of a byte first."""
    if bits not in _BITS:
        raise GraphError(f"{bits}-bit weights are not supported", hint="use bits=2, 4 or 8")
    whole = f"{target}_bytes"
    lines, parts = [f"%{whole} = Unsqueeze(%{source}, [-1])"], []
    for number in range(8 // bits):
        part = f"{target}_part{number}"
        shifted = whole
        if number:
            shifted = f"{part}_shifted"
            lines.append(f'%{shifted} = BitShift(%{whole}, {number * bits}, direction="RIGHT")')
        lines.append(f"%{part} = BitwiseAnd(%{shifted}, {2**bits - 1})")
        parts.append(f"%{part}")
    return [
        *lines,
        f"%{target}_codes = Concat({', '.join(parts)}, axis=-1)",
        f"%{target}_floats = Cast(%{target}_codes, to=1)",
        f"%{target} = Reshape(%{target}_floats, {list(shape)})",
    ]


def _product_types(attributes: Attributes, types: Types) -> Types:
    a, columns = shape_at(types, 0), attributes["N"]
    return [typed(at(types, 0), None if a is None else (*a[:-1], columns))]


@composite("com.microsoft.MatMulNBits", infer=_product_types)
def matmul_nbits(attributes: Attributes, types: Types) -> str:
    """A times the transpose of a weight [N, K] in blocks along K: (code - zero point) scale; plus a bias.

    Without zero points, the middle code is zero.  `g_idx` gives the block of each of the K columns.
    """
    names = ["a", "b", "scales", "zero_points", "g_idx", "bias"]
    if attributes["weight_prepacked"]:
        raise GraphError(
            "weight_prepacked=1 is not supported", hint="save the model without prepacked weights"
        )
    rows, depth, block, bits = (attributes[key] for key in ("N", "K", "block_size", "bits"))
    blocks = -(-depth // block)
    lines = [
        *unpacked("codes", "b", bits, [rows, blocks, -1]),
        *_zero_lines(types, bits, rows, blocks),
        f"%factors = Reshape(%scales.wide, {[rows, blocks, 1]})",
    ]
    if at(types, 4) is not None:
        lines += [
            f"%flat = Reshape(%codes, {[rows, -1]})",
            f"%columns = Slice(%flat, [0], [{depth}], [1])",
            "%zero_rows = Squeeze(%zeros, [2])",
            "%factor_rows = Squeeze(%factors, [2])",
            "%column_zeros = Gather(%zero_rows, %g_idx, axis=1)",
            "%column_factors = Gather(%factor_rows, %g_idx, axis=1)",
            "%centred = Sub(%columns, %column_zeros)",
            "%weight = Mul(%centred, %column_factors)",
        ]
    else:
        lines += [
            "%centred = Sub(%codes, %zeros)",
            "%scaled = Mul(%centred, %factors)",
            f"%flat = Reshape(%scaled, {[rows, -1]})",
            f"%weight = Slice(%flat, [0], [{depth}], [1])",
        ]
    return wide_formula("MatMulNBits", names, types, [*lines, *_weighted_lines(types, 5)])


def _weighted_lines(types: Types, bias: int) -> list[str]:
    """Compute `%y.wide` = a times the transpose of `%weight`, plus the bias."""
    summed = at(types, bias) is not None
    lines = [
        "%turned = Transpose(%weight, perm=[1, 0])",
        f"%{'product' if summed else 'y.wide'} = MatMul(%a.wide, %turned)",
    ]
    return [*lines, "%y.wide = Add(%product, %bias.wide)"] if summed else lines


def _zero_lines(types: Types, bits: int, rows: int, blocks: int) -> list[str]:
    """Compute `%zeros` [rows, blocks, 1], or broadcastable to it."""
    if at(types, 3) is None:
        return [f"%zeros: f32[1,1,1] = [[[{float(2 ** (bits - 1))}]]]"]
    if element_of(types, 3) != "u8":
        name = "zero_points.wide" if element_of(types, 3) == element_of(types, 0) else "zero_points"
        return [f"%zeros = Reshape(%{name}, {[rows, blocks, 1]})"]
    lines = unpacked("zero_codes", "zero_points", bits, [rows, -1])
    return [
        *lines,
        f"%zero_columns = Slice(%zero_codes, [0], [{blocks}], [1])",
        f"%zeros = Reshape(%zero_columns, {[rows, blocks, 1]})",
    ]


_FP4 = [0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
_NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


@composite("com.microsoft.MatMulBnb4", infer=_product_types)
def matmul_bnb4(attributes: Attributes, types: Types) -> str:
    """A times the transpose of a weight [N, K] of 4-bit floats (`quant_type` 0: FP4, 1: NF4).

    The weight is flat, in blocks with the largest magnitude of each; the high bits of a byte come first.
    """
    if not attributes["transB"]:
        raise GraphError("transB=0 is not supported", hint="export the model with transB=1")
    rows, depth, block = (attributes[key] for key in ("N", "K", "block_size"))
    table = _NF4 if attributes["quant_type"] == 1 else [*_FP4, *(-number for number in _FP4)]
    lines = [
        f"%table: f32[16] = {table}",
        '%high = BitShift(%b, 4, direction="RIGHT")',
        "%low = BitwiseAnd(%b, 15)",
        "%high_column = Unsqueeze(%high, [-1])",
        "%low_column = Unsqueeze(%low, [-1])",
        "%pairs = Concat(%high_column, %low_column, axis=-1)",
        f"%codes = Reshape(%pairs, {[-1]})",
        "%indices = Cast(%codes, to=7)",
        f"%used = Slice(%indices, [0], [{rows * depth}], [0])",
        "%values = Gather(%table, %used)",
        f"%factor_column = Reshape(%absmax.wide, {[-1, 1]})",
        f"%factor_rows = Expand(%factor_column, {[1, block]})",
        f"%factor_flat = Reshape(%factor_rows, {[-1]})",
        f"%factors = Slice(%factor_flat, [0], [{rows * depth}], [0])",
        "%scaled = Mul(%values, %factors)",
        f"%weight = Reshape(%scaled, {[rows, depth]})",
        *_weighted_lines(types, 3),
    ]
    return wide_formula("MatMulBnb4", ["a", "b", "absmax"], types, lines)


def _gathered_types(attributes: Attributes, types: Types) -> Types:
    data, indices, element = shape_at(types, 0), shape_at(types, 1), at(types, 2)
    if data is None or indices is None:
        return [typed(element, None)]
    axis = normal_axis(attributes["gather_axis"], len(data))
    whole: list[Dim] = list(data)
    if at(types, 0) is not None and element_of(types, 0) == "u8" and isinstance(whole[-1], int):
        whole[-1] *= 8 // attributes["bits"]
    return [typed(element, (*whole[:axis], *indices, *whole[axis + 1 :]))]


@composite("com.microsoft.GatherBlockQuantized", infer=_gathered_types)
def gather_block_quantized(attributes: Attributes, types: Types) -> str:
    """Gather from a table quantized in blocks along `quantize_axis`, dequantized.

    The table is in i4 or u4, or packed into u8 along its last axis, the low bits of a byte first.
    """
    names = ["data", "indices", "scales", "zero_points"]
    shape, scales = list(sizes_at(types, 0)), sizes_at(types, 2)
    bits, block, kind = attributes["bits"], attributes["block_size"], type_at(types, 0).dtype
    if kind not in ("u8", "i4", "u4"):
        raise GraphError(
            f"a table of type {kind} is not supported", hint="run the model with --backend onnxruntime"
        )
    packed = kind == "u8"
    if packed:
        shape[-1] *= 8 // bits
    axis = normal_axis(attributes["quantize_axis"], len(shape))
    lines = unpacked("codes", "data", bits, shape) if packed else ["%codes = Cast(%data, to=1)"]
    spread = [*shape[:axis], scales[axis] * block, *shape[axis + 1 :]]
    lines += _repeated("factors", "scales.wide", scales, axis, block, shape, spread)
    centred = "codes"
    if at(types, 3) is not None:
        lines += (
            unpacked("zero_codes", "zero_points", bits, [*sizes_at(types, 3)[:-1], -1])
            if packed
            else ["%zero_codes = Cast(%zero_points, to=1)"]
        )
        lines.append(f"%zero_used = Slice(%zero_codes, [0], [{scales[-1]}], [-1])")
        lines += _repeated("zeros", "zero_used", scales, axis, block, shape, spread)
        lines.append("%centred = Sub(%codes, %zeros)")
        centred = "centred"
    elif packed:
        lines.append(f"%centred = Sub(%codes, {float(2 ** (bits - 1))})")
        centred = "centred"
    lines += [
        f"%table = Mul(%{centred}, %factors)",
        f"%y.wide = Gather(%table, %indices, axis={attributes['gather_axis']})",
    ]
    return wide_formula("GatherBlockQuantized", names, types, lines, like=2)


def _repeated(
    target: str,
    source: str,
    sizes: Sequence[int],
    axis: int,
    block: int,
    shape: Sequence[int],
    spread: Sequence[int],
) -> list[str]:
    """Compute `%target` of `shape`: repeat each element of `%source` `block` times along `axis`."""
    inner = [*sizes[: axis + 1], block, *sizes[axis + 1 :]]
    return [
        f"%{target}_column = Unsqueeze(%{source}, [{axis + 1}])",
        f"%{target}_rows = Expand(%{target}_column, {inner})",
        f"%{target}_flat = Reshape(%{target}_rows, {list(spread)})",
        f"%{target} = Slice(%{target}_flat, [0], [{shape[axis]}], [{axis}])",
    ]
