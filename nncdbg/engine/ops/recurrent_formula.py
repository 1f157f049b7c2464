"""RNN, GRU and LSTM as graph text: per direction one loop over time that carries the states.

Names end in ``.d0`` or ``.d1``, the direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at, wide_name
from nncdbg.engine.ops.gates import Gate, gates_of
from nncdbg.engine.ops.types import Attributes, Types, at
from nncdbg.ir.records import TensorType

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")

CellLines = Callable[[str, Sequence[Gate]], "list[str]"]
"""Return lines from `%xw{d}` (input products), `%h{d}`, `%c{d}` to `%h{d}.next`, `%c{d}.next`."""


def recurrent_formula(
    name: str,
    attributes: Attributes,
    inputs: Types,
    defaults: Sequence[str],
    states: Sequence[str],
    cell: CellLines,
) -> str:
    """Return the formula of a recurrent op; `cell` writes the statements of one step."""
    given = type_at(inputs, 0)
    layout, first = attributes.get("layout", 0), sizes_at(inputs, 0)
    batch, time = (first[0], first[1]) if layout else (first[1], first[0])
    hidden = sizes_at(inputs, 2)[2]
    reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        attributes["direction"]
    ]
    gates = gates_of(attributes, defaults, len(reverses))
    lines = ["%series = Transpose(%X.wide, perm=[1, 0, 2])" if layout else "%series = Identity(%X.wide)"]
    for d, reverse in enumerate(reverses):
        lines += weights_lines(d, inputs)
        for state in states:
            type_ = TensorType(wide_name(given.dtype), (batch, hidden))
            lines += initial_lines(state, d, inputs, layout, type_)
        lines += loop_lines(d, time, states, cell(f".d{d}", gates[d]), at(inputs, 4) is not None, reverse)
    lines += joined_lines(len(reverses), states, layout)
    floats = [key for index, key in enumerate(INPUTS) if at(inputs, index) is not None and index != 4]
    outputs = ["Y", *(f"Y_{state}" for state in states)]
    body = [f"%steps: i64[] = {time}", *in_precision(given.dtype, floats, lines, outputs)]
    return formula_text(name, zip(INPUTS, inputs, strict=False), body, outputs)


def weights_lines(d: int, inputs: Types) -> list[str]:
    """Prepare the weights of one direction as right factors of products, and the biases."""
    lines = []
    for key in ("W", "R"):
        lines.append(f"%{key}.d{d}.rows = Gather(%{key}.wide, {d})")
        lines.append(f"%{key}.d{d} = Transpose(%{key}.d{d}.rows, perm=[1, 0])")
    if at(inputs, 3) is not None:
        lines.append(f"%B.d{d} = Gather(%B.wide, {d})")
        lines.append(f"%Wb.d{d}, %Rb.d{d} = Split(%B.d{d}, num_outputs=2)")
    if at(inputs, 7) is not None:
        lines.append(f"%P.d{d} = Gather(%P.wide, {d})")
        lines.append(f"%Pi.d{d}, %Po.d{d}, %Pf.d{d} = Split(%P.d{d}, num_outputs=3)")
    return lines


def initial_lines(state: str, d: int, inputs: Types, layout: int, type_: TensorType) -> list[str]:
    """Compute `%h0.d0`: the given initial state, or zeros."""
    if at(inputs, INPUTS.index(f"initial_{state}")) is not None:
        return [f"%{state}0.d{d} = Gather(%initial_{state}.wide, {d}, axis={1 if layout else 0})"]
    return [
        f"%{state}0.d{d}.zero = CastLike(0, %series)",
        f"%{state}0.d{d}: {type_} = Expand(%{state}0.d{d}.zero, {[*(type_.shape or ())]})",
    ]


def loop_lines(
    d: int, time: int, states: Sequence[str], cell: list[str], lengths: bool, reverse: bool
) -> list[str]:
    """Write the loop of one direction: `%ys.d0` contains h at each step, `%hn.d0` the last state."""
    carried = ", ".join(f"%{state}.d{d} = %{state}0.d{d}" for state in states)
    at_time = f"%at.d{d}" if reverse else f"%t.d{d}"
    body = [f"%at.d{d} = Sub({time - 1}, %t.d{d})"] if reverse else []
    body += [f"%x.d{d} = Gather(%series, {at_time})", *cell]
    fresh, output = "next", f"%h.d{d}.next"
    if lengths:
        body += masked_lines(d, at_time, states)
        fresh, output = "kept", f"%y.d{d}"
    following = ", ".join(f"%{state}.d{d} = %{state}.d{d}.{fresh}" for state in states)
    lasts = ", ".join(f"%{state}n.d{d} = %{state}.d{d}" for state in states)
    lines = [
        f"while @time.d{d} ({carried}) count %t.d{d}: i64[] times %steps {{",
        *(f"  {line}" for line in body),
        f"  next {following} collect {output}",
        f"}} -> ({lasts}, %seen.d{d} = collect[0])",
    ]
    if reverse:
        return [*lines, f"%ys.d{d} = Slice(%seen.d{d}, [-1], [{-time - 1}], [0], [-1])"]
    return [*lines, f"%ys.d{d} = Identity(%seen.d{d})"]


def masked_lines(d: int, at_time: str, states: Sequence[str]) -> list[str]:
    """Keep the states of sequences that have ended, and output 0 for them."""
    return [
        f"%now.d{d} = Cast({at_time}, to=6)",
        f"%live.d{d}.flat = Less(%now.d{d}, %sequence_lens)",
        f"%live.d{d} = Unsqueeze(%live.d{d}.flat, [1])",
        f"%y.d{d} = Where(%live.d{d}, %h.d{d}.next, 0)",
        *(f"%{state}.d{d}.kept = Where(%live.d{d}, %{state}.d{d}.next, %{state}.d{d})" for state in states),
    ]


def joined_lines(directions: int, states: Sequence[str], layout: int) -> list[str]:
    """Compute Y and the last states, with the axis of the directions."""
    lines = []
    parts = [("Y", "ys", 2 if layout else 1)] + [(f"Y_{s}", f"{s}n", 1 if layout else 0) for s in states]
    for target, source, axis in parts:
        for d in range(directions):
            name = f"%{source}.d{d}"
            if target == "Y" and layout:
                lines.append(f"{name}.first = Transpose({name}, perm=[1, 0, 2])")
                name = f"{name}.first"
            lines.append(f"%{source}.d{d}.one = Unsqueeze({name}, [{axis}])")
        every = ", ".join(f"%{source}.d{d}.one" for d in range(directions))
        join = f"Concat({every}, axis={axis})" if directions > 1 else f"Identity({every})"
        lines.append(f"%{target}.wide = {join}")
    return lines


def summed(target: str, *terms: str) -> list[str]:
    """Compute `target` as the sum of the terms, left to right."""
    lines, total = [], terms[0]
    for number, term in enumerate(terms[1:], 1):
        name = target if number == len(terms) - 1 else f"{target}.sum{number}"
        lines.append(f"{name} = Add({total}, {term})")
        total = name
    return lines


def rnn_formula(attributes: Attributes, inputs: Types) -> str:
    """One Tanh (or other activation) of x W + h R + b per step."""
    bias = at(inputs, 3) is not None

    def cell(d: str, gates: Sequence[Gate]) -> list[str]:
        terms = [f"%xw{d}", f"%hr{d}", *((f"%Wb{d}", f"%Rb{d}") if bias else ())]
        return [
            f"%xw{d} = MatMul(%x{d}, %W{d})",
            f"%hr{d} = MatMul(%h{d}, %R{d})",
            *summed(f"%total{d}", *terms),
            *gates[0].lines(f"h{d}.next", f"total{d}"),
        ]

    return recurrent_formula("RNN", attributes, inputs, ["Tanh"], ["h"], cell)


def gru_formula(attributes: Attributes, inputs: Types) -> str:
    """The gates z and r, the candidate n, and their combination with h, per step."""
    bias, linear = at(inputs, 3) is not None, attributes["linear_before_reset"]

    def cell(d: str, gates: Sequence[Gate]) -> list[str]:
        lines = [f"%xw{d} = MatMul(%x{d}, %W{d})"]
        source = f"%xw{d}"
        if bias:
            lines.append(f"%xb{d} = Add(%xw{d}, %Wb{d})")
            source = f"%xb{d}"
        lines.append(f"%xz{d}, %xr{d}, %xn{d} = Split({source}, num_outputs=3, axis=1)")
        lines.append(f"%Rz{d}, %Rr{d}, %Rn{d} = Split(%R{d}, num_outputs=3, axis=1)")
        if bias:
            lines.append(f"%bz{d}, %br{d}, %bn{d} = Split(%Rb{d}, num_outputs=3)")
        for key in ("z", "r"):
            lines.append(f"%h{key}{d} = MatMul(%h{d}, %R{key}{d})")
            extra = [f"%b{key}{d}"] if bias else []
            lines += summed(f"%{key}{d}.total", f"%x{key}{d}", f"%h{key}{d}", *extra)
            lines += gates[0].lines(f"{key}{d}", f"{key}{d}.total")
        lines += _gru_candidate(d, bias=bias, linear=bool(linear))
        return [
            *lines,
            f"%n{d}.total = Add(%xn{d}, %inner{d})",
            *gates[1].lines(f"n{d}", f"n{d}.total"),
            f"%open{d} = Sub(1, %z{d})",
            f"%fresh{d} = Mul(%open{d}, %n{d})",
            f"%stays{d} = Mul(%z{d}, %h{d})",
            f"%h{d}.next = Add(%fresh{d}, %stays{d})",
        ]

    return recurrent_formula("GRU", attributes, inputs, ["Sigmoid", "Tanh"], ["h"], cell)


def _gru_candidate(d: str, *, bias: bool, linear: bool) -> list[str]:
    """Compute `%inner`: the part of h in the candidate, reset after its product (`linear`) or before."""
    if linear:
        product, lines = f"%hn{d}", [f"%hn{d} = MatMul(%h{d}, %Rn{d})"]
        if bias:
            product = f"%hb{d}"
            lines.append(f"%hb{d} = Add(%hn{d}, %bn{d})")
        return [*lines, f"%inner{d} = Mul(%r{d}, {product})"]
    target = f"%hn{d}" if bias else f"%inner{d}"
    lines = [f"%reset{d} = Mul(%r{d}, %h{d})", f"{target} = MatMul(%reset{d}, %Rn{d})"]
    return [*lines, f"%inner{d} = Add(%hn{d}, %bn{d})"] if bias else lines


def lstm_formula(attributes: Attributes, inputs: Types) -> str:
    """The gates i, o, f, the candidate g, and the states c and h, per step."""
    bias, looks = at(inputs, 3) is not None, at(inputs, 7) is not None

    def cell(d: str, gates: Sequence[Gate]) -> list[str]:
        terms = [f"%xw{d}", f"%hr{d}", *((f"%Wb{d}", f"%Rb{d}") if bias else ())]
        lines = [
            f"%xw{d} = MatMul(%x{d}, %W{d})",
            f"%hr{d} = MatMul(%h{d}, %R{d})",
            *summed(f"%total{d}", *terms),
            f"%ti{d}, %to{d}, %tf{d}, %tg{d} = Split(%total{d}, num_outputs=4, axis=1)",
            *_gate_lines("i", d, gates[0], "c" if looks else None),
        ]
        if attributes["input_forget"]:
            lines.append(f"%f{d} = Sub(1, %i{d})")
        else:
            lines += _gate_lines("f", d, gates[0], "c" if looks else None)
        return [
            *lines,
            *gates[1].lines(f"g{d}", f"tg{d}"),
            f"%kept{d} = Mul(%f{d}, %c{d})",
            f"%new{d} = Mul(%i{d}, %g{d})",
            f"%c{d}.next = Add(%kept{d}, %new{d})",
            *_gate_lines("o", d, gates[0], "next" if looks else None),
            *gates[2].lines(f"hc{d}", f"c{d}.next"),
            f"%h{d}.next = Mul(%o{d}, %hc{d})",
        ]

    return recurrent_formula("LSTM", attributes, inputs, ["Sigmoid", "Tanh", "Tanh"], ["h", "c"], cell)


def _gate_lines(key: str, d: str, gate: Gate, peephole: str | None) -> list[str]:
    """Compute one gate; a peephole reads the previous cell state (`c`) or the new one (`next`)."""
    if peephole is None:
        return gate.lines(f"{key}{d}", f"t{key}{d}")
    cell = f"%c{d}" if peephole == "c" else f"%c{d}.next"
    return [
        f"%look{key}{d} = Mul(%P{key}{d}, {cell})",
        f"%sum{key}{d} = Add(%t{key}{d}, %look{key}{d})",
        *gate.lines(f"{key}{d}", f"sum{key}{d}"),
    ]
