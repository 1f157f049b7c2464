"""A watch changes nothing of compiled trainings: neither results, nor how often the compiler is called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

HEAD = """
import sys, torch
count = 0
def backend(graph, inputs):
    global count
    count += 1
    return graph.forward
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    def forward(self, x):
        return self.b(torch.relu(self.n(self.a(x))))
def module(m): return torch.compile(m, backend=backend)
def whole(m): return torch.compile(m, backend=backend, fullgraph=True)
def dynamic(m): return torch.compile(m, backend=backend, dynamic=True)
def in_place(m):
    m.compile(backend=backend)
    return m
def function(m): return torch.compile(lambda x: m(x), backend=backend)
def method(m): return torch.compile(m.forward, backend=backend)
def nested(m):
    c = torch.compile(m, backend=backend)
    return torch.compile(lambda x: c(x) * 2, backend=backend)
def loss(m):
    c = torch.compile(m, backend=backend)
    mean = torch.compile(lambda y: torch.nn.functional.mse_loss(y, y * 2), backend=backend, fullgraph=True)
    return lambda x: mean(c(x))
def inside(m):
    return torch.nn.Sequential(torch.compile(m, backend=backend), torch.nn.Tanh())
def breaks(m):
    def f(x):
        y = m.a(x)
        torch._dynamo.graph_break()
        return m.b(torch.relu(m.n(y)))
    return torch.compile(f, backend=backend)
"""
TRAIN = """
def train(kind):
    global count
    torch._dynamo.reset()
    torch.manual_seed(count := 0)
    m = Net()
    f, losses = kind(m), []
    o = torch.optim.SGD(m.parameters(), 0.1)
    with watching(m, o):
        for step in range(3):
            x = torch.randn(5, 4)
            o.zero_grad()
            value = f(x).square().mean()
            value.backward()
            o.step()
            losses.append(value.item())
            with torch.no_grad():
                f(x)
    losses += [float(f(x).mean())]  # without a watch
    tensors = [*m.parameters(), *m.buffers()]
    print("RUN", kind.__name__, count, losses, [float(each.sum()) for each in tensors], torch.rand(1).item())
for kind in (module, whole, dynamic, in_place, function, method, nested, loss, inside, breaks):
    train(kind)
"""
UNWATCHED = "\nfrom contextlib import nullcontext\ndef watching(m, o): return nullcontext()\n"
CALL = "\nimport nncdbg.torch\ndef watching(m, o): return nncdbg.torch.watch(m, o, tier=sys.argv[1])\n"


def lines_of(command: list[str]) -> list[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("RUN")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = tmp_path_factory.mktemp("plain") / "train.py"
    script.write_text(HEAD + UNWATCHED + TRAIN)
    found = lines_of([str(script)])
    assert len(found) == 10
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "tier"),
    [(way, tier) for way in ("command", "call") for tier in ("guard", "hooks", "native", "live")],
)
def test_the_compiler_is_called_as_often(way: str, tier: str, plain: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    if way == "command":
        script.write_text(HEAD + UNWATCHED + TRAIN)
        found = lines_of(["-m", "nncdbg", "watch", "--tier", tier, str(script)])
    else:
        script.write_text(HEAD + CALL + TRAIN)
        found = lines_of([str(script), tier])
    assert found == plain


def test_only_the_compiled_step_has_the_nan(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """import torch
def backend(graph, inputs):
    return lambda *given: tuple(each * float("nan") for each in graph(*given))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x)
m = Net()
c = torch.compile(m, backend=backend)
o = torch.optim.SGD(m.parameters(), 0.1)
c(torch.ones(5, 4)).square().mean().backward()
o.step()
"""
    )
    command = [sys.executable, "-m", "nncdbg", "watch", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "only the compiled step has it" in done.stdout + done.stderr


WRONG = """import torch
def backend(graph, inputs):
    ops = [str(node.target) for node in graph.graph.nodes]
    if not all(any(name in op for op in ops) for name in ("exp", "tanh")):
        return graph.forward
    def run(*given):
        return tuple(each * float("nan") if each.is_floating_point() else each for each in graph(*given))
    return run
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.exp(-h)
        h = torch.nn.functional.dropout(torch.tanh(h))
        return self.b(h)
m = Net()
c = torch.compile(m, backend=backend)
o = torch.optim.SGD(m.parameters(), 0.1)
c(torch.ones(5, 4)).square().mean().backward()
o.step()
"""


def test_the_smallest_compiled_graph_with_the_nan_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRONG)
    command = [sys.executable, "-m", "nncdbg", "watch", "--json", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    part = report["bad_steps"][0]["compiled_part"]
    assert [each["op"] for each in part["statements"]] == ["aten.exp.default", "aten.tanh.default"]
    assert {each["line"] for each in part["statements"]} == {15, 16}
    assert part["complete"]
    assert part["counts"] == "40 NaN of 40"
    assert {"check": "origin", "result": "passed"}.items() <= report["checks"][-1].items()
