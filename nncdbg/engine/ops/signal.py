"""STFT, which runs its formula, and the gradient rule of DFT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import formula_text, in_precision, type_at
from nncdbg.engine.ops.gradient import Applied, Emit, cast_like, fitted_like, number, shape_of
from nncdbg.engine.ops.onnx_schemas import types_by_onnx
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank
from nncdbg.errors import GraphError
from nncdbg.ir.records import Attribute, Literal, Operand, TensorType


def _stft_types(attributes: Attributes, types: Types) -> Any:
    need_rank(types, 0, "signal, which needs the shape [batch, length, 1] or [batch, length, 2],", 2, 3)
    signal = at(types, 0)
    if signal is not None and signal.shape is not None and len(signal.shape) == 3:
        parts = signal.shape[2]
        if isinstance(parts, int) and parts not in (1, 2):
            raise GraphError(
                f"the signal has {parts} numbers per sample",
                hint="use the shape [batch, length, 1], or [batch, length, 2] for complex numbers",
                operand=0,
            )
    elif signal is not None and signal.shape is not None and len(signal.shape) == 2:
        # Exporters of PyTorch omit the last axis of a real signal.
        signal = TensorType(signal.dtype, (*signal.shape, 1))
    return types_by_onnx("STFT", 17)(attributes, [signal, *types[1:]])


@composite("STFT", since=17, infer=_stft_types, contract=contracts.frame_step)
def stft_formula(attributes: Attributes, inputs: Types) -> str:
    """Frames of the signal, multiplied by the window, and their DFT."""
    signal, window = type_at(inputs, 0), at(inputs, 2)
    lines = ["%sizes = Shape(%signal)", "%time = Gather(%sizes, 1)", "%step = Cast(%frame_step, to=7)"]
    if at(inputs, 3) is not None:
        lines.append("%length = Cast(%frame_length, to=7)")
    else:
        lines.append("%length = Identity(%time)" if window is None else "%length = Size(%window)")
    lines += [
        "%room = Sub(%time, %length)",
        "%more = Div(%room, %step)",
        "%frames = Add(%more, 1)",
        "%numbers = Range(0, %frames, 1)",
        "%starts = Mul(%numbers, %step)",
        "%column = Unsqueeze(%starts, [1])",
        "%offsets = Range(0, %length, 1)",
        "%places = Add(%column, %offsets)",
    ]
    body = ["%framed.wide = Gather(%parts.wide, %places, axis=1)"]
    shape = signal.shape or ()
    whole = "Unsqueeze(%signal.wide, [2])" if len(shape) == 2 else "Identity(%signal.wide)"
    body.insert(0, f"%parts.wide = {whole}")
    last = "%framed.wide"
    if window is not None:
        body += [
            "%weights.wide = Unsqueeze(%window.wide, [1])",
            "%weighted.wide = Mul(%framed.wide, %weights.wide)",
        ]
        last = "%weighted.wide"
    # The default axis of DFT is 1 until opset 19 and then -2: the same axis of a tensor with three axes.
    body += [
        "%inner = Shape(%framed.wide, start=2)",
        "%flat = Concat([-1], %inner, axis=0)",
        f"%rows.wide = Reshape({last}, %flat)",
        f"%spectra.wide = DFT(%rows.wide, onesided={attributes['onesided']})",
        "%outer = Shape(%framed.wide, end=2)",
        "%bins = Shape(%spectra.wide, start=1)",
        "%whole = Concat(%outer, %bins, axis=0)",
        "%y.wide = Reshape(%spectra.wide, %whole)",
    ]
    floats = ["signal", "window"] if window is not None else ["signal"]
    names = ("signal", "frame_step", "window", "frame_length")
    text = [*lines, *in_precision(signal.dtype, floats, body, ["y"])]
    return formula_text("STFT", zip(names, inputs, strict=False), text, ["y"])


def transformed(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The transform in the other direction, multiplied by the length, or for an inverse divided by it.

    A real operand takes the real part; a longer or shorter one, the elements that were transformed.
    """
    inverse, onesided = at.attributes["inverse"], at.attributes["onesided"]
    # The transformed axis is an attribute until opset 19, then an operand with the default -2.
    along = at.operand(2)
    if "axis" in at.attributes:
        along = Literal(at.attributes["axis"])
    elif along is None:
        along = Literal(-2)
    length = at.operand(1)
    if length is None:
        length = emit("Gather", shape_of(emit, at.d if inverse else at.x), along)
    given: dict[str, Attribute] = {"axis": at.attributes["axis"]} if "axis" in at.attributes else {}
    axis = () if at.operand(2) is None else (at.operand(2),)
    if inverse and onesided:
        given["onesided"] = 1
    elif not inverse:
        given["inverse"] = 1
    back = emit("DFT", at.d, length, *axis, **given)
    count = number(length.data) if isinstance(length, Literal) else cast_like(emit, length, at.d)
    back = emit("Div" if inverse else "Mul", back, count)
    if inverse and onesided:
        back = emit("Mul", back, _multiplicity(emit, back, along, count))
    return (fitted_like(emit, back, at.x),)


def _multiplicity(emit: Emit, half: str, axis: Operand, length: Operand) -> str:
    """Emit how often each number of a half spectrum occurs in the whole: once at both ends, else twice."""
    ones = emit("nncdbg.FullLike", half, value=1.0)
    places = emit("CumSum", ones, axis, exclusive=1)
    last = emit("Equal", emit("Mul", places, number(2)), length)
    once = emit("Or", emit("Equal", places, number(0)), last)
    return emit("Where", once, ones, emit("Add", ones, ones))
