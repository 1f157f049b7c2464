"""Parts shared by the formulas of onnxruntime's ops: named operands, attributes and axis orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nncdbg.engine.ops.formula import formula_text, in_precision, type_at
from nncdbg.engine.ops.types import Types, at


def formula(
    name: str, operands: Sequence[str], types: Types, lines: Sequence[str], results: Sequence[str] = ("y",)
) -> str:
    """Return graph text over operands that may be omitted; `lines` name values as they are."""
    pairs = [(key, at(types, index)) for index, key in enumerate(operands)]
    return formula_text(name, pairs, lines, results)


def wide_formula(
    name: str,
    operands: Sequence[str],
    types: Types,
    lines: Sequence[str],
    results: Sequence[str] = ("y",),
    *,
    like: int = 0,
    kept: Sequence[str] = (),
) -> str:
    """Return `formula`, computed in f32 if operand `like` is a narrow float.

    `lines` name the operands of that type, and the results, with the suffix: `%x.wide`, `%y.wide`; other
    operands, and the results in `kept`, have no suffix.
    """
    dtype = type_at(types, like).dtype
    given = [key for key, known in zip(operands, types, strict=False) if known and known.dtype == dtype]
    body = in_precision(dtype, given, lines, [key for key in results if key not in kept])
    return formula(name, operands, types, body, results)


def stated(attributes: Mapping[str, Any], names: Sequence[str]) -> str:
    """Format the given attributes with these names, as written after the operands of a call."""
    given = {key: attributes.get(key) for key in names}
    return "".join(f", {key}={_text(value)}" for key, value in given.items() if value is not None)


def _text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def channels_first(rank: int) -> list[int]:
    """Return the axis order that moves the last axis after the batch."""
    return [0, rank - 1, *range(1, rank - 1)]


def channels_last(rank: int) -> list[int]:
    """Return the axis order that moves the second axis to the end."""
    return [0, *range(2, rank), 1]


def activation_of(attributes: Mapping[str, Any]) -> tuple[str | None, Sequence[float | None]]:
    """Return the fused activation of FusedConv (a list of parameters) and FusedGemm (one attribute each)."""
    listed = attributes.get("activation_params")
    single = (attributes.get("activation_alpha"), attributes.get("activation_beta"))
    return attributes.get("activation"), listed or single
