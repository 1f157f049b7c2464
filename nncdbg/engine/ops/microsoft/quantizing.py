"""Lines that the formulas of quantized ops share.  They round like onnxruntime's CPU kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nncdbg.engine.dtypes import NUMPY, ONNX
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.formula import cast, sizes_at, type_at
from nncdbg.engine.ops.types import Types, at
from nncdbg.ir.records import TensorType


def scalar(target: str, types: Types, index: int, source: str) -> str:
    """Compute `%target`: the single element of operand `index`, without axes."""
    if math.prod(sizes_at(types, index)) != 1:
        raise GraphError(f"{source} has shape {list(sizes_at(types, index))}, expected one element")
    return f"%{target} = Squeeze(%{source})" if sizes_at(types, index) else f"%{target} = Identity(%{source})"


def scalars(types: Types, first: int, names: Sequence[str]) -> list[str]:
    """Compute `%name_one` for each given operand from `first` on."""
    present = [(index, name) for index, name in enumerate(names, first) if name and at(types, index)]
    return [scalar(f"{name}_one", types, index, name) for index, name in present]


def shifted(target: str, source: str, dtype: str, zero: str | None) -> list[str]:
    """Compute `%target` = source - zero, in `dtype`, which can represent both."""
    if zero is None:
        return [cast(target, source, dtype)]
    return [
        cast(f"{target}_from", source, dtype),
        cast(f"{target}_zero", zero, dtype),
        f"%{target} = Sub(%{target}_from, %{target}_zero)",
    ]


def dequantized(target: str, source: str, scale: str, zero: str | None) -> str:
    """Compute `%target` = (source - zero) scale."""
    operands = [source, scale, *([zero] if zero is not None else [])]
    return f"%{target} = DequantizeLinear({', '.join(f'%{name}' for name in operands)})"


def quantized(target: str, source: str, scale: str, zero: str | None, dtype: str) -> str:
    """Compute `%target` = round(source / scale) + zero, saturated to `dtype`."""
    if zero is not None:
        return f"%{target} = QuantizeLinear(%{source}, %{scale}, %{zero})"
    return f"%{target} = QuantizeLinear(%{source}, %{scale}, output_dtype={ONNX[dtype]})"


def limits(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest value of an 8-bit or 16-bit integer type."""
    info = np.iinfo(NUMPY[dtype])
    return int(info.min), int(info.max)


def saturated(target: str, source: str, dtype: str) -> list[str]:
    """Compute `%target` in `dtype` from an integral f32."""
    low, high = limits(dtype)
    return [f"%{target}_cut = Clip(%{source}, {low}.0, {high}.0)", cast(target, f"{target}_cut", dtype)]


def requantized(
    target: str, product: str, ratio: str, zero: str | None, dtype: str, *, zero_first: bool = False
) -> list[str]:
    """Compute `%target` = round(product ratio) + zero, saturated.

    `product` is an i32, `ratio` an f32; `zero_first` adds the zero before rounding.
    """
    real, scaled, whole = f"{target}_real", f"{target}_scaled", f"{target}_whole"
    lines = [cast(real, product, "f32"), f"%{scaled} = Mul(%{real}, %{ratio})"]
    if zero is None:
        return [*lines, f"%{whole} = Round(%{scaled})", *saturated(target, whole, dtype)]
    shift, moved = f"{target}_shift", f"{target}_moved"
    lines.append(cast(shift, zero, "f32"))
    if zero_first:
        lines += [f"%{moved} = Add(%{scaled}, %{shift})", f"%{whole} = Round(%{moved})"]
        return [*lines, *saturated(target, whole, dtype)]
    lines += [f"%{whole} = Round(%{scaled})", f"%{moved} = Add(%{whole}, %{shift})"]
    return [*lines, *saturated(target, moved, dtype)]


def given(types: Types, index: int, name: str) -> str | None:
    """Return `name`, or None if operand `index` is not given."""
    return name if at(types, index) is not None else None


def element_of(types: Types, index: int) -> str:
    """Return the element type of an operand."""
    known: TensorType = type_at(types, index)
    return known.dtype
