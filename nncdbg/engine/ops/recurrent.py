"""RNN, GRU and LSTM: one sweep over time, three cells.

The products with the input are computed for all time steps at once; the sweep itself is a Python loop.
States stay in f32 for narrow floats and are rounded where they leave the op.

The formulas have one loop over time per direction, which carries the states.  Names end in ``.d0`` or
``.d1``, the direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import Formula, declared, op
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at, wide_name
from nncdbg.engine.ops.influence import probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, agree, at, need_rank, shape_at, typed
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType

_LINES: dict[str, tuple[str, ...]] = {
    "Affine": ("{y}.scaled = Mul({x}, {alpha})", "{y} = Add({y}.scaled, {beta})"),
    "Elu": ("{y} = Elu({x}, alpha={alpha})",),
    "HardSigmoid": ("{y} = HardSigmoid({x}, alpha={alpha}, beta={beta})",),
    "LeakyRelu": ("{y} = LeakyRelu({x}, alpha={alpha})",),
    "Relu": ("{y} = Relu({x})",),
    "ScaledTanh": (
        "{y}.inner = Mul({x}, {beta})",
        "{y}.tanh = Tanh({y}.inner)",
        "{y} = Mul({y}.tanh, {alpha})",
    ),
    "Sigmoid": ("{y} = Sigmoid({x})",),
    "Softplus": ("{y} = Softplus({x})",),
    "Softsign": ("{y} = Softsign({x})",),
    "Tanh": ("{y} = Tanh({x})",),
    "ThresholdedRelu": ("{y} = ThresholdedRelu({x}, alpha={alpha})",),
}
"""The activations of recurrent layers as graph text.  Names are case-insensitive."""

_FUSED_LINES = {
    **_LINES,
    "HardSwish": ("{y} = HardSwish({x})",),
    "Clip": ("{y} = Clip({x}, {alpha}, {beta})",),
    "ParametricSoftplus": (
        "{y}.inner = Mul({x}, {beta})",
        "{y}.soft = Softplus({y}.inner)",
        "{y} = Mul({y}.soft, {alpha})",
    ),
}
"""The activations that onnxruntime fuses after another op."""

_DEFAULTS = {
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "ParametricSoftplus": (1.0, 1.0),
    "Clip": (0.0, 0.0),
}
"""Name to the defaults of alpha and beta; (1.0, 0.0) for others."""


def activation_lines(name: str | None, x: str, y: str, parameters: Sequence[float | None] = ()) -> list[str]:
    """Return lines that compute `y` from `x` by a fused activation of onnxruntime; Identity without one.

    `parameters` are alpha and beta.  Raises GraphError for an unknown activation.
    """
    if not name:
        return [f"{y} = Identity({x})"]
    if name not in _FUSED_LINES:
        raise GraphError(f"unknown fused activation {name!r}", hint=f"use one of: {', '.join(_FUSED_LINES)}")
    given = [*parameters, None, None][:2]
    defaults = _DEFAULTS.get(name, (1.0, 0.0))
    alpha, beta = (
        default if stated is None else stated for stated, default in zip(given, defaults, strict=True)
    )
    return [line.format(x=x, y=y, alpha=alpha, beta=beta) for line in _FUSED_LINES[name]]


@dataclass(frozen=True, slots=True)
class Gate:
    """One activation with its parameters, after an optional clip to ``[-clip, clip]``."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    clip: float | None = None

    def __call__(self, xp: ModuleType, x: Any) -> Any:
        """Apply the activation to an array of f32 or f64."""
        if self.clip:
            x = xp.minimum(xp.maximum(x, -self.clip), self.clip)
        match self.name:
            case "ScaledTanh":
                return self.alpha * xp.tanh(self.beta * x)
            case "Affine":
                return self.alpha * x + self.beta
        numbers = {"alpha": self.alpha, "beta": self.beta}
        given = {key: n for key, n in numbers.items() if n is not None}
        return declared(self.name)[-1].bind(xp, given)(x)

    def lines(self, target: str, source: str) -> list[str]:
        """Return the same activation as statements from ``%source`` to ``%target``."""
        lines = []
        if self.clip:
            lines.append(f"%{target}.clipped = Clip(%{source}, {-self.clip}, {self.clip})")
            source = f"{target}.clipped"
        return [*lines, *activation_lines(self.name, f"%{source}", f"%{target}", (self.alpha, self.beta))]


def gates_of(attributes: Attributes, defaults: Sequence[str], directions: int) -> list[list[Gate]]:
    """Return the activations of each direction; alphas and betas go, in order, to those that take one."""
    names = attributes["activations"] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        # The default of RNN's schema names both directions.
        if tuple(names[: len(defaults)]) != tuple(names[len(defaults) :]):
            raise GraphError(
                f"expected {len(defaults) * directions} activations, got {len(names)}",
                attribute="activations",
            )
        names = [*names[: len(defaults)]] * directions
    alphas, betas = iter(attributes["activation_alpha"] or ()), iter(attributes["activation_beta"] or ())
    gates = [_gate(name, alphas, betas, attributes["clip"]) for name in names]
    # The third activation of an LSTM acts on the cell, which ONNX Runtime does not clip.
    gates = [replace(gate, clip=None) if i % len(defaults) == 2 else gate for i, gate in enumerate(gates)]
    return [gates[i : i + len(defaults)] for i in range(0, len(gates), len(defaults))]


def _gate(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Gate:
    known = {key.lower(): key for key in _LINES}
    found = known.get(name.lower())
    if found is None:
        raise GraphError(f"unknown activation {name!r}", hint=f"use one of: {', '.join(_LINES)}")
    text, (alpha, beta) = "".join(_LINES[found]), _DEFAULTS.get(found, (1.0, 0.0))
    return Gate(
        found,
        next(alphas, alpha) if "{alpha}" in text else None,
        next(betas, beta) if "{beta}" in text else None,
        clip,
    )


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
    reverses = directions_of(attributes["direction"])
    gates = gates_of(attributes, defaults, len(reverses))
    lines = ["%series = Transpose(%X.wide, perm=[1, 0, 2])" if layout else "%series = Identity(%X.wide)"]
    for d, reverse in enumerate(reverses):
        lines += weights_lines(d, inputs)
        for state in states:
            type_ = TensorType(wide_name(given.dtype), (batch, hidden))
            if at(inputs, INPUTS.index(f"initial_{state}")) is not None:
                lines.append(
                    f"%{state}0.d{d} = Gather(%initial_{state}.wide, {d}, axis={1 if layout else 0})"
                )
                continue
            lines.append(f"%{state}0.d{d}.zero = CastLike(0, %series)")
            lines.append(f"%{state}0.d{d}: {type_} = Expand(%{state}0.d{d}.zero, {[*(type_.shape or ())]})")
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


Cell: TypeAlias = Callable[..., "tuple[Any, ...]"]
"""`cell(products with the input at one step, *states) -> new states`; the first state is h."""


def directions_of(direction: str) -> list[bool]:
    """Return per direction whether it runs backward in time."""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]


def recurrent_types(gates: int, outputs: int) -> Callable[[Attributes, Types], Types]:
    """Y [time, directions, batch, hidden], then the last states [directions, batch, hidden]."""

    def infer(attributes: Attributes, inputs: Types) -> Types:
        for index, (name, rank) in enumerate((("X", 3), ("W", 3), ("R", 3), ("B", 2), ("sequence_lens", 1))):
            need_rank(inputs, index, name, rank, rank)
        x, weight, again = (shape_at(inputs, index) for index in range(3))
        directions = len(directions_of(attributes["direction"]))
        hidden = _hidden_size(attributes["hidden_size"], weight, again, gates, directions)
        if x is None:
            return [typed(at(inputs, 0), None)] * outputs
        if weight is not None:
            agree(x[2], weight[2], f"W needs {weight[2]} features, but X has {x[2]}", 1)
        batch_first = attributes.get("layout", 0)
        batch, time = x[:2] if batch_first else (x[1], x[0])
        whole = (batch, time, directions, hidden) if batch_first else (time, directions, batch, hidden)
        last = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        return [typed(at(inputs, 0), whole), *[typed(at(inputs, 0), last)] * (outputs - 1)]

    return infer


def _hidden_size(
    given: Dim, weight: tuple[Dim, ...] | None, again: tuple[Dim, ...] | None, gates: int, directions: int
) -> Dim:
    """Return the size of the state, from the attribute or R; GraphError if W or R does not match it."""
    hidden = given
    if again is not None:
        hidden = agree(hidden, again[2], f"hidden_size is {hidden}, R has {again[2]}", 2)
    for index, (name, shape) in enumerate((("W", weight), ("R", again)), 1):
        if shape is not None:
            agree(shape[0], directions, f"{name} has {shape[0]} directions, expected {directions}", index)
            if isinstance(hidden, int):
                rows = gates * hidden
                fact = f"{name} has {shape[1]} rows, {gates} gates of {hidden} need {rows}"
                agree(shape[1], rows, fact, index)
    return hidden


def swept(
    xp: ModuleType, products: Any, lengths: Any, cell: Cell, states: tuple[Any, ...], *, reverse: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Return h at each step, [time, batch, hidden], 0 after a sequence's end; then the last states.

    `products` is [time, batch, gates * hidden]; `lengths` is None or the length of each sequence.
    """
    times = range(products.shape[0])
    outputs = xp.zeros((*products.shape[:2], states[0].shape[-1]), products.dtype)
    for time in reversed(times) if reverse else times:
        fresh = cell(products[time], *states)
        if lengths is None:
            states, outputs[time] = fresh, fresh[0]
            continue
        # A sequence that has ended, or in reverse has not begun, keeps its states.
        live = (time < lengths)[:, None]
        outputs[time] = xp.where(live, fresh[0], xp.zeros_like(fresh[0]))
        states = tuple(xp.where(live, new, old) for new, old in zip(fresh, states, strict=True))
    return outputs, states


def over_directions(
    xp: ModuleType,
    x: Any,
    weight: Any,
    lengths: Any,
    initial: Sequence[Any],
    cell_of: Callable[[int], tuple[Any, Cell]],
    *,
    direction: str,
    layout: int,
    hidden: int,
) -> tuple[Any, ...]:
    """Return Y and the last states of a recurrent op, in the type of x and the order of `layout`.

    `cell_of(d)` returns the bias of the products and the cell of direction d; `initial` contains for each
    state an array [directions, batch, hidden] (batch first if `layout`), or None for zeros.
    """
    series = widened(xp, x).swapaxes(0, 1) if layout else widened(xp, x)
    begins = [None if state is None else widened(xp, state) for state in initial]
    outputs, lasts = [], []
    for d, reverse in enumerate(directions_of(direction)):
        bias, cell = cell_of(d)
        products = xp.matmul(series, widened(xp, weight[d]).T) + bias
        zeros = xp.zeros((series.shape[1], hidden), products.dtype)
        states = tuple(zeros if s is None else s[:, d] if layout else s[d] for s in begins)
        output, last = swept(xp, products, lengths, cell, states, reverse=reverse)
        outputs.append(output)
        lasts.append(last)
    whole = xp.stack(outputs, axis=1)
    ends = [xp.stack(states, axis=1 if layout else 0) for states in zip(*lasts, strict=True)]
    whole = whole.transpose(2, 0, 1, 3) if layout else whole
    return tuple(xp.ascontiguousarray(settled(xp, each, x.dtype)) for each in (whole, *ends))


def biases(xp: ModuleType, bias: Any, d: int, like: Any, rows: int) -> tuple[Any, Any]:
    """Return the biases of direction `d` for the products with the input and with h; zeros if not given."""
    if bias is None:
        zeros = xp.zeros(rows, widened(xp, like).dtype)
        return zeros, zeros
    both = widened(xp, bias[d])
    return both[:rows], both[rows:]


Parts: TypeAlias = "tuple[Sequence[Gate], Any, tuple[Any, Any], Any]"
"""Of one direction: the gates, the right factor of products with h, the biases of x and h, the peepholes."""

CellOf: TypeAlias = Callable[[ModuleType, Parts, Attributes], "tuple[Any, Cell]"]
"""Returns the bias of the products with the input, and the cell of one direction."""


def _recurrent(
    name: str, gates: int, defaults: Sequence[str], formula: Formula, states: int = 1
) -> Callable[[CellOf], CellOf]:
    """Declare a recurrent op by the decorated cell; its operands after the lengths are initial states."""
    initial = (5,) if states == 1 else (5, 6, 7)

    def enter(cell_of: CellOf) -> CellOf:
        def kernel(
            xp: ModuleType,
            x: Any,
            weight: Any,
            again: Any,
            bias: Any = None,
            lengths: Any = None,
            initial_h: Any = None,
            initial_c: Any = None,
            peepholes: Any = None,
            *,
            direction: str,
            outputs_count: int,
            layout: int = 0,
            **attributes: Any,
        ) -> Any:
            of_all = gates_of(attributes, defaults, len(directions_of(direction)))
            hidden = again.shape[2]

            def of_direction(d: int) -> tuple[Any, Cell]:
                both = biases(xp, bias, d, x, again.shape[1])
                looks = None if peepholes is None else widened(xp, peepholes[d]).reshape(3, hidden)
                return cell_of(xp, (of_all[d], widened(xp, again[d]).T, both, looks), attributes)

            given = [initial_h, initial_c][:states]
            results = over_directions(
                xp, x, weight, lengths, given, of_direction, direction=direction, layout=layout, hidden=hidden
            )
            return results[:outputs_count]

        kernel.__doc__ = cell_of.__doc__
        op(
            name,
            since=7,
            infer=recurrent_types(gates, 1 + states),
            formula=formula,
            outputs_count=True,
            integers=valid.lengths(4, axis=0),
            contract=contracts.lengths(4, 0),
            influence=probed(0, 1, 2, 3, *initial),
            cause="layers.recurrent",
        )(kernel)
        return cell_of

    return enter


@_recurrent("RNN", 1, ["Tanh"], rnn_formula)
def rnn_cell(xp: ModuleType, parts: Parts, attributes: Attributes) -> tuple[Any, Cell]:
    """h = f(x W + h R + b) over time; Y contains every h, Y_h the last."""
    (activate,), recurrent, (of_input, of_state), _ = parts

    def cell(product: Any, h: Any) -> tuple[Any]:
        return (activate(xp, product + h @ recurrent),)

    return of_input + of_state, cell


@_recurrent("GRU", 3, ["Sigmoid", "Tanh"], gru_formula)
def gru_cell(xp: ModuleType, parts: Parts, attributes: Attributes) -> tuple[Any, Cell]:
    """h = (1 - z) n + z h over time, with the gates z (update), r (reset) and the candidate n.

    `linear_before_reset` applies r after the product of h with its weight; otherwise r is applied before.
    """
    (gate, candidate), recurrent, (of_input, of_state), _ = parts
    linear = bool(attributes["linear_before_reset"])
    hidden = recurrent.shape[0]
    two, last = slice(0, 2 * hidden), slice(2 * hidden, None)
    # Contiguous slices, so that BLAS does not copy them at every step.
    of_gates, of_candidate = (xp.ascontiguousarray(recurrent[:, part]) for part in (two, last))

    def cell(product: Any, h: Any) -> tuple[Any]:
        opened = gate(xp, product[:, two] + h @ of_gates + of_state[two])
        z, r = opened[:, :hidden], opened[:, hidden:]
        inner = r * (h @ of_candidate + of_state[last]) if linear else (r * h) @ of_candidate + of_state[last]
        n = candidate(xp, product[:, last] + inner)
        return ((1 - z) * n + z * h,)

    return of_input, cell


@_recurrent("LSTM", 4, ["Sigmoid", "Tanh", "Tanh"], lstm_formula, states=2)
def _lstm(xp: ModuleType, parts: Parts, attributes: Attributes) -> tuple[Any, Cell]:
    """c = f c + i g and h = o act(c) over time, with the gates i, o, f and the candidate g.

    Y contains every h, Y_h and Y_c the last states.  `input_forget` couples the gates: f = 1 - i.
    """
    gates, recurrent, (of_input, of_state), looks = parts
    cell = lstm_cell(xp, gates, recurrent, looks, coupled=bool(attributes["input_forget"]))
    return of_input + of_state, cell


def lstm_cell(xp: ModuleType, gates: Sequence[Gate], recurrent: Any, looks: Any, *, coupled: bool) -> Cell:
    """Return the LSTM cell; `looks` are the peepholes [3, hidden] of i, o and f, or None."""
    gate, candidate, final = gates
    hidden = recurrent.shape[0]

    def cell(product: Any, h: Any, c: Any) -> tuple[Any, Any]:
        total = product + h @ recurrent
        i, o, f, g = (total[:, k * hidden : (k + 1) * hidden] for k in range(4))
        if looks is not None:
            i, f = i + looks[0] * c, f + looks[2] * c
        i = gate(xp, i)
        f = 1 - i if coupled else gate(xp, f)
        fresh = f * c + i * candidate(xp, g)
        if looks is not None:
            o = o + looks[1] * fresh
        return gate(xp, o) * final(xp, fresh), fresh

    return cell
