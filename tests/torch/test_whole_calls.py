"""`watch` keeps a call of a loss, and of the clipping of gradients, as one call."""

import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.torch.step_calls import WHOLE_CALLS, StepCalls  # noqa: E402


def nothing(*_):
    pass


def two_losses(x, target):
    return functional.cross_entropy(x, target) + functional.mse_loss(x, x.detach())


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x, target):
        return functional.cross_entropy(self.inner(x), target)


TARGET = torch.tensor([0, 1])


def test_tape_has_one_call_for_each_loss():
    original, x = functional.cross_entropy, torch.randn(2, 3, requires_grad=True)
    with StepCalls(nothing, nothing) as calls:
        two_losses(x, TARGET).backward()
        kept = [each.function for each in calls.tape.calls]
    assert kept[0] is original
    assert kept[-1] is torch.autograd.backward
    assert len(kept) == 5, "two losses, detach, addition, backward"


def test_modes_of_the_user_see_the_operators_of_a_loss():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with StepCalls(nothing, nothing) as calls, Mode():
        functional.cross_entropy(torch.randn(2, 3), TARGET)
        kept = [each.function for each in calls.tape.calls]
    assert torch.ops.aten._log_softmax.default in seen
    assert torch.ops.aten._log_softmax.default in kept


@pytest.mark.parametrize(("owner", "name"), WHOLE_CALLS)
def test_functions_are_as_before_afterwards(owner, name):
    original = getattr(owner, name)
    with StepCalls(nothing, nothing):
        assert getattr(owner, name) is not original
    assert getattr(owner, name) is original


def test_function_can_be_pickled_under_the_watch():
    with StepCalls(nothing, nothing):
        replaced = functional.cross_entropy
        assert pickle.loads(pickle.dumps(replaced)) is replaced


def test_script_and_compiler_use_the_original():
    model = WithLoss()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 4)
    with nncdbg.torch.watch(model, optimizer, on_nan="raise") as report:
        scripted = torch.jit.script(nn.CrossEntropyLoss())
        for _ in range(2):
            optimizer.zero_grad()
            compiled(x, TARGET).backward()
            optimizer.step()
        torch.testing.assert_close(scripted(x, TARGET), functional.cross_entropy(x, TARGET))
    assert report.steps == 2


@pytest.mark.parametrize("autocast", [False, True])
def test_report_names_the_operator_inside_of_a_loss(autocast):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for scale in (1.0, 0.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                chances = torch.sigmoid(model(torch.ones(2, 4))) * scale
                loss = functional.kl_div(chances.log(), torch.zeros(2, 3), reduction="batchmean")
            loss.backward()
            optimizer.step()
    text = str(report)
    assert "step 2" in text
    assert "aten.mul.Tensor" in text, "0 * log(0) is computed inside of `kl_div`"
    assert "test_whole_calls.py" in text


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
def test_second_run_clips_the_gradients_of_an_iterator(foreach, named):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for scale in (1.0, 1e30):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)) * scale).sum().backward()
            # At scale 1e30, the norm is Inf, and the clipped gradients are 0.
            parameters = model.parameters()
            if named:
                norm = nn.utils.clip_grad_norm_(parameters=parameters, max_norm=1.0, foreach=foreach)
            else:
                norm = nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
            for each in model.parameters():
                each.grad.mul_(norm)
            optimizer.step()
    text = str(report)
    assert "step 2" in text
    norm_of = "aten._foreach_norm.Scalar" if foreach else "aten.linalg_vector_norm.default"
    assert f"{norm_of} produced it from operands without Inf" in text, "it is inside of the call"
    assert "0 * inf" in text
    assert "test_whole_calls.py" in text
