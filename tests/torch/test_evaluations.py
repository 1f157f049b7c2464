"""A module that runs without gradients in a step, such as a teacher, runs again with the step."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.torch import tape  # noqa: E402
from nncdbg.torch.live import training as live_training  # noqa: E402
from nncdbg.torch.step_function import ACTIVE  # noqa: E402


class Teacher(nn.Module):
    """Divides by 0 in each call but the first; each call changes its buffers and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = x.x if isinstance(x, Batch) else x
        x = nn.functional.dropout(self.fc(self.norm(x)))
        good = self.norm.num_batches_tracked < 2
        return x / (x * good).abs().sum()


class Batch(NamedTuple):
    x: Any


def train(wrapped: Any = lambda x: x, without: Any = torch.no_grad, tier: str | None = "guard") -> Any:
    """Train a student; return the report, the state of the teacher, and that of the random generator."""
    torch.manual_seed(0)
    teacher, student = Teacher(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    report = None

    def steps() -> None:
        for _ in range(2):
            x = torch.randn(5, 4)
            with without():
                target = teacher(wrapped(x + 1))
            optimizer.zero_grad()
            (student(x) - target.clone()).square().mean().backward()
            optimizer.step()

    if tier is None:
        steps()
    else:
        with nncdbg.torch.watch(student, optimizer, tier=tier, on_nan="report") as report:
            steps()
    return report, [*teacher.state_dict().values()], torch.get_rng_state()


@pytest.mark.parametrize(
    ("tier", "without"),
    [
        ("guard", torch.no_grad),
        ("guard", torch.inference_mode),
        ("hooks", torch.no_grad),
        ("live", torch.no_grad),
    ],
)
def test_operator_of_a_teacher_is_named(tier: str, without: Any) -> None:
    report, state, random = train(without=without, tier=tier)
    bad = report.bad_steps[0]
    assert bad.step == 2
    assert bad.origin is not None, bad.notes
    first = inspect.getsourcelines(Teacher.forward)[1]
    assert (bad.origin.op, bad.origin.site.source_line) == ("aten.div.Tensor", first + 4)
    assert not bad.notes
    _, unwatched, unwatched_random = train(without=without, tier=None)
    assert all(map(torch.equal, state, unwatched))
    assert torch.equal(random, unwatched_random)


def test_teacher_that_cannot_run_again_is_named_in_a_note() -> None:
    report, _, _ = train(Batch)
    bad = report.bad_steps[0]
    assert bad.origin.cause == "bad input"
    assert bad.origin.hint == "see the note about a call without gradients; to record it, use --tier live"
    [note] = bad.notes
    assert note.startswith(
        "the result of a call without gradients is an input, as it cannot run again: Teacher"
    )
    assert "NaN" in note or "Inf" in note
    live, _, _ = train(Batch, tier="live")
    assert live.bad_steps[0].origin.op == "aten.div.Tensor"


def test_an_evaluation_keeps_neither_batches_nor_results() -> None:
    model = nn.Linear(4, 3)
    alive: list[Any] = []
    with nncdbg.torch.watch(), torch.no_grad():
        for _ in range(200):
            x = torch.randn(8, 4)
            result = model(x)
            alive += weakref.ref(x), weakref.ref(result)
            del x, result
        [guard] = ACTIVE
        assert len(guard.tape.calls) < 200
        gc.collect()
        assert sum(each() is not None for each in alive) <= 64


def test_results_of_an_evaluation_that_end_are_not_kept() -> None:
    model = nn.Linear(4, 3)
    with nncdbg.torch.watch(), torch.no_grad():
        result = model(torch.zeros(2, 4))
        alive = weakref.ref(result)
        del result
        assert alive() is None


def longer(kind: str) -> Any:
    """Return a training that evaluates between steps, with results that add up as `kind` says."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(10).repeat(20)

    def train(*, zero: float = 1.0) -> None:
        optimizer.zero_grad()
        (model(x).square().mean() / zero).backward()
        optimizer.step()

    def evaluate(count: int) -> Any:
        total = torch.zeros(())
        with torch.no_grad():
            for _ in range(count):
                out = model(x)
                if kind == "numbers":
                    total = total + out.mean().item()
                elif kind == "in place":
                    total += (out.argmax(-1) == x).sum()
                else:
                    total = total + nn.functional.cross_entropy(out, x)
        return total

    return model, optimizer, train, evaluate


@pytest.mark.parametrize("kind", ["numbers", "in place", "losses"])
@pytest.mark.parametrize("tier", ["guard", "live"])
def test_memory_of_an_evaluation_has_a_bound(tier: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tape, live_training):
        monkeypatch.setattr(module, "MUCH_EVALUATED", 8_000_000)
    model, optimizer, train, evaluate = longer(kind)
    alive: list[Any] = []
    kept = []

    def note(module: Any, args: Any, out: Any) -> None:
        alive.append(weakref.ref(out.untyped_storage()))
        kept.append(sum(each() is not None for each in alive))

    model.register_forward_hook(note)
    with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") as report:
        train()
        evaluate(50)
        before = max(kept)
        calls = len(ACTIVE[-1].tape.calls)
        evaluate(100)
        assert max(kept) <= before < 50
        assert len(ACTIVE[-1].tape.calls) <= max(calls, 128)
        train(zero=0.0)
    bad = report.bad_steps[0]
    assert (bad.step, bad.origin and bad.origin.op) == (2, "aten.div.Tensor"), bad.notes


@pytest.mark.parametrize("tier", ["guard", "live"])
def test_results_of_forgotten_evaluations_are_noted(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tape, live_training):
        monkeypatch.setattr(module, "MUCH_EVALUATED", 1_000)
    model, optimizer = nn.Linear(4, 4), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") as report:
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            targets = [(model(torch.ones(80, 4)) * 0).log().sqrt() for _ in range(10)]
        (model(torch.ones(80, 4)) - targets[0]).sum().backward()
        optimizer.step()
    assert tape.FORGOTTEN in report.bad_steps[0].notes, report.bad_steps[0].notes


def test_few_graphs_of_an_evaluation_with_gradients_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive: list[Any] = []
    kept = []

    def note(module: Any, args: Any, out: Any) -> None:
        alive.append(weakref.ref(out))
        kept.append(sum(each() is not None for each in alive))

    model.register_forward_hook(note)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for step in range(2):
            model.train()
            optimizer.zero_grad()
            (model(torch.ones(8, 4)).square().mean() * (0.0 if step else 1.0)).log().backward()
            optimizer.step()
            model.eval()
            for _ in range(30):
                model(torch.ones(8, 4)).square().mean().item()
    assert max(kept) <= 4
    assert report.bad_steps[0].origin is not None, report.bad_steps[0].notes
