"""A parameter to which the script gives other memory has the operator that made the memory as its origin."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg.torch  # noqa: E402


def assigned(weight: Any) -> None:
    small = weight.data * 0
    weight.data = small / small.norm()  # BAD


def assigned_as_view(weight: Any) -> None:
    small = weight.detach().flatten() * 0
    made = small / small.norm()  # BAD
    weight.data = made.view(2, 4)


def copied(weight: Any) -> None:
    small = weight.data * 0
    weight.data.copy_(small / small.norm())  # BAD


def set_in_place(weight: Any) -> None:
    small = weight.data * 0
    with torch.no_grad():
        weight.set_(small / small.norm())  # BAD


def from_numpy(weight: Any) -> None:
    weight.data = torch.from_numpy(np.full((2, 4), np.nan, np.float32))


def watched(write: Any, place: str = "after") -> tuple[Any, list[Any], list[Any]]:
    """Return the report, the parameters after it, and those of a training without a watch."""
    ended = []
    for watches in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with nncdbg.torch.watch(on_nan="report") if watches else torch.enable_grad() as report:
            for step in range(4):
                optimizer.zero_grad()
                model(torch.randn(5, 4)).square().mean().backward()
                if step == 1 and place == "before":
                    write(model.weight)
                optimizer.step()
                if step == 1 and place == "after":
                    write(model.weight)
        ended.append([each.detach().clone() for each in model.parameters()])
    return report, *ended


def bad_line(write: Any) -> int:
    lines, first = inspect.getsourcelines(write)
    [line] = [first + number for number, text in enumerate(lines) if text.rstrip().endswith("# BAD")]
    return line


@pytest.mark.parametrize("write", [assigned, assigned_as_view, copied, set_in_place])
def test_operator_is_named(write: Any) -> None:
    report, unwatched, after = watched(write)
    bad = report.bad_steps[0]
    assert bad.step == 3
    assert bad.origin is not None, bad.notes
    found = bad.origin.op, bad.origin.site.source_line, bad.origin.cause
    assert found == ("aten.div.Tensor", bad_line(write), "zero divided by zero")
    assert not bad.notes
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(unwatched, after, strict=True))


@pytest.mark.parametrize("write", [assigned, assigned_as_view])
def test_line_is_named_if_the_update_comes_between(write: Any) -> None:
    report, _, _ = watched(write, "before")
    bad = report.bad_steps[0]
    assert (bad.step, list(bad.bad)) == (2, ["weight"])
    [note] = [each for each in bad.notes if "was given memory" in each]
    assert note.startswith("before the update, weight was given memory that aten.div.Tensor made, ")
    assert note.endswith(f"test_replaced_memory.py:{bad_line(write)}")
    assert any("not this update" in each for each in bad.notes)


def test_memory_that_no_operator_made_has_no_operator() -> None:
    report, _, _ = watched(from_numpy)
    bad = report.bad_steps[0]
    assert (bad.step, bad.origin.site.value, bad.origin.cause) == (3, "weight", "bad parameter")
    assert not bad.origin.site.op
    assert "no update made it" in bad.origin.hint
    assert "`weight.data = ...`" in bad.origin.hint
