"""The optimizers of the domain nncdbg: against torch.optim, papers, their formulas, and bad statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.dtypes import NUMPY, name_of
from nncdbg.errors import GraphError
from tests.engine.differentiation.gradients import check
from tests.engine.ops.one_node import by_formula, by_kernel, normal
from tests.presence import present

STATES = {
    "SGD": ("velocity", "step"),
    "RMSProp": ("square_mean", "mean", "velocity"),
    "Adam": ("first_moment", "second_moment", "step", "maximum"),
    "AdamW": ("first_moment", "second_moment", "step", "maximum"),
    "LAMB": ("first_moment", "second_moment", "step"),
}
"""The operands of an optimizer between the gradient and the learning rate."""

Values = Mapping[str, Any]


def program_of(
    op: str, states: Sequence[str], attributes: str, like: str, lines: Sequence[str] = ()
) -> nncdbg.Program:
    """A program of one update of `%w` by the gradient `%d`; `lines` may compute the learning rate `%rate`."""
    given = ["w", "d", *states]
    inputs = ", ".join(f"%{name}: {'i64[]' if name == 'step' else like}" for name in given)
    operands = ", ".join(f"%{name}" if name in given else "_" for name in ("w", "d", *STATES[op]))
    results = ", ".join(f"%{name}.1" for name in ("w", *states))
    body = [*lines, f"{results} = nncdbg.{op}({operands}{', %rate' if lines else ''}, {attributes})"]
    extra = ", %rate" if lines else ""
    text = "".join(f"  {line}\n" for line in body)
    return nncdbg.parse(
        f"opset 21\n\ngraph @main({inputs}) -> ({results}{extra}) {{\n{text}  return {results}{extra}\n}}\n"
    )


def zeros(states: Sequence[str], like: Any) -> dict[str, Any]:
    return {name: np.array(0) if name == "step" else np.zeros_like(like) for name in states}


def updates(program: nncdbg.Program, start: Any, states: Sequence[str], count: int) -> Iterator[Values]:
    """The values after each update, by name; the gradients are random, and grow and shrink."""
    values = {"w": start, **zeros(states, start)}
    for number in range(count):
        gradient = gradient_of(number, start)
        found = {
            name.removesuffix(".1"): each
            for name, each in nncdbg.run(program, {**values, "d": gradient}).items()
        }
        values = {name: found[name] for name in values}
        yield found


def gradient_of(number: int, like: Any) -> Any:
    return (normal(number, *like.shape, dtype="f64") * (number % 7 + 0.1)).astype(like.dtype)


# -- PyTorch -----------------------------------------------------------------------------------

TORCH: list[tuple[str, str, Sequence[str], str, dict[str, Any]]] = [
    ("SGD", "lr=0.1", (), "SGD", {"lr": 0.1}),
    ("SGD", "lr=0.1, weight_decay=0.01", (), "SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", "lr=0.1, momentum=0.9", ("velocity",), "SGD", {"lr": 0.1, "momentum": 0.9}),
    (
        "SGD",
        "lr=0.1, momentum=0.9, nesterov=1, weight_decay=0.01",
        ("velocity",),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    (
        "SGD",
        "lr=0.1, momentum=0.9, dampening=0.2",
        ("velocity", "step"),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.2},
    ),
    ("RMSProp", "lr=0.01", ("square_mean",), "RMSprop", {"lr": 0.01}),
    (
        "RMSProp",
        "lr=0.01, alpha=0.9, momentum=0.9, weight_decay=0.01",
        ("square_mean", "velocity"),
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "momentum": 0.9, "weight_decay": 0.01},
    ),
    (
        "RMSProp",
        "lr=0.01, epsilon=0.001, momentum=0.9",
        ("square_mean", "mean", "velocity"),
        "RMSprop",
        {"lr": 0.01, "eps": 0.001, "momentum": 0.9, "centered": True},
    ),
    *(
        case
        for op in ("Adam", "AdamW")
        for case in (
            (op, "lr=0.01", ("first_moment", "second_moment", "step"), op, {"lr": 0.01}),
            (
                op,
                "lr=0.01, beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=0.1",
                ("first_moment", "second_moment", "step"),
                op,
                {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1},
            ),
            (op, "lr=0.01", STATES[op], op, {"lr": 0.01, "amsgrad": True}),
        )
    ),
]


@pytest.mark.parametrize(
    ("op", "attributes", "states", "name", "options"),
    TORCH,
    ids=[f"{c[0]}-{c[1]}-{len(c[2])}" for c in TORCH],
)
def test_a_hundred_updates_agree_with_torch(
    op: str, attributes: str, states: Sequence[str], name: str, options: dict[str, Any]
) -> None:
    """N13: SGD, with Nesterov's momentum too, RMSProp, Adam and AdamW, in f64 within 1e-12."""
    torch: Any = pytest.importorskip("torch", reason="compares with torch.optim")
    start = normal(0, 4, 3, dtype="f64")
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = getattr(torch.optim, name)([parameter], **options)
    for number, found in enumerate(
        updates(program_of(op, states, attributes, "f64[4,3]"), start, states, 100)
    ):
        parameter.grad = torch.from_numpy(gradient_of(number, start))
        optimizer.step()
        assert distance(found["w"], parameter.detach().numpy()) <= 1e-12


def distance(found: Any, wanted: Any) -> float:
    """The greatest difference, relative to the largest element."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_decimal_attributes_are_not_rounded_to_f32() -> None:
    """The f32 nearest to 0.999 would give 1 - beta2 = 0.00099998713, and a moment wrong by 1e-5."""
    states = ("first_moment", "second_moment", "step")
    program = program_of("Adam", states, "lr=0.1, beta2=0.999", "f32[1]")
    (found,) = updates(program, np.ones(1, np.float32), states, 1)
    square = gradient_of(0, found["w"]).astype(np.float64) ** 2
    np.testing.assert_allclose(found["second_moment"], 0.001 * square, rtol=1e-6)


# -- LAMB --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_agrees_with_algorithm_2_of_its_paper(weight_decay: float) -> None:
    """N13: You et al., Large Batch Optimization for Deep Learning, arXiv:1904.00962, in f64 within 1e-12."""
    states = STATES["LAMB"]
    attributes = f"lr=0.02, beta1=0.8, beta2=0.99, epsilon=1e-5, weight_decay={weight_decay}"
    start = normal(0, 4, 3, dtype="f64")
    x, m, v = start, np.zeros_like(start), np.zeros_like(start)
    for number, found in enumerate(
        updates(program_of("LAMB", states, attributes, "f64[4,3]"), start, states, 100)
    ):
        g, t = gradient_of(number, start), number + 1
        m = 0.8 * m + (1 - 0.8) * g
        v = 0.99 * v + (1 - 0.99) * g**2
        r = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-5)
        u = r + weight_decay * x
        x = x - 0.02 * np.linalg.norm(x) / np.linalg.norm(u) * u
        assert distance(found["w"], x) <= 1e-12
        assert int(found["step"]) == t


@pytest.mark.parametrize(("start", "gradient"), [(0.0, 1.0), (1.0, 0.0)])
def test_lamb_does_not_scale_by_a_norm_of_zero(start: float, gradient: float) -> None:
    program = program_of("LAMB", STATES["LAMB"], "lr=0.5, weight_decay=0.0", "f32[2]")
    given = np.full(2, start, np.float32)
    found = nncdbg.run(program, {"w": given, "d": given * 0 + gradient, **zeros(STATES["LAMB"], given)})
    np.testing.assert_allclose(found["w.1"], start - 0.5 * gradient, rtol=1e-5)


def test_lamb_norm_does_not_overflow_in_f32() -> None:
    program = program_of("LAMB", STATES["LAMB"], "lr=0.5, weight_decay=0.0", "f32[2]")
    given = np.full(2, 1e30, np.float32)
    found = nncdbg.run(program, {"w": given, "d": given / given, **zeros(STATES["LAMB"], given)})
    np.testing.assert_allclose(found["w.1"], 5e29, rtol=1e-5)


# -- formula -----------------------------------------------------------------------------------

SHAPES = [(7, 5), (), (0, 3), (140_001,)]
"""The last one is larger than the block that a kernel processes at a time."""

OPTIONS: list[tuple[str, dict[str, Any], Sequence[str]]] = [
    ("SGD", {"lr": 0.1}, ()),
    ("SGD", {"weight_decay": 0.1}, ("rate",)),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": 1}, ("velocity",)),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, ("velocity",)),
    ("SGD", {"lr": 1, "momentum": 1, "dampening": 1}, ("velocity",)),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}, ("velocity", "step", "rate")),
    ("RMSProp", {"lr": 0.1}, ("square_mean",)),
    ("RMSProp", {"momentum": 0.9, "weight_decay": 0.01}, ("square_mean", "velocity", "rate")),
    ("RMSProp", {"lr": 0.1, "alpha": 0.9}, ("square_mean", "mean")),
    *(
        case
        for op in ("Adam", "AdamW")
        for case in (
            (op, {"lr": 0.1, "weight_decay": 0.0}, ("first_moment", "second_moment", "step")),
            (op, {"weight_decay": 0.1}, (*STATES[op], "rate")),
        )
    ),
    ("LAMB", {"lr": 0.1}, STATES["LAMB"]),
    ("LAMB", {"weight_decay": 0.0}, (*STATES["LAMB"], "rate")),
]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("op", "attributes", "given"), OPTIONS, ids=[f"{c[0]}-{'-'.join(c[1])}-{len(c[2])}" for c in OPTIONS]
)
def test_kernel_and_formula_give_the_same_bits(
    op: str, attributes: dict[str, Any], given: Sequence[str], dtype: str
) -> None:
    for shape in SHAPES:
        for step in (0, 2):
            operands = operands_of(op, given, shape, dtype, step)
            count = 1 + sum(name != "rate" for name in given)
            wanted = by_formula(f"nncdbg.{op}", operands, attributes, version=1)
            found = by_kernel(f"nncdbg.{op}", operands, attributes, version=1, count=count)
            assert len(wanted) == len(found) == count
            for a, b in zip(wanted, found, strict=True):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def operands_of(op: str, given: Sequence[str], shape: tuple[int, ...], dtype: str, step: int) -> list[Any]:
    """Random operands; means of squares are above the square of a mean."""
    values: dict[str, Any] = {"step": np.array(step), "rate": np.array(0.1, np.float32)}
    for seed, name in enumerate(("parameter", "gradient", "velocity", "mean", "first_moment")):
        values[name] = np.asarray(normal(seed, *shape, dtype="f64").astype(NUMPY[dtype]))
    for name in ("square_mean", "second_moment", "maximum"):
        values[name] = np.asarray((normal(9, *shape, dtype="f64") ** 2 + 16).astype(NUMPY[dtype]))
    names = ("parameter", "gradient", *STATES[op], "rate")
    return [values[name] if name in ("parameter", "gradient", *given) else None for name in names]


def test_check_micro_finds_no_difference() -> None:
    program = program_of("AdamW", STATES["AdamW"], "lr=0.1", "f32[40,30]")
    start = normal(0, 40, 30)
    debugger = nncdbg.Debugger(
        program, {"w": start, "d": start + 1, **zeros(STATES["AdamW"], start)}, check="micro"
    )
    assert debugger.run().reason == "end"


def test_step_into_an_update() -> None:
    program = program_of("SGD", ("velocity",), "lr=0.5, momentum=0.9", "f32[2]")
    start = np.ones(2, np.float32)
    debugger = nncdbg.Debugger(program, {"w": start, "d": start, "velocity": start})
    debugger.step_into(micro=True)
    listing = present(debugger.loaded.listing_of(debugger.frames[0].code))
    assert [line.strip() for line in listing.lines if " = " in line] == [
        "%lr: f64[] = 0.5",
        "%kept = Mul(%velocity, 0.9)",
        "%new_velocity = Add(%kept, %gradient)",
        "%rounded_lr = Cast(%lr, to=1)",
        "%update = Mul(%new_velocity, %rounded_lr)",
        "%new_parameter = Sub(%parameter, %update)",
    ]
    debugger.step_out()
    np.testing.assert_allclose(debugger.value("w.1"), 1 - 0.5 * 1.9, rtol=1e-5)


def test_operands_in_any_memory_order_are_updated_and_not_changed() -> None:
    start = normal(0, 5, 4).T
    before = start.copy()
    (found,) = by_kernel("nncdbg.SGD", [start, start], {"lr": 0.5}, version=1)
    np.testing.assert_array_equal(found, before * np.float32(0.5))
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("op", ["SGD", "Adam"])
def test_gradient_of_an_update_agrees_with_finite_differences(op: str) -> None:
    states = ("velocity",) if op == "SGD" else ("first_moment", "second_moment", "step")
    inputs = {"w": normal(0, 3, dtype="f64"), "d": normal(1, 3, dtype="f64")}
    inputs |= {name: normal(2, 3, dtype="f64") ** 2 + 1 for name in states if name != "step"}
    floats = [*inputs]
    if "step" in states:
        inputs["step"] = np.array(3)
    operands = ", ".join(f"%{name}" for name in inputs)
    lines = [
        f"%new = nncdbg.{op}({operands}, lr=0.1, weight_decay=0.1)",
        "%loss = ReduceSum(%new, keepdims=0)",
    ]
    check(lines, inputs, floats)


# -- schedules ---------------------------------------------------------------------------------

SCHEDULES: dict[str, tuple[Sequence[str], Any]] = {
    "constant": (["%rate: f64[] = 0.1"], lambda s, o: s.ConstantLR(o, factor=1.0)),
    "step": (
        [
            "%stage = Div(%step, 7)",
            "%exponent = Cast(%stage, to=11)",
            "%gamma: f64[] = 0.5",
            "%factor = Pow(%gamma, %exponent)",
            "%rate = Mul(%factor, 0.1)",
        ],
        lambda s, o: s.StepLR(o, step_size=7, gamma=0.5),
    ),
    "cosine": (
        [
            "%count = Cast(%step, to=11)",
            "%angle = Mul(%count, 0.07853981633974483)",  # pi / 40
            "%cosine = Cos(%angle)",
            "%raised = Add(%cosine, 1.0)",
            "%above = Mul(%raised, 0.0495)",  # (0.1 - 0.001) / 2
            "%rate = Add(%above, 0.001)",
        ],
        lambda s, o: s.CosineAnnealingLR(o, T_max=40, eta_min=0.001),
    ),
    "warmup": (
        [
            "%limited = Min(%step, 10)",
            "%count = Cast(%limited, to=11)",
            "%gain = Mul(%count, 0.09)",
            "%factor = Add(%gain, 0.1)",
            "%rate = Mul(%factor, 0.1)",
        ],
        lambda s, o: s.LinearLR(o, start_factor=0.1, total_iters=10),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_statements_that_compute_the_rate(name: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="compares with torch.optim.lr_scheduler")
    lines, scheduler_of = SCHEDULES[name]
    states = ("velocity", "step")
    start = normal(0, 3, dtype="f64")
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    scheduler = scheduler_of(torch.optim.lr_scheduler, optimizer)
    program = program_of("SGD", states, "momentum=0.9", "f64[3]", lines)
    for number, found in enumerate(updates(program, start, states, 40)):
        assert float(found["rate"]) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        parameter.grad = torch.from_numpy(gradient_of(number, start))
        optimizer.step()
        scheduler.step()
        assert distance(found["w"], parameter.detach().numpy()) <= 1e-12


def test_torch_backend_gives_the_same_results() -> None:
    pytest.importorskip("torch", reason="runs the backend torch")
    states = STATES["Adam"]
    program = program_of("Adam", states, "lr=0.1", "f32[3]")
    start = normal(0, 3)
    inputs = {"w": start, "d": start + 1, **zeros(states, start)}
    found, wanted = nncdbg.run(program, inputs, backend="torch"), nncdbg.run(program, inputs)
    assert {name: np.asarray(value).tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in wanted.items()
    }


# -- NaN and Inf -------------------------------------------------------------------------------


def test_nan_in_a_gradient_influences_only_its_element() -> None:
    """The second NaN, 0 / 0 without epsilon, has its own origin."""
    states = ("first_moment", "second_moment", "step")
    program = program_of("Adam", states, "lr=0.1, epsilon=0.0", "f32[3]")
    start = np.ones(3, np.float32)
    gradient = np.array([np.nan, 0, 1], np.float32)
    report = str(nncdbg.watch(program, {"w": start, "d": gradient, **zeros(states, start)}))
    assert "bad input: input %d has 1 NaN among 3 elements" in report
    assert "zero divided by zero: %d at [1] is 0 and %second_moment at [1] is 0" in report
    assert "use epsilon above 0 (1e-8 is usual)" in report


CAUSES: list[tuple[str, Sequence[str], str, Values, str]] = [
    ("RMSProp", ("square_mean",), "lr=0.1, epsilon=0.0", {"d": 0}, "zero divided by zero: %d at [0] is 0"),
    (
        "Adam",
        ("first_moment", "second_moment", "step"),
        "lr=0.1",
        {"step": -1},
        "division by zero: %step is -1, so that both bias corrections 1 - beta ** 0 are 0",
    ),
    (
        "LAMB",
        ("first_moment", "second_moment", "step"),
        "lr=0.1",
        {"second_moment": [1, -1]},
        "square root of a negative number: 1 of 2 elements of %second_moment is negative, the first at [1]",
    ),
    (
        "RMSProp",
        ("square_mean", "mean"),
        "lr=0.1",
        {"mean": 5},
        "square root of a negative number: the mean of squares minus the square of the mean at [0] is -24.",
    ),
    (
        "Adam",
        ("first_moment", "second_moment", "step"),
        "lr=0.1",
        {"d": 3e25},
        "overflow: 3e25 * 3e25 at [0]",
    ),
    ("SGD", (), "lr=1000000.0", {"d": 1e35}, "overflow: 1e35 * 1e6 at [0]"),
]


@pytest.mark.parametrize(("op", "states", "attributes", "changed", "cause"), CAUSES)
def test_nan_and_inf_have_a_cause(
    op: str, states: Sequence[str], attributes: str, changed: Values, cause: str
) -> None:
    start = np.ones(2, np.float32)
    values = {"w": start, "d": start, **zeros(states, start)}
    for name, value in changed.items():
        values[name] = np.full_like(values[name], value)
    assert cause in str(nncdbg.watch(program_of(op, states, attributes, "f32[2]"), values))


# -- bad statements ----------------------------------------------------------------------------

ERRORS = {
    "%w.1 = nncdbg.SGD(%w, %d)": "the learning rate is missing",
    "%w.1 = nncdbg.SGD(%w, %d, lr=-0.1)": "the attribute lr is -0.1, expected a finite number of at least 0",
    "%w.1 = nncdbg.SGD(%w, %d, lr=nan)": "the attribute lr is nan, expected a finite number of at least 0",
    "%w.1 = nncdbg.SGD(%w, %d, lr=inf)": "the attribute lr is inf, expected a finite number of at least 0",
    "%w.1 = nncdbg.SGD(%w, %d, lr=[0.1])": "the attribute 'lr' is [0.1",
    "%w.1 = nncdbg.SGD(%w, %d, lr=0.1, dampening=[])": "the attribute 'dampening' is [], not a number",
    '%w.1 = nncdbg.SGD(%w, %d, lr="high")': "the attribute 'lr' is 'high', not a number",
    "%w.1 = nncdbg.SGD(%w, %d, rate=0.1)": "nncdbg.SGD has no attribute 'rate'",
    "%w.1 = nncdbg.SGD(%w, %d, _, _, %r, lr=0.1)": "the learning rate is given twice",
    "%w.1 = nncdbg.SGD(%w, %d, lr=0.1, momentum=0.9)": "the operand velocity is missing, but momentum=0.9",
    "%w.1 = nncdbg.SGD(%w, %d, _, _, %r, momentum=0.9)": "the operand velocity is missing, but momentum=0.9",
    "%w.1 = nncdbg.SGD(%w, %d, %m, lr=0.1, nesterov=1)": "nesterov=1 needs momentum above 0 and dampening 0",
    "%w.1, %m.1 = nncdbg.SGD(%w, %d, lr=0.1)": "2 results are named, but the operands give 1",
    "%w.1, %m.1 = nncdbg.SGD(%w, %d, _, _, %r)": "2 results are named, but the operands give 1",
    "%w.1 = nncdbg.SGD(%w, %short, lr=0.1)": "the operand gradient is f32[2], but parameter is f32[3]",
    "%w.1 = nncdbg.SGD(%w, %column, lr=0.1)": "the operand gradient is f32[3,1], but parameter is f32[3]",
    "%w.1 = nncdbg.SGD(%w, %wide, lr=0.1)": "the operand gradient is f64[3], but parameter is f32[3]",
    "%w.1 = nncdbg.SGD(%n, %n, lr=0.1)": "the operand parameter is i64[3], expected floats",
    "%w.1 = nncdbg.SGD(%w, %d, _, _, %d)": "the operand rate is f32[3], expected a scalar",
    "%w.1 = nncdbg.Adam(%w, %d, %m, lr=0.1)": "nncdbg.Adam takes 5 to 7 operands, not 3",
    "%w.1 = nncdbg.Adam(%w, %d, %m, _, %s, lr=0.1)": "nncdbg.Adam needs its operand second_moment",
    "%w.1 = nncdbg.Adam(%w, %d, %m, %m, %w, lr=0.1)": "the operand step is f32[3], expected i64[]",
    "%w.1 = nncdbg.Adam(%w, %d, %m, %m, %s, lr=0.1, beta2=1.0)": "beta2 is 1.0, expected",
    "%w.1 = nncdbg.RMSProp(%w, %d, %m, lr=0.1, epsilon=-1.0)": "epsilon is -1.0, expected a finite",
}


@pytest.mark.parametrize("statement", ERRORS)
def test_bad_statements_are_refused_with_the_operand(statement: str) -> None:
    inputs = {
        "w": normal(0, 3),
        "d": normal(0, 3),
        "m": normal(0, 3),
        "short": normal(0, 2),
        "column": normal(0, 3, 1),
        "wide": normal(0, 3, dtype="f64"),
        "n": np.arange(3),
        "s": np.array(0),
        "r": np.array(0.1, np.float32),
    }
    types = ", ".join(
        f"%{name}: {name_of(x.dtype)}[{','.join(map(str, x.shape))}]" for name, x in inputs.items()
    )
    text = f"opset 21\n\ngraph @main({types}) -> (%w.1) {{\n  {statement}\n  return %w.1\n}}\n"
    with pytest.raises(GraphError) as caught:
        nncdbg.run(nncdbg.parse(text), inputs)
    assert ERRORS[statement] in caught.value.message
    assert caught.value.line == 4


def test_symbolic_sizes_are_accepted_and_joined() -> None:
    text = """opset 21

graph @main(%w: f32[N,3], %d: f32[2,M]) -> (%w.1: f32[2,3]) {
  %w.1 = nncdbg.SGD(%w, %d, lr=0.5)
  return %w.1
}
"""
    start = np.ones((2, 3), np.float32)
    found = nncdbg.run(nncdbg.parse(text), {"w": start, "d": start})
    np.testing.assert_array_equal(found["w.1"], start / 2)
