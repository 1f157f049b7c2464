"""Higher-order operators: a watch changes nothing of them, and sees the operators of their bodies."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainings need PyTorch")

from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch._ops import HigherOrderOperator  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.internals import without_dispatch  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402

Model = Any
Program = Callable[[Model, Any], Any]
"""Computes a loss from a model with the layers `first` and `second`, and a batch."""


def cond(model: Model, x: Any) -> Any:
    y = model.first(x)
    return torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,)).sum()


def reads_a_layer(model: Model, x: Any) -> Any:
    """Branches read parameters that are no operands."""
    y = model.first(x)
    return torch.cond(y.sum() > 1e9, torch.tanh, lambda t: model.second(t) * model.second.bias, (y,)).sum()


def nested(model: Model, x: Any) -> Any:
    def inner(t: Any) -> Any:
        return torch.cond(t.sum() > 1e9, lambda u: u.exp(), lambda u: u.tanh() * u, (t,))

    y = model.first(x)
    return torch.cond(y.sum() > 1e9, lambda t: t.cos(), inner, (y,)).sum()


def draws(model: Model, x: Any) -> Any:
    y = model.first(x)
    return torch.cond(
        y.sum() > -1e9, lambda t: torch.nn.functional.dropout(t), lambda t: t * 2, (y,)
    ).sum() + torch.rand(())


def in_checkpoint(model: Model, x: Any) -> Any:
    return checkpoint(lambda t: cond(model, t).reshape(1), x, use_reentrant=False).sum()


def in_autocast(model: Model, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = model.first(x)
        return torch.cond(y.sum() > 1e9, lambda t: t * 2, lambda t: model.second(t), (y,)).float().sum()


def in_compiled(model: Model, x: Any) -> Any:
    return torch.compile(reads_a_layer, backend="eager")(model, x)


def loop(model: Model, x: Any) -> Any:
    def body(i: Any, t: Any) -> Any:
        return i + 1, model.second(t).sin()

    return while_loop(lambda i, t: i < 3, body, (torch.tensor(0), model.first(x)))[1].sum()


def loop_without_gradient(model: Model, x: Any) -> Any:
    with torch.no_grad():
        found = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 0.5), (torch.tensor(0), x))
    return model.first(found[1]).sum()


def no_iterations(model: Model, x: Any) -> Any:
    body = lambda i, t: (i + 1, t.sin())  # noqa: E731
    return while_loop(lambda i, t: i > 3, body, (torch.tensor(0), model.first(x)))[1].sum()


def scanned(model: Model, x: Any) -> Any:
    return scan(lambda c, t: (c + t, c * t), torch.zeros(2), model.first(x), dim=0)[1].sum()


def scanned_in_parallel(model: Model, x: Any) -> Any:
    return associative_scan(torch.add, model.first(x), dim=0, combine_mode="generic").square().sum()


def mapped(model: Model, x: Any) -> Any:
    return map_rows(lambda t, bias: (t * bias).sin(), model.first(x), model.second.bias).sum()


def attention(model: Model, x: Any) -> Any:
    with torch.no_grad():
        q = x[None, None]
        found = flex_attention(q, q, q, lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")))
    return model.first(found[0, 0]).sum()


def raises_in_branch(model: Model, x: Any) -> Any:
    y = model.first(x)
    return torch.cond(y.sum() > 1e9, lambda t: t, lambda t: t @ torch.zeros(7), (y,)).sum()


def branches_differ(model: Model, x: Any) -> Any:
    y = model.first(x)
    return torch.cond(y.sum() > 1e9, lambda t: t[0].clone(), lambda t: t.sin(), (y,)).sum()


PROGRAMS: tuple[Program, ...] = (
    cond,
    reads_a_layer,
    nested,
    draws,
    in_checkpoint,
    in_autocast,
    in_compiled,
    loop,
    loop_without_gradient,
    no_iterations,
    scanned,
    scanned_in_parallel,
    mapped,
    attention,
    raises_in_branch,
    branches_differ,
)


def new_model() -> Model:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"first": torch.nn.Linear(4, 2), "second": torch.nn.Linear(2, 2)})


def train(program: Program, watching: Callable[[Model, Any], AbstractContextManager[Any]]) -> list[Any]:
    """Return all that a training step leaves: bits, warnings and the exception."""
    model = new_model()
    optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
    left: list[Any] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = torch.randn(3, 4)
        try:
            with watching(model, optimizer):
                loss = program(model, x)
                loss.backward()
                left += [loss.item(), *(each.grad for each in model.parameters())]
                optimizer.step()
        except Exception as error:  # noqa: BLE001
            left += [type(error), str(error)]
        left += [*model.parameters(), torch.get_rng_state()]
    left = [each.detach().numpy().tobytes() if isinstance(each, torch.Tensor) else each for each in left]
    return [*left, [str(each.message) for each in seen]]


def unwatched(model: Model, optimizer: Any) -> AbstractContextManager[Any]:
    return nullcontext()


def watched(tier: str) -> Callable[[Model, Any], AbstractContextManager[Any]]:
    return lambda model, optimizer: nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report")


WAYS = {
    "record": nncdbg.torch.record,
    "guard": watched("guard"),
    "hooks": watched("hooks"),
    "live": watched("live"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_changes(program: Program) -> None:
    train(program, unwatched)  # The compiler and flex_attention warn once.
    plain = train(program, unwatched)
    for name, way in WAYS.items():
        assert train(program, way) == plain, name


def test_the_compiler_compiles_as_often() -> None:
    def compiled_graphs(watching: Callable[[Model, Any], AbstractContextManager[Any]]) -> int:
        torch._dynamo.reset()
        counts = torch._dynamo.utils.counters["stats"]
        before = counts["unique_graphs"]
        model = new_model()
        optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
        with watching(model, optimizer):
            for _ in range(3):
                reads_a_layer(model, torch.randn(3, 4)).backward()
                optimizer.step()
        return int(counts["unique_graphs"] - before)

    found = {name: compiled_graphs(way) for name, way in {"none": unwatched, **WAYS}.items()}
    assert found == dict.fromkeys(found, found["none"])


def recorded(program: Program) -> Any:
    model = new_model()
    optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
    with nncdbg.torch.record(model, optimizer) as step:
        program(model, torch.randn(3, 4)).backward()
        optimizer.step()
    return step


@pytest.mark.parametrize("program", [nested, in_checkpoint, loop, scanned, mapped, attention])
def test_a_recorded_step_runs_again_with_the_same_bits(program: Program) -> None:
    step = recorded(program)
    assert step.notes == ()
    assert step.verify_determinism().ok


def test_bodies_are_called_graphs() -> None:
    graphs = recorded(loop).program.graphs
    forward = [name for name in graphs if not name.endswith(".backward")]
    assert [name for name in forward if ".body_fn" in name] == [
        "torch.while_loop_stack_output.body_fn",
        "torch.while_loop_stack_output.body_fn.1",
        "torch.while_loop_stack_output.body_fn.2",
    ]
    assert "torch.while_loop.body_fn.backward" in graphs


def test_predicates_are_reads_that_a_change_may_alter() -> None:
    reads = [
        node
        for graph in recorded(nested).program.graphs.values()
        for node in graph.nodes
        if node.op == "torch.read"
    ]
    assert {node.attributes["value"] for node in reads} == {False}


def log_in_branch(model: Model, x: Any) -> Any:
    def branch(t: Any) -> Any:
        moved = model.second(t) - 100
        return torch.log(moved)

    return torch.cond(x.sum() > -1e9, branch, lambda t: t.cos(), (model.first(x),)).sum()


def log_in_scan(model: Model, x: Any) -> Any:
    def add(total: Any, row: Any) -> Any:
        return total + row, torch.log(total * row - 9)

    return scan(add, torch.zeros(2), model.first(x), dim=0)[1].sum()


def log_in_loop(model: Model, x: Any) -> Any:
    def body(i: Any, t: Any) -> Any:
        return i + 1, torch.log(t - 100)

    return while_loop(lambda i, t: i < 1, body, (torch.tensor(0), model.first(x)))[1].sum()


def log_in_map(model: Model, x: Any) -> Any:
    return map_rows(lambda t: torch.log(t - 100), model.first(x)).sum()


@pytest.mark.parametrize("program", [log_in_branch, log_in_scan, log_in_loop, log_in_map])
def test_a_nan_of_a_body_has_its_operator_and_line(program: Program) -> None:
    source, start = inspect.getsourcelines(program)
    # With gradients, torch traces the body of a scan without its lines.
    words = "return scan" if program is log_in_scan else "torch.log"
    line = start + next(number for number, text in enumerate(source) if words in text)
    for tier in ("guard", "live"):
        model = new_model()
        optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
        with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") as report:
            program(model, torch.randn(3, 4)).backward()
            optimizer.step()
        origin = report.bad_steps[0].origin
        assert (origin.op, origin.cause) == ("aten.log.default", "log of a negative number"), tier
        assert (origin.site.file, origin.site.source_line) == ("tests/torch/test_higher_order.py", line), tier


def test_the_debugger_stops_in_a_body_with_and_without_history() -> None:
    for history in (False, True):
        stops: list[str] = []

        def hold(debugger: Any, stops: list[str] = stops) -> None:
            stops.append(debugger.live.operator.signature.name)
            debugger.run()

        live = LiveTraining(hold, print, history=history)
        live.catch({"nan": None})
        with live:
            model = new_model()
            log_in_branch(model, torch.randn(3, 4)).backward()
        # The backward pass computes the branch again.
        assert stops == ["aten.log.default"] * 2, history


class WithoutOperators(HigherOrderOperator):
    """An operator of higher order whose function computes without operators."""

    def __init__(self) -> None:
        super().__init__("nncdbg_without_operators")

    def __call__(self, function: Callable[[Any], Any], x: Any) -> Any:
        return super().__call__(function, x)


def test_a_result_that_no_operator_made_is_kept() -> None:
    doubled = WithoutOperators()
    doubled.py_autograd_impl(lambda function, x: x * 2)
    doubled.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda function, x: function(x))

    def undispatched(x: Any) -> Any:
        with without_dispatch():
            return x * 2

    with nncdbg.torch.record() as step:
        doubled(undispatched, torch.ones(2)).sum()
    results = [node for node in step.program.graphs["forward"].nodes if node.op == "torch.recorded"]
    assert [node.attributes["reason"] for node in results] == ["it computes without operators"]
    debugger = nncdbg.Debugger(step)
    debugger.run()
    assert debugger.value("sum") == 4


def test_an_operator_of_a_tracer_is_not_recorded() -> None:
    model = new_model()
    with nncdbg.torch.record(model) as step:
        exported = torch.export.export(model.first, (torch.ones(3, 4),))
        model.first(torch.ones(3, 4)).sum()
    assert exported.module()(torch.ones(3, 4)).shape == (3, 2)
    ops = [node.op for graph in step.program.graphs.values() for node in graph.nodes]
    assert ops.count("aten.addmm.default") == 1


BEGINS_IN_BRANCH = """import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(2, 4)
for _ in range(2):
    h = torch.cond(x.sum() > 0, lambda t: model(t) * 2, lambda t: model(t).sin(), (x,))
    h.square().mean().backward()
    optimizer.step()
"""


def test_a_script_may_call_its_first_module_in_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BEGINS_IN_BRANCH)
    assert main(["record", "train.py", "-o", "step"]) == 0
    branch = nncdbg.load("step").graphs["torch.cond.true_fn"]
    assert [node.op for node in branch.nodes] == ["aten.linear.default", "aten.mul.Tensor"]
    for tier in ("guard", "hooks", "live"):
        assert main(["watch", "--tier", tier, "train.py"]) == 0
        assert "training: ok, 2 updates" in "".join(capfd.readouterr())
