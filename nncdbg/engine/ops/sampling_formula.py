"""GridSample as graph text: indices and weights along each axis, and one gather of all neighbors."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.ops.formula import cast, formula_text, sizes_at, type_at, wide_name
from nncdbg.engine.ops.types import Attributes, Types

CUBIC = -0.75
"""The free parameter of Keys' kernel, as in PyTorch."""

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Mode names of opset 16."""

_OFFSETS = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}


def grid_sample_formula(attributes: Attributes, inputs: Types) -> str:
    """Return the formula of GridSample for an image [N, C, *sizes] and a grid [N, *points, axes]."""
    (batch, channels, *sizes), grid = sizes_at(inputs, 0), sizes_at(inputs, 1)
    name: str = attributes["mode"]
    mode = MODES.get(name, name)
    zeros = attributes["padding_mode"] == "zeros"
    neighbors = len(_OFFSETS[mode]) ** len(sizes)
    lines = [
        cast("image", "X", wide_name(type_at(inputs, 0).dtype)),
        cast("wide_grid", "grid", wide_name(type_at(inputs, 1).dtype)),
        f"%points = Reshape(%wide_grid, {[batch, -1, len(sizes)]})",
    ]
    for axis, size in enumerate(sizes):
        lines += _axis_lines(str(axis), len(sizes) - 1 - axis, size, mode, attributes)
    lines += _joined_lines(sizes, zeros)
    points = 1
    for size in grid[1:-1]:
        points *= size
    lines += [
        f"%flat = Reshape(%image, {[batch, channels, -1]})",
        f"%row = Reshape(%place, {[batch, 1, -1]})",
        f"%rows = Expand(%row, {[batch, channels, points * neighbors]})",
        "%found = GatherElements(%flat, %rows, axis=2)",
        f"%{'all' if zeros else 'kept'} = Reshape(%found, {[batch, channels, points, neighbors]})",
        *(["%where = Unsqueeze(%inside, [1])", "%kept = Where(%where, %all, 0)"] if zeros else []),
        "%typed = CastLike(%weight, %image)",
        "%shares = Unsqueeze(%typed, [1])",
        "%products = Mul(%kept, %shares)",
        "%sums = ReduceSum(%products, [3], keepdims=0)",
        f"%wide = Reshape(%sums, {[batch, channels, *grid[1:-1]]})",
        cast("Y", "wide", type_at(inputs, 0).dtype),
    ]
    return formula_text("GridSample", zip(("X", "grid"), inputs, strict=True), lines, ["Y"])


def _axis_lines(a: str, column: int, size: int, mode: str, attributes: Attributes) -> list[str]:
    """Compute `%i`, `%w` and `%in` [N, points, neighbors]: indices, weights, and which elements exist."""
    align, padding = bool(attributes["align_corners"]), attributes["padding_mode"]
    scale = (size - 1) / 2 if align else size / 2
    lines = [
        f"%g{a} = Gather(%points, {column}, axis=2)",
        f"%right{a} = Add(%g{a}, 1)",
        f"%{'at' if align else 'scaled'}{a} = Mul(%right{a}, {scale})",
        *([] if align else [f"%at{a} = Sub(%scaled{a}, 0.5)"]),
    ]
    source = f"at{a}"
    if mode == "nearest":
        lines.append(f"%near{a} = Round(%at{a})")
        source = f"near{a}"
    limits = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    clips_neighbors = (mode, padding) == ("cubic", "border")
    lines += _inward_lines(f"x{a}", source, size, "zeros" if clips_neighbors else padding, limits)
    whole = "Round" if mode == "nearest" else "Floor"
    lines += [
        f"%base{a} = {whole}(%x{a})",
        f"%part{a} = Sub(%x{a}, %base{a})",
        f"%left{a} = Unsqueeze(%base{a}, [2])",
        f"%inner{a} = Unsqueeze(%part{a}, [2])",
        f"%each{a} = Add(%left{a}, {_OFFSETS[mode]})",
        f"%off{a} = Sub(%inner{a}, {_OFFSETS[mode]})",
        f"%t{a} = Abs(%off{a})",
        *_weight_lines(a, mode),
    ]
    return [*lines, *_index_lines(a, size, padding, limits)]


def _inward_lines(target: str, source: str, size: int, padding: str, limits: Sequence[float]) -> list[str]:
    """Compute `target`: coordinates, moved into the image by the padding mode."""
    low, high = limits
    if padding == "zeros":
        return [f"%{target} = Identity(%{source})"]
    if padding == "border":
        inward = [f"%{target}.moved = Clip(%{source}, 0, {size - 1})"]
    elif high == low:
        inward = [
            f"%{target}.none = Sub(%{source}, %{source})",
            f"%{target}.moved = Add(%{target}.none, {low})",
        ]
    else:
        span = high - low
        inward = [
            f"%{target}.from = Sub(%{source}, {low})",
            f"%{target}.size = Abs(%{target}.from)",
            f"%{target}.away = Mod(%{target}.size, {2 * span}, fmod=1)",
            f"%{target}.back = Sub({2 * span}, %{target}.away)",
            f"%{target}.far = Greater(%{target}.away, {span})",
            f"%{target}.near = Where(%{target}.far, %{target}.back, %{target}.away)",
            f"%{target}.moved = Add(%{target}.near, {low})",
        ]
    return [
        *inward,
        f"%{target}.before = Less(%{source}, {low})",
        f"%{target}.after = Greater(%{source}, {high})",
        f"%{target}.outside = Or(%{target}.before, %{target}.after)",
        f"%{target} = Where(%{target}.outside, %{target}.moved, %{source})",
    ]


def _weight_lines(a: str, mode: str) -> list[str]:
    """Compute `%w` from the distances `%t` to the neighbors; the kernel of Keys for cubic."""
    if mode == "nearest":
        return [f"%none{a} = Sub(%t{a}, %t{a})", f"%w{a} = Add(%none{a}, 1)"]
    if mode == "linear":
        return [f"%w{a} = Sub(1, %t{a})"]
    return [
        f"%n1{a} = Mul(%t{a}, {CUBIC + 2})",
        f"%n2{a} = Sub(%n1{a}, {CUBIC + 3})",
        f"%square{a} = Mul(%t{a}, %t{a})",
        f"%n3{a} = Mul(%n2{a}, %square{a})",
        f"%near.w{a} = Add(%n3{a}, 1)",
        f"%f1{a} = Sub(%t{a}, 5)",
        f"%f2{a} = Mul(%f1{a}, %t{a})",
        f"%f3{a} = Add(%f2{a}, 8)",
        f"%f4{a} = Mul(%f3{a}, %t{a})",
        f"%f5{a} = Sub(%f4{a}, 4)",
        f"%far.w{a} = Mul(%f5{a}, {CUBIC})",
        f"%close{a} = LessOrEqual(%t{a}, 1)",
        f"%w{a} = Where(%close{a}, %near.w{a}, %far.w{a})",
    ]


def _index_lines(a: str, size: int, padding: str, limits: Sequence[float]) -> list[str]:
    """Compute `%i`: indices in range, and for zeros `%in`."""
    lines, source = [], f"each{a}"
    if padding == "reflection":
        lines = _inward_lines(f"again{a}", source, size, padding, limits)
        source = f"again{a}"
    if padding == "zeros":
        lines += [
            f"%reaches{a} = GreaterOrEqual(%{source}, 0)",
            f"%ends{a} = Less(%{source}, {size})",
            f"%in{a} = And(%reaches{a}, %ends{a})",
        ]
    return [
        *lines,
        f"%lost{a} = IsNaN(%{source})",
        f"%number{a} = Where(%lost{a}, 0, %{source})",
        f"%clipped{a} = Clip(%number{a}, 0, {size - 1})",
        f"%i{a} = Cast(%clipped{a}, to=7)",
    ]


def _joined_lines(sizes: Sequence[int], zeros: bool) -> list[str]:
    """Compute `%place`, `%weight` and `%inside` [N, points, all neighbors] over all axes."""
    lines = []
    last = {"place": "i0", "weight": "w0", "inside": "in0"}
    for axis in range(1, len(sizes)):
        lines += [f"%rows{axis} = Mul(%{last['place']}, {sizes[axis]})"]
        for key, source, name, op in (
            ("place", f"rows{axis}", f"i{axis}", "Add"),
            ("weight", last["weight"], f"w{axis}", "Mul"),
            ("inside", last["inside"], f"in{axis}", "And"),
        ):
            if key == "inside" and not zeros:
                continue
            lines += [
                f"%{key}{axis}.outer = Unsqueeze(%{source}, [3])",
                f"%{key}{axis}.inner = Unsqueeze(%{name}, [2])",
                f"%{key}{axis}.both = {op}(%{key}{axis}.outer, %{key}{axis}.inner)",
                f"%{key}{axis} = Reshape(%{key}{axis}.both, [0, 0, -1])",
            ]
            last[key] = f"{key}{axis}"
    keys = ["place", "weight", *(["inside"] if zeros else [])]
    return [*lines, *(f"%{key} = Identity(%{last[key]})" for key in keys)]
