"""Findings of a watch over a training are tracebacks of the user's source, with the values of its names."""

from __future__ import annotations

import gc
import importlib.util
import json
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.stats import summarize  # noqa: E402

SOURCE = """
import torch
import nncdbg.torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x):
        h = self.fc(x)
        q = h - h.max()
        return torch.log(q.abs())


def swap(a, b):
    a, b = b, a
    return torch.log(b - a)


def difference(first, second):
    return (first - second).sqrt()


def loop(h, k):
    for _ in range(2):
        h = h - k
    return torch.log(h)


def in_module(model, x, kept):
    return model(x).mean()


def at_the_top(model, x, kept):
    h = model.fc(x)
    pair, other = h, h * 2
    pair, other = other, pair
    kept.update(other=other.detach().clone(), pair=pair.detach().clone())
    h = torch.log(pair - other - h)
    return h.mean()


def in_function(model, x, kept):
    low, high = model.fc(x), model.fc(x) + 1
    kept.update(first=low.detach().clone(), second=high.detach().clone())
    return difference(low, high).mean()


def after_a_swap(model, x, kept):
    low, high = model.fc(x) - 1, model.fc(x)
    kept.update(a=high.detach().clone(), b=low.detach().clone())
    return (swap(low, high) + torch.log(low - high)).mean()


def in_a_loop(model, x, kept):
    return loop(model.fc(x), model.fc(x) + 1).mean()


def in_backward(model, x, kept):
    low = model.fc(x)
    gap = low - low
    return gap.square().sum(dim=-1).sqrt().mean()


def of_input(model, x, kept):
    batch = torch.tensor([[1.0, 2.0, float("nan"), 4.0]])
    return model.fc(batch).mean()


def train(loss_of, kept, on_nan="report", **options):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 4)
    with nncdbg.torch.watch(model, optimizer, on_nan=on_nan, **options) as report:
        loss = loss_of(model, x, kept)
        loss.backward()
        optimizer.step()
    return report
"""
TEXTS = SOURCE.splitlines()


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("script") / "train.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("train_of_tracebacks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first(script, loss_of, **options):
    """Return the first finding of a training with this loss, what the loss kept, and the report."""
    kept: dict[str, Any] = {}
    report = script.train(getattr(script, loss_of), kept, **options)
    return report.bad_steps[0].report.findings[0], kept, report


def functions(finding):
    """Return the functions of the script in a traceback, and the text of the innermost line."""
    own = [each for each in finding.source.lines if each.file.endswith("train.py")]
    return [each.function for each in own], own[-1].text.strip()


def names(finding):
    return {each.name: each.stats for each in finding.source.names}


@pytest.mark.parametrize("tier", ["guard", "live"])
def test_lines_of_a_module_have_functions_and_names(script, tier):
    finding, _, _ = first(script, "in_module", tier=tier)
    assert functions(finding) == (["train", "in_module", "Net.forward"], "return torch.log(q.abs())")
    assert [*names(finding)] == ["q"]
    assert finding.source.part == ""


def test_variables_of_a_function_that_has_returned_are_those_of_the_operators(script):
    finding, kept, _ = first(script, "in_function")
    assert functions(finding) == (["train", "in_function", "difference"], "return (first - second).sqrt()")
    assert names(finding) == {name: summarize(kept[name].numpy()) for name in ("first", "second")}


def test_a_variable_that_is_assigned_again_in_a_loop_has_no_name_after_it(script):
    finding, _, _ = first(script, "in_a_loop")
    assert names(finding) == {}


def test_variables_after_a_swap_are_the_operands(script):
    finding, kept, _ = first(script, "after_a_swap")
    assert names(finding) == {name: summarize(kept[name].numpy()) for name in ("a", "b")}


def test_live_names_are_those_of_their_moment(script):
    finding, kept, _ = first(script, "at_the_top", tier="live")
    assert functions(finding)[1] == "h = torch.log(pair - other - h)"
    found = names(finding)
    assert {name: found[name] for name in ("pair", "other")} == {
        name: summarize(kept[name].numpy()) for name in ("pair", "other")
    }
    assert found["h before"].nan == 0
    assert found["h"].posinf + found["h"].neginf + found["h"].nan > 0


@pytest.mark.parametrize("tier", ["guard", "live"])
def test_a_backward_pass_has_the_traceback_of_the_forward_line(script, tier):
    finding, _, report = first(script, "in_backward", tier=tier)
    assert functions(finding)[1] == "return gap.square().sum(dim=-1).sqrt().mean()"
    assert finding.source.part == "backward of"
    line = TEXTS.index("    return gap.square().sum(dim=-1).sqrt().mean()") + 1
    text = str(report)
    assert f"train.py:{line} `return gap.square().sum(dim=-1).sqrt().mean()`\n" in text
    assert "\n  Traceback (most recent call last):\n" in text


def test_an_input_has_the_traceback_of_its_first_use(script):
    finding, _, _ = first(script, "of_input", tier="live")
    assert (finding.cause, finding.source.part) == ("bad input", "first used by")
    assert names(finding)["batch"].nan == 1


def test_the_update_has_its_parameter(script):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", keep_update=True) as report:
        model(torch.full((1, 2), 1e3)).sum().backward()
        optimizer.step()
    finding = report.bad_steps[0].report.findings[0]
    assert finding.source.part == "update of weight by"
    assert finding.source.lines[-1].text.strip() == "optimizer.step()"
    assert "weight" in names(finding)


def test_json_has_the_traceback(script):
    finding, _, report = first(script, "in_function")
    found = json.loads(json.dumps(report.as_dict()))["bad_steps"][0]["report"]["findings"][0]
    assert found["traceback"][-1] == {
        "file": finding.source.lines[-1].file,
        "line": TEXTS.index("    return (first - second).sqrt()") + 1,
        "function": "difference",
        "text": "return (first - second).sqrt()",
    }
    assert [each["name"] for each in found["names"]] == ["first", "second"]
    assert found["names"][0]["stats"]["nan"] == 0
    assert found["names"][0]["type"] == "f32[2,3]"


def test_a_repeated_traceback_is_not_printed_twice(script):
    _, _, report = first(script, "in_backward")
    text = str(report)
    assert text.count("Traceback (most recent call last):") == 1
    assert ", as in 1\n" in text


def test_tensors_live_no_longer_than_without_names(script):
    alive = []

    def loss_of(model, x, kept):
        h = model.fc(x)
        alive.append(weakref.ref(h))
        return torch.log(h - h).mean()

    report = script.train(loss_of, {})
    assert report.bad_steps
    gc.collect()
    assert [reference() for reference in alive] == [None]


def test_without_the_source_a_saved_step_has_lines_alone(script, tmp_path):
    kept: dict[str, Any] = {}
    report = script.train(script.in_function, kept)
    recorded = report.bad_steps[0].recorded
    recorded.save(tmp_path / "step", source=False)
    source = nncdbg.watch(tmp_path / "step").findings[0].source
    assert source is not None
    assert [each.function for each in source.lines] == [""] * len(source.lines)
    assert source.names == ()
    assert source.lines[-1].text == "    return (first - second).sqrt()".strip()  # The file is the same.
