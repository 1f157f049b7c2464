"""The formula of STFT."""

from __future__ import annotations

from nncdbg.engine.ops.formula import formula_text, in_precision, type_at
from nncdbg.engine.ops.types import Attributes, Types, at


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
    body = ["%framed.wide = Gather(%signal.wide, %places, axis=1)"]
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
