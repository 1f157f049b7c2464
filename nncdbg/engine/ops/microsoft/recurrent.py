"""LSTM with 8-bit weights and operands that are quantized at each step."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gates import gates_of
from nncdbg.engine.ops.recurrent import (
    Cell,
    biases,
    directions_of,
    lstm_cell,
    over_directions,
    recurrent_types,
)
from nncdbg.engine.ops.types import Attributes, Types, at, shape_at, typed


def _types(attributes: Attributes, types: Types) -> Types:
    """The types of LSTM, with transposed weights."""
    turned = [_transposed(types, index) for index in (1, 2)]
    lstm = [at(types, 0), *turned, *types[3:8]]
    return recurrent_types(4, 3)(attributes, lstm)


def _transposed(types: Types, index: int) -> Any:
    shape = shape_at(types, index)
    return typed(at(types, 0), (shape[0], shape[2], shape[1]) if shape and len(shape) == 3 else None)


def requantized(xp: ModuleType, x: Any) -> Any:
    """Quantize and dequantize `x` by DynamicQuantizeLinear: 256 levels over a range that includes 0."""
    low, high = xp.minimum(x.min(), 0), xp.maximum(x.max(), 0)
    scale = ((high - low) / xp.float32(255)).astype(xp.float32)
    scale = xp.where(scale == 0, xp.float32(1), scale)
    zero = xp.clip(xp.rint(-low / scale), 0, 255)
    codes = xp.clip(xp.rint(x / scale) + zero, 0, 255)
    return ((codes - zero) * scale).astype(xp.float32)


def _dequantized(xp: ModuleType, weight: Any, scale: Any, zero: Any) -> Any:
    """Return a weight [directions, features, rows] in f32; scales are per direction, or also per row."""
    wide = weight.astype(xp.float32) - zero.astype(xp.float32).reshape(len(zero), 1, -1)
    return (wide * scale.reshape(len(scale), 1, -1)).astype(xp.float32)


@op("com.microsoft.DynamicQuantizeLSTM", infer=_types, outputs_count=True)
def dynamic_quantize_lstm(
    xp: ModuleType,
    x: Any,
    weight: Any,
    again: Any,
    bias: Any,
    lengths: Any,
    initial_h: Any,
    initial_c: Any,
    peepholes: Any,
    weight_scale: Any,
    weight_zero: Any,
    again_scale: Any,
    again_zero: Any,
    *,
    direction: str,
    input_forget: int,
    outputs_count: int,
    **attributes: Any,
) -> Any:
    """LSTM with weights [directions, features, 4 hidden] of 8 bits.

    x is quantized as a whole and h at each step, to 256 levels over their own range.
    """
    names, hidden = ["Sigmoid", "Tanh", "Tanh"], again.shape[1]
    gates = gates_of(attributes, names, len(directions_of(direction)))
    of_input = _dequantized(xp, weight, weight_scale, weight_zero).swapaxes(1, 2)
    of_state = _dequantized(xp, again, again_scale, again_zero)

    def cell_of(d: int) -> tuple[Any, Cell]:
        first, second = biases(xp, bias, d, x, 4 * hidden)
        looks = None if peepholes is None else peepholes[d].reshape(3, hidden)
        inner = lstm_cell(xp, gates[d], of_state[d], looks, coupled=bool(input_forget))

        def cell(product: Any, h: Any, c: Any) -> tuple[Any, ...]:
            return inner(product, requantized(xp, h), c)

        return first + second, cell

    initial = [initial_h, initial_c]
    return over_directions(
        xp,
        requantized(xp, x),
        of_input,
        lengths,
        initial,
        cell_of,
        direction=direction,
        layout=0,
        hidden=hidden,
    )[:outputs_count]
