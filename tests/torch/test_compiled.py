"""Functions and modules of torch.compile under `record`, `watch` and the live debugger."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.hooks import on_compiled_call  # noqa: E402

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="aot_eager")
def loss_of(x, y):
    p = torch.softmax(model(x) * 40, -1)
    return -p.gather(1, y[:, None]).log().mean()

@torch.compile(backend="aot_eager")
def update():
    optimizer.step()

for step in range(3):
    x, y = torch.randn(5, 8) * (step + 1), torch.randint(0, 4, (5,))
    optimizer.zero_grad()
    loss_of(x, y).backward()
    update()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.parametrize("step", [1, 2])
def test_record_has_all_statements_of_compiled_functions(script, capsys, step):
    assert main(["record", "--step", str(step), "-o", "step", script]) == 0
    assert "the step ran eagerly" in capsys.readouterr().err
    graphs = nncdbg.load("step").graphs
    names = [node.op for graph in graphs.values() for node in graph.nodes]
    assert names.count("aten.addmm.default") == 2
    assert names.count("aten.relu.default") == 1
    assert names.count("aten.add_.Tensor") + names.count("aten._foreach_add_.List") in (1, 4)


@pytest.mark.parametrize("tier", ["guard", "hooks", "live"])
def test_watch_names_operator_and_parameters(script, capfd, recwarn, tier):
    torch._dynamo.reset()
    assert main(["watch", "--tier", tier, "--on-nan", "raise", script]) == 1
    out, err = capfd.readouterr()
    warned = [str(each.message) for each in recwarn if issubclass(each.category, UserWarning)]
    assert "step 2: NaN or Inf before the update: loss (1 Inf of 1), 0.weight.grad" in out + err
    assert not warned, "the compiler does not see the functions of nncdbg"
    if tier == "live":
        assert "the step cannot be recorded: it runs code of torch.compile" in out + err
        return
    assert "aten.log.default produced it" in out + err
    assert "from train.py:10" in out + err
    assert (out + err).count("eagerly") in (1, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("tier", ["guard", "hooks", "live"])
@pytest.mark.parametrize("kind", ["fullgraph", "trace"])
def test_code_between_modules_can_be_compiled_whole_or_traced(kind, tier):
    def loss_of(y):
        return (y * 2).relu().mean()

    def train(watched):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        whole = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
        with nncdbg.torch.watch(model, optimizer, tier=tier) if watched else contextlib.nullcontext():
            for _ in range(2):
                optimizer.zero_grad()
                y = model(torch.ones(4, 3))
                loss = whole(y) if kind == "fullgraph" else torch.jit.trace(loss_of, (y.detach(),))(y)
                loss.backward()
                optimizer.step()
        return model.weight.detach().clone()

    assert torch.equal(train(True), train(False))


def test_whole_graph_that_cannot_be_compiled_still_raises_in_a_module(monkeypatch):
    model = torch.nn.Linear(3, 2)
    forward = model.forward

    def breaking_forward(x):
        torch._dynamo.graph_break()
        return forward(x)

    monkeypatch.setattr(model, "forward", breaking_forward)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(torch._dynamo.exc.Unsupported),
        nncdbg.torch.watch(model, optimizer),
    ):
        compiled(torch.ones(4, 3))


def test_a_call_of_a_compiled_function_tells_its_result():
    """Also when it calls itself, or raises."""
    ended = []

    def factorial(x, n):
        if n < 0:
            raise ValueError(n)
        return x if n == 0 else whole(x, n - 1) * n

    whole = torch.compile(factorial, backend="eager")
    give_up = on_compiled_call(lambda *_: None, lambda function, result: ended.append((function, result)))
    try:
        result = whole(torch.ones(()), 3)
        with pytest.raises(ValueError, match="-1"):
            whole(torch.ones(()), -1)
    finally:
        give_up()
    assert result == 6
    assert ended[-2][1] is result
    assert ended[-1][1] is None
    assert {function for function, _ in ended} == {factorial}
    ended.clear()
    whole(torch.ones(()), 3)
    assert not ended


def test_a_second_run_uses_the_results_of_compiled_functions():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(lambda y: y * 2 - 100, backend="aot_eager")
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        compiled(model(torch.ones(4, 3))).log().sum().backward()
        optimizer.step()
    [bad] = report.bad_steps
    assert bad.origin.op == "aten.log.default"
    assert not any("ended early" in note or "from before" in note for note in bad.notes), bad.notes
