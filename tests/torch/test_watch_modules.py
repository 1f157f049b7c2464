"""The tier `hooks` names the first module with NaN or Inf, and changes no bit of the training."""

import copy
import json
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as torch_modules  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch import module_watch  # noqa: E402
from nncdbg.torch.guard import Guard  # noqa: E402
from tests.torch.planted import CLEAN  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402
from tests.torch.steps.training import copies, differing_names  # noqa: E402


class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()


class Net(nn.Module):
    """Makes a NaN in the module `logarithm`, or in the gradient of `first`, if `bad` is set."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.logarithm = Logarithm()
        self.head = nn.Linear(4, 1)
        self.bad = ""

    def forward(self, x):
        hidden = self.first(x)
        if self.bad == "backward":
            hidden = (hidden * 0).sqrt()
        positive = hidden.square() + 1
        if self.bad == "forward":
            positive = torch.cat([positive[1:], -positive[:1]])
        return self.head(self.logarithm(positive))


pytestmark = pytest.mark.usefixtures("either_kernels")

LINES = {
    "first": Net.forward.__code__.co_firstlineno + 1,
    "logarithm": Net.forward.__code__.co_firstlineno + 7,
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def train(net, *, steps=4, bad_step=2, bad="", batch=None, on_nan="report"):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(net, optimizer, tier="hooks", on_nan=on_nan) as report:
        for step in range(steps):
            net.bad = bad if step == bad_step else ""
            x = torch.randn(8, 3)
            if step == bad_step and batch is not None:
                x[0, 0] = batch
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    return report


def test_module_that_makes_a_nan_is_named(net):
    bad = train(net, bad="forward").bad_steps[0]
    [module] = bad.modules
    assert (module.phase, module.value, module.path, module.type) == (
        "forward",
        "NaN",
        "logarithm",
        "Logarithm",
    )
    assert module.counts == "4 NaN of 32"
    assert module.location == (__file__, LINES["logarithm"])
    assert module.operands == {}
    assert bad.origin.op == "aten.log.default"
    assert (
        "first NaN of the forward pass is in the output of logarithm (Logarithm): 4 NaN of 32; "
        "its inputs and parameters are finite"
    ) in "\n".join(line.plain for line in bad.lines())


def test_nan_of_a_gradient_is_named_between_two_modules(net):
    bad = train(net, bad="backward").bad_steps[0]
    [module] = bad.modules
    assert (module.phase, module.path, module.counts) == ("backward", "first", "32 NaN of 32")
    assert module.finite == "logarithm (Logarithm)"
    assert module.location == (__file__, LINES["first"])
    assert "SqrtBackward0" in str(bad.origin.site.node)


def test_bad_batch_and_parameter_are_named_as_operands(net):
    [module] = train(net, batch=float("nan")).bad_steps[0].modules
    assert (module.path, module.operands) == ("first", {"input": "1 NaN of 24"})
    net = Net()
    with torch.no_grad():
        net.head.weight[0, 1] = float("nan")
    [module] = train(net).bad_steps[0].modules
    assert (module.path, module.operands) == ("head", {"weight": "1 NaN of 4"})


def test_module_is_named_where_the_step_cannot_run_again(net):
    """The second run draws another batch from the iterator, so it has no NaN."""
    batches = iter([torch.tensor([[float("nan")] * 3]), *(torch.ones(8, 3) for _ in range(5))])
    source = nn.Module()
    source.net = net
    source.forward = lambda: net(next(batches))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(source, optimizer, tier="hooks", on_nan="report") as report:
        source().sum().backward()
        optimizer.step()
    bad = report.bad_steps[0]
    assert bad.origin is None
    assert [(each.path, each.type) for each in bad.modules] == [("net.first", "Linear")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("class_", module_watch._KEEP_FINITE, ids=lambda each: each.__name__)
def test_module_that_is_not_checked_makes_finite_outputs_of_all_finite_inputs(class_, dtype):
    sizes = {nn.Unflatten: (1, (4, 4)), nn.PixelShuffle: (2,), nn.PixelUnshuffle: (2,)}
    limits = torch.finfo(dtype)
    extremes = [limits.max, limits.min, limits.tiny, -limits.tiny, limits.smallest_normal / 2, 0.0, -0.0, 1.0]
    x = torch.tensor(extremes, dtype=dtype).repeat(2 * 16 * 4 * 4 // len(extremes)).view(2, 16, 4, 4)
    assert torch.isfinite(class_(*sizes.get(class_, ()))(x)).all()


class Twice(nn.ReLU):
    def forward(self, x):
        return super().forward(x) / 0


class Between(nn.Module):
    """Calls `inner` with the output of `first`, after `write`."""

    def __init__(self, inner, write=None):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.inner = inner
        self.head = nn.Linear(4, 1)
        self.write = write

    def forward(self, x):
        hidden = self.first(x)
        if self.write is not None:
            hidden = self.write(hidden)
        return self.head(self.inner(hidden))


def _infinite_relu():
    relu = nn.ReLU()
    relu.forward = lambda x: x * float("inf")
    return relu


@pytest.mark.parametrize(
    "build",
    [
        lambda: Between(Twice()),
        lambda: Between(_infinite_relu()),
        lambda: Between(nn.ReLU(), lambda hidden: hidden / 0),
        lambda: Between(nn.ReLU(), lambda hidden: hidden.div_(0)),
        lambda: Between(nn.ReLU(inplace=True), lambda hidden: hidden.div_(0)),
        lambda: Between(nn.Flatten(), lambda hidden: hidden.div_(0)),  # returns its input
    ],
    ids=["subclass", "own forward", "quotient", "in place", "in place twice", "the same tensor"],
)
def test_bad_output_of_an_activation_is_named_there(build):
    torch.manual_seed(0)
    model = build()
    # A ReLU would make an infinity of four negative units finite.
    assert model.first(torch.ones(2, 3)).max() > 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nncdbg.torch.watch(model, optimizer, tier="hooks", on_nan="report") as report:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
    assert report.bad_steps[0].modules[0].path == "inner"


@pytest.mark.parametrize("inplace", [False, True])
def test_activation_of_a_checked_output_is_not_read(inplace, either_kernels, monkeypatch):
    if either_kernels == "library":
        pytest.skip("the library reads memory without a function that could be counted")

    def counted(tensor):
        checked.append(tuple(tensor.shape))
        return True

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace), nn.Unflatten(1, (2, 2)), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checked: list[tuple[int, ...]] = []
    with nncdbg.torch.watch(model, optimizer, tier="hooks"), monkeypatch.context() as patched:
        patched.setattr(module_watch, "_finite", counted)
        model(torch.ones(5, 3))
    assert checked == [(5, 4), (5, 2, 1)]


def test_compiled_autograd_runs_without_the_checks_of_gradients(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(net, optimizer, tier="hooks", on_nan="report") as report:
        for bad in ("", "forward"):
            net.bad = bad
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                net(torch.randn(8, 3)).mean().backward()
            optimizer.step()
    assert [[each.path for each in step.modules] for step in report.bad_steps] == [["logarithm"]]


def test_loss_outside_of_modules_is_noted(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(net, optimizer, tier="hooks", on_nan="report") as report:
        (net(torch.randn(8, 3)).detach().mean() * 0 / 0 + net.head.bias.sum()).backward()
        optimizer.step()
    [bad] = report.bad_steps
    assert bad.modules == []
    assert "no NaN or Inf was found in the outputs of modules or their gradients" in bad.notes


def sampled():
    """Return every seventh step, which covers each file of the corpus."""
    return [
        pytest.param(step, id=step.name) for step in STEPS[::7] if not step.heavy and not step.skip_reason
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("step", sampled())
def test_training_is_bit_equal_and_raises_no_alarm(step):
    plain = step.build()
    losses = [plain.run().detach().clone() for _ in range(2)]
    training = step.build()
    trips: list[Any] = []
    with Guard(training.models, training.optimizers, trips.append, tier="hooks"):
        watched = [training.run().detach().clone() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(losses, watched, strict=True))
    assert differing_names(copies(plain.changed()), copies(training.changed())) == []
    assert trips == []


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CLEAN[::5]])
def test_clean_training_raises_no_alarm(case):
    training = case.build()
    trips: list[Any] = []
    with Guard(training.model, training.optimizers, trips.append, tier="hooks"):
        for _ in range(3):
            training.step()
    assert trips == []


def test_module_of_an_earlier_step_is_forgotten(net):
    class Masked(nn.Module):
        def forward(self, x):
            return torch.cat([x, torch.full_like(x, -torch.inf)], 1)

    net.mask = Masked()
    net.first.register_forward_hook(lambda module, args, result: net.mask(result)[:, :4])
    report = train(net, bad="forward")
    modules = report.bad_steps[0].modules
    assert [(each.path, each.value) for each in modules] == [("mask", "Inf"), ("logarithm", "NaN")]
    net = Net()
    assert [each.path for each in train(net, bad="forward").bad_steps[0].modules] == ["logarithm"]


def test_watch_leaves_no_hook_filter_or_reference(net):
    before = list(warnings.filters)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(net, optimizer, tier="hooks"):
        output = net(torch.randn(2, 3))
    assert warnings.filters == before
    assert not torch_modules._global_forward_hooks
    (output.sum() * float("nan")).backward()
    assert net.first.weight.grad.isnan().any()
    assert copy.deepcopy(net).head.weight.shape == pickle.loads(pickle.dumps(net)).head.weight.shape


def test_compiled_module_is_checked_without_a_warning(net):
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nncdbg.torch.watch(net, optimizer, tier="hooks", on_nan="report") as report:
            compiled(torch.randn(8, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            compiled(torch.full((8, 3), float("inf"))).sum().backward()
            optimizer.step()
    assert [each.type for each in report.bad_steps[0].modules][:1] == [type(net).__name__]


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(2, 3)
    if step == 2:
        x[1, 1] = float("inf")
    model(x).sum().backward()
    optimizer.step()
"""


def test_command_reports_the_module_as_json(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert main(["watch", "--tier", "hooks", "--on-nan", "raise", "--json", "train.py"]) == 1
    [step] = json.loads(capfd.readouterr().out)["bad_steps"]
    module = step["modules"][0]
    assert (module["phase"], module["path"], module["type"]) == ("forward", "0", "Linear")
    assert module["operands"] == {"input": "1 Inf of 6"}
    assert module["location"]["line"] == 10
