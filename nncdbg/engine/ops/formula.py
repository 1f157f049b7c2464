"""Building blocks of formulas: graph text around statements, casts around narrow floats, operands by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nncdbg.dtypes import ONNX
from nncdbg.engine.ops.precision import NARROW
from nncdbg.engine.ops.types import Types, at
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType

LARGE = 1 << 26
"""Elements (256 MB of f32) above which a formula loops instead of computing all products at once."""


def type_at(types: Types, index: int) -> TensorType:
    """Return the type of an input of a formula; GraphError if it is unknown."""
    given = at(types, index)
    if given is None:
        raise GraphError(f"a formula needs the type of input {index}", hint="step to the statement first")
    return given


def sizes_at(types: Types, index: int) -> tuple[int, ...]:
    """Return the sizes of input `index`; GraphError if a size is not a number."""
    given = type_at(types, index)
    sizes = tuple(size for size in given.shape or () if isinstance(size, int))
    if given.shape is None or len(sizes) != len(given.shape):
        raise GraphError(f"a formula needs known sizes, got {given}", hint="step to the statement first")
    return sizes


def formula_text(
    name: str, inputs: Iterable[tuple[str, TensorType | None]], lines: Iterable[str], results: Sequence[str]
) -> str:
    """Return the text of a formula; an omitted input has the type None and is left out."""
    parameters = ", ".join(f"%{key}: {given}" for key, given in inputs if given is not None)
    body = "".join(f"  {line}\n" for line in lines)
    returned = ", ".join(f"%{key}" for key in results)
    return f"opset 21\n\ngraph @{name}({parameters}) -> ({returned}) {{\n{body}  return {returned}\n}}\n"


def wide_name(dtype: str) -> str:
    """Return the element type that a formula over `dtype` computes in."""
    return "f32" if dtype in NARROW else dtype


def cast(target: str, source: str, dtype: str) -> str:
    """Return the statement that casts a value of a formula to an element type."""
    return f"%{target} = Cast(%{source}, to={ONNX[dtype]})"


def in_precision(
    dtype: str, inputs: Sequence[str], lines: Sequence[str], outputs: Sequence[str], wide: str = ""
) -> list[str]:
    """Add casts around `lines`, which read `%name.wide` per input and write `%name.wide` per output.

    For f32, f64 and integers the suffix is removed; narrow floats are cast before and after the lines.
    `wide` is another element type to compute in.
    """
    wide = wide or wide_name(dtype)
    if wide == dtype:
        return [line.replace(".wide", "") for line in lines]
    into = [cast(f"{key}.wide", key, wide) for key in inputs]
    return [*into, *lines, *(cast(key, f"{key}.wide", dtype) for key in outputs)]


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
