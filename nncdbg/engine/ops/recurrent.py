"""RNN, GRU and LSTM: one sweep over time, three cells.

The products with the input are computed for all time steps at once; the sweep itself is a Python loop.
States stay in f32 for narrow floats and are rounded where they leave the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gates import Gate, gates_of
from nncdbg.engine.ops.influence import probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.recurrent_formula import gru_formula, lstm_formula, rnn_formula
from nncdbg.engine.ops.types import Attributes, Types, agree, at, need_rank, shape_at, typed
from nncdbg.ir.records import Dim

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


@op(
    "RNN",
    since=7,
    infer=recurrent_types(1, 2),
    formula=rnn_formula,
    outputs_count=True,
    integers=valid.lengths(4, axis=0),
    contract=contracts.lengths(4, 0),
    influence=probed(0, 1, 2, 3, 5),
    cause="recurrent.recurrent",
)
def rnn(
    xp: ModuleType,
    x: Any,
    weight: Any,
    again: Any,
    bias: Any = None,
    lengths: Any = None,
    initial_h: Any = None,
    *,
    direction: str,
    outputs_count: int,
    layout: int = 0,
    **attributes: Any,
) -> Any:
    """h = f(x W + h R + b) over time; Y contains every h, Y_h the last."""
    gates, hidden = gates_of(attributes, ["Tanh"], len(directions_of(direction))), again.shape[2]

    def cell_of(d: int) -> tuple[Any, Cell]:
        (activate,), recurrent = gates[d], widened(xp, again[d]).T
        of_input, of_state = biases(xp, bias, d, x, hidden)

        def cell(product: Any, h: Any) -> tuple[Any]:
            return (activate(xp, product + h @ recurrent),)

        return of_input + of_state, cell

    return over_directions(
        xp, x, weight, lengths, [initial_h], cell_of, direction=direction, layout=layout, hidden=hidden
    )[:outputs_count]


@op(
    "GRU",
    since=7,
    infer=recurrent_types(3, 2),
    formula=gru_formula,
    outputs_count=True,
    integers=valid.lengths(4, axis=0),
    contract=contracts.lengths(4, 0),
    influence=probed(0, 1, 2, 3, 5),
    cause="recurrent.recurrent",
)
def gru(
    xp: ModuleType,
    x: Any,
    weight: Any,
    again: Any,
    bias: Any = None,
    lengths: Any = None,
    initial_h: Any = None,
    *,
    direction: str,
    linear_before_reset: int,
    outputs_count: int,
    layout: int = 0,
    **attributes: Any,
) -> Any:
    """h = (1 - z) n + z h over time, with the gates z (update), r (reset) and the candidate n.

    `linear_before_reset` applies r after the product of h with its weight; otherwise r is applied before.
    """
    gates, hidden = gates_of(attributes, ["Sigmoid", "Tanh"], len(directions_of(direction))), again.shape[2]

    def cell_of(d: int) -> tuple[Any, Cell]:
        of_input, of_state = biases(xp, bias, d, x, 3 * hidden)
        cell = _gru_cell(xp, gates[d], widened(xp, again[d]).T, of_state, linear=bool(linear_before_reset))
        return of_input, cell

    return over_directions(
        xp, x, weight, lengths, [initial_h], cell_of, direction=direction, layout=layout, hidden=hidden
    )[:outputs_count]


def _gru_cell(xp: ModuleType, gates: Sequence[Gate], recurrent: Any, bias: Any, *, linear: bool) -> Cell:
    gate, candidate = gates
    hidden = recurrent.shape[0]
    two, last = slice(0, 2 * hidden), slice(2 * hidden, None)
    # Contiguous slices, so that BLAS does not copy them at every step.
    of_gates, of_candidate = (xp.ascontiguousarray(recurrent[:, part]) for part in (two, last))

    def cell(product: Any, h: Any) -> tuple[Any]:
        opened = gate(xp, product[:, two] + h @ of_gates + bias[two])
        z, r = opened[:, :hidden], opened[:, hidden:]
        inner = r * (h @ of_candidate + bias[last]) if linear else (r * h) @ of_candidate + bias[last]
        n = candidate(xp, product[:, last] + inner)
        return ((1 - z) * n + z * h,)

    return cell


@op(
    "LSTM",
    since=7,
    infer=recurrent_types(4, 3),
    formula=lstm_formula,
    outputs_count=True,
    integers=valid.lengths(4, axis=0),
    contract=contracts.lengths(4, 0),
    influence=probed(0, 1, 2, 3, 5, 6, 7),
    cause="recurrent.recurrent",
)
def lstm(
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
    input_forget: int,
    outputs_count: int,
    layout: int = 0,
    **attributes: Any,
) -> Any:
    """c = f c + i g and h = o act(c) over time, with the gates i, o, f and the candidate g.

    Y contains every h, Y_h and Y_c the last states.  `input_forget` couples the gates: f = 1 - i.
    """
    names = ["Sigmoid", "Tanh", "Tanh"]
    gates, hidden = gates_of(attributes, names, len(directions_of(direction))), again.shape[2]

    def cell_of(d: int) -> tuple[Any, Cell]:
        of_input, of_state = biases(xp, bias, d, x, 4 * hidden)
        looks = None if peepholes is None else widened(xp, peepholes[d]).reshape(3, hidden)
        cell = lstm_cell(xp, gates[d], widened(xp, again[d]).T, looks, coupled=bool(input_forget))
        return of_input + of_state, cell

    return over_directions(
        xp,
        x,
        weight,
        lengths,
        [initial_h, initial_c],
        cell_of,
        direction=direction,
        layout=layout,
        hidden=hidden,
    )[:outputs_count]


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
