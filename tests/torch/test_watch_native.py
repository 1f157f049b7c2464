"""The tier `native` names the first operator with NaN or Inf, and changes no bit of the training."""

import copy
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch import operator_watch  # noqa: E402
from nncdbg.torch.guard import Guard  # noqa: E402
from nncdbg.torch.source_lines import is_user_code  # noqa: E402
from tests.torch.planted import CLEAN, PLANTED  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402
from tests.torch.steps.training import copies, differing_names  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0")

OTHER_OPERATOR = {
    "half_filled_buffer": "aten.addmm.default reads memory that no operator has written",
}
"""Planted cases in which the report names another operator than the truth does."""


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compile the observer once: it is kept in the user's cache folder for all processes and sessions."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    operator_watch.load_observer()


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()


class Net(nn.Module):
    """Makes a NaN in the module `logarithm`, in place, or in the backward pass, if `bad` is set."""

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
        if self.bad == "in place":
            positive = positive.clone()
            positive[2:4].div_(0).mul_(0)
        return self.head(self.logarithm(positive))


FIRST = Net.forward.__code__.co_firstlineno
LINES = {
    "backward": FIRST + 3,
    "in place": FIRST + 9,
    "forward": Logarithm.forward.__code__.co_firstlineno + 1,
}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def train(net, *, steps=4, bad_step=2, bad="", batch=None, optimizer=None, on_nan="report"):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(net, optimizer, tier="native", on_nan=on_nan) as report:
        for step in range(steps):
            net.bad = bad if step == bad_step else ""
            x = torch.randn(8, 3)
            if step == bad_step and batch is not None:
                x = batch
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    return report


def test_operator_of_the_forward_pass_is_named(net):
    bad = train(net, bad="forward").bad_steps[0]
    [operator] = bad.operators
    assert (operator.phase, operator.value, operator.op) == ("forward", "NaN", "aten.log.default")
    assert (operator.path, operator.type, operator.counts) == ("logarithm", "Logarithm", "4 NaN of 32")
    assert operator.location == (__file__, LINES["forward"])
    assert operator.originates
    assert operator.operands == {}
    assert bad.origin.op == "aten.log.default"
    assert (
        "the first NaN of the forward pass originates in aten.log.default, module logarithm (Logarithm): "
        "4 NaN of 32; its operands are finite"
    ) in "\n".join(line.plain for line in bad.lines())


def test_operator_of_the_backward_pass_has_node_and_line_of_the_forward_operator(net):
    bad = train(net, bad="backward").bad_steps[0]
    [operator] = bad.operators
    assert (operator.phase, operator.op, operator.node) == ("backward", "aten.div.Tensor", "SqrtBackward0")
    assert operator.location == (__file__, LINES["backward"])
    assert operator.relation == "gradient of"
    assert operator.type == "Net"


@torch.library.custom_op("nncdbg_native::log_of", mutates_args=())
def log_of(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    return torch.log(x)


log_of.register_fake(torch.empty_like)
log_of.register_autograd(lambda _, gradient: gradient)


def log_in_branch(x):
    return torch.cond(x.sum() > -1e9, lambda t: t.log(), lambda t: t.exp(), (x,))


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (log_of, log_of._init_fn.__code__.co_firstlineno + 2),
        (log_in_branch, log_in_branch.__code__.co_firstlineno + 1),
    ],
)
def test_operator_in_the_body_of_an_operator_is_named(net, log, line):
    net.logarithm.forward = log
    bad = train(net, bad="forward").bad_steps[0]
    operator = bad.operators[0]  # The backward pass computes a branch again.
    assert (operator.op, operator.path, operator.counts) == ("aten.log.default", "logarithm", "4 NaN of 32")
    assert operator.originates
    assert operator.location == (__file__, line)


def test_operator_in_place_is_named(net):
    """A division by zero in a view gives Inf; zero times this is NaN."""
    first, second = train(net, bad="in place").bad_steps[0].operators[:2]
    assert (first.op, first.value, first.counts) == ("aten.div_.Tensor", "Inf", "8 Inf of 8")
    assert (second.op, second.value, second.operands) == ("aten.mul_.Tensor", "NaN", {"self": "8 Inf of 8"})
    assert second.location == (__file__, LINES["in place"])


def test_operator_of_the_update_is_named(net):
    """Without eps, Adam divides 0 by 0 for a parameter with a gradient of 0."""
    net.unused = nn.Parameter(torch.zeros(3))
    net.register_forward_hook(lambda module, args, result: result + (net.unused * 0).sum())
    adam = torch.optim.Adam(net.parameters(), eps=0.0, foreach=False)
    bad = train(net, steps=1, bad_step=0, optimizer=adam).bad_steps[0]
    [operator] = bad.operators
    assert (bad.where, operator.phase, operator.op) == ("update", "optimizer", "aten.addcdiv_.default")
    assert operator.counts == "3 NaN of 3"
    assert "of the update originates in" in str(operator)


def test_bad_batch_is_named_as_operand(net):
    batch = torch.ones(8, 3)
    batch.numpy()[0, 0] = float("nan")
    [operator] = train(net, batch=batch).bad_steps[0].operators
    assert (operator.op, operator.originates) == ("aten.addmm.default", False)
    assert operator.operands == {"mat1": "1 NaN of 24"}
    assert "is in an operand of aten.addmm.default, module first (Linear): mat1 has 1 NaN of 24" in str(
        operator
    )


def test_operator_is_named_where_the_step_cannot_run_again(net):
    """The second run draws another number from the iterator, so it has no NaN."""
    factors = iter([-1.0, *(1.0 for _ in range(5))])
    source = nn.Module()
    source.net = net
    source.forward = lambda x: (net(x).square() * next(factors)).sqrt()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with nncdbg.torch.watch(source, optimizer, tier="native", on_nan="report") as report:
        source(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    bad = report.bad_steps[0]
    assert bad.origin is None
    assert [(each.op, each.value) for each in bad.operators][:1] == [("aten.sqrt.default", "NaN")]


def test_raised_error_names_the_operator(net):
    with pytest.raises(nncdbg.torch.NaNFound, match=r"originates in aten\.log\.default"):
        train(net, bad="forward", on_nan="raise")


def test_masked_softmax_and_scaled_overflow_raise_no_alarm():
    attention = nn.MultiheadAttention(8, 2)
    optimizer = torch.optim.SGD(attention.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    mask = torch.full((4, 4), float("-inf")).triu(1)
    with nncdbg.torch.watch(attention, optimizer, tier="native", on_nan="raise") as report:
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(4, 2, 8) * 100
            scaler.scale(attention(x, x, x, attn_mask=mask)[0].square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert report.ok
    assert report.skipped_by_scaler > 0


def test_inf_of_an_earlier_step_is_forgotten(net):
    def compare(module, args, result):
        if net.bad != "forward":
            torch.zeros(2).log()

    net.first.register_forward_hook(compare)
    [operator] = train(net, bad="forward").bad_steps[0].operators
    assert (operator.value, operator.path) == ("NaN", "logarithm")


def test_operators_of_other_threads_are_not_checked(net):
    done = threading.Event()

    def make_nan():
        while not done.wait(0.001):
            torch.tensor([-1.0]).log()

    thread = threading.Thread(target=make_nan)
    thread.start()
    try:
        [operator] = train(net, bad="backward").bad_steps[0].operators
    finally:
        done.set()
        thread.join()
    assert operator.node == "SqrtBackward0"


def test_interrupt_inside_of_the_observer_is_raised_before_the_update(net):
    """The tracer interrupts the callback of the observer for new code as Ctrl-C does."""

    class New(nn.Module):
        def forward(self, x):
            return net(x) * 2

    def interrupt_once(frame, event, argument):
        if frame.f_code is not is_user_code.__code__:
            return None if event == "call" and frame.f_code.co_name != "call" else interrupt_once
        sys.settrace(None)
        raise KeyboardInterrupt

    before = copy.deepcopy(net.state_dict())
    sys.settrace(interrupt_once)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(New(), optimizer=torch.optim.SGD(net.parameters(), lr=0.01))
    finally:
        sys.settrace(None)
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())


def test_many_steps_keep_no_code_and_no_module(net):
    def references():
        gc.collect()
        return [sys.getrefcount(each) for each in (Net.forward.__code__, train.__code__, net, net.first)]

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    train(net, optimizer=optimizer)
    before = references()
    train(net, steps=50, optimizer=optimizer)
    assert references() == before
    with nncdbg.torch.watch(net, optimizer, tier="native"):
        net(torch.randn(8, 3))
        assert references()[0] > before[0]  # The step has not ended yet.
    assert references() == before


def test_forked_process_is_not_watched(net):
    def child(queue):
        torch.tensor([-1.0]).log()
        queue.put(os.getpid())

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    trips: list[Any] = []
    with Guard(net, optimizer, trips.append, tier="native"):
        process = context.Process(target=child, args=(queue,))
        process.start()
        assert queue.get(timeout=600) == process.pid
        process.join()
        net(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    assert process.exitcode == 0
    assert trips == []


@pytest.mark.nightly
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in PLANTED])
def test_planted_operator_is_named(case):
    training = case.build()
    trips: list[Any] = []
    with Guard(training.model, training.optimizers, trips.append, tier="native"):
        for _ in range(case.first_bad_step + 1):
            training.step()
    value = {"nan": "NaN", "inf": "Inf"}[case.value]
    named = [
        each
        for each in trips[0].operators
        if (each.op, each.value, each.originates) == (case.op, value, case.phase != "data")
    ]
    assert bool(named) == (case.name not in OTHER_OPERATOR)
    if named:
        assert named[0].location == (case.file, case.line)
        assert named[0].node == case.node.rpartition("::")[2]
        if case.phase != "data":
            assert named[0].phase == case.phase


@pytest.mark.nightly
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CLEAN])
def test_clean_training_raises_no_alarm(case):
    training = case.build()
    trips: list[Any] = []
    with Guard(training.model, training.optimizers, trips.append, tier="native"):
        for _ in range(3):
            training.step()
    assert trips == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "step",
    [pytest.param(each, id=each.name) for each in STEPS[::7] if not each.heavy and not each.skip_reason],
)
def test_training_is_bit_equal_and_raises_no_alarm(step):
    plain = step.build()
    losses = [plain.run().detach().clone() for _ in range(2)]
    training = step.build()
    trips: list[Any] = []
    with Guard(training.models, training.optimizers, trips.append, tier="native"):
        watched = [training.run().detach().clone() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(losses, watched, strict=True))
    assert differing_names(copies(plain.changed()), copies(training.changed())) == []
    assert trips == []


def test_profiler_sees_all_operators_beside_the_watch(net):
    from torch.profiler import profile

    def names(tier):
        with nncdbg.torch.watch(net, torch.optim.SGD(net.parameters()), tier=tier), profile() as seen:
            net.zero_grad()
            net(torch.randn(8, 3)).sum().backward()
        return sorted(event.name for event in seen.events())

    assert names("native") == names("guard")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
@pytest.mark.parametrize("value", ["NaN", "Inf"])
def test_value_is_found_anywhere_in_memory(dtype, value):
    """In dense and strided results, at the start, at the end and in the middle of a block."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    trips: list[Any] = []
    with Guard(None, optimizer, trips.append, tier="native"):
        for length, index in ((1, 0), (5000, 2500), (5000, 4999)):
            base = torch.zeros(length, 3, dtype=dtype)
            divisor = torch.ones(length, dtype=dtype)
            divisor[index] = 0
            base[:, 1] = 0 if value == "NaN" else 1
            base[:, 1].div_(divisor)
            (parameter * torch.where(base[:, 1].isfinite(), 0.0, float("nan")).sum()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            parameter.data.fill_(1.0)
    counts = [trip.operators[0].counts for trip in trips]
    assert [trip.operators[0].op for trip in trips] == ["aten.div_.Tensor"] * 3
    assert all(each.startswith("1 ") and value in each for each in counts) or dtype.is_complex


# -- compiling ---------------------------------------------------------------------------------


@pytest.fixture
def _fresh(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    operator_watch.load_observer.cache_clear()
    yield
    operator_watch.load_observer.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_missing_compiler_is_an_error_with_a_hint(net, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"there is no C\+\+ compiler") as error:
        train(net)
    assert "tier hooks" in str(error.value.hint)
    monkeypatch.setenv("CXX", "no-compiler -O1")
    with pytest.raises(UsageError, match="CXX names no-compiler, which does not exist"):
        train(net)


@pytest.mark.usefixtures("_fresh")
def test_failed_compilation_quotes_the_compiler(net, tmp_path, monkeypatch):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'error: no such standard' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(UsageError, match="ended with code 3:\nerror: no such standard"):
        train(net)
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.usefixtures("_fresh")
def test_cache_folder_that_cannot_be_written_is_an_error(net, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot compile its observer") as error:
        train(net)
    assert "XDG_CACHE_HOME" in str(error.value.hint)


LOADING = """
import torch, ctypes
from nncdbg.torch.operator_watch import load_observer
load_observer().nncdbg_forget()
"""


@pytest.mark.usefixtures("forked_processes")
def test_processes_compile_at_once_and_reuse_the_library(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", LOADING], env=environment, stderr=subprocess.PIPE, text=True
        )

    first = [start(), start()]
    notes = [process.communicate(timeout=300)[1] for process in first]
    assert [process.returncode for process in first] == [0, 0], notes
    assert any("compiling the observer" in each for each in notes)
    [library] = (tmp_path / "nncdbg" / "observer").iterdir()
    written = library.stat().st_mtime_ns
    again = start()
    assert again.communicate(timeout=300)[1] == ""
    assert library.stat().st_mtime_ns == written


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    y = model(torch.randn(2, 3))
    (y if step < 2 else y.abs().neg().log()).sum().backward()
    optimizer.step()
"""


def test_command_reports_the_operator_as_json(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert main(["watch", "--tier", "native", "--on-nan", "raise", "--json", "train.py"]) == 1
    [step] = json.loads(capfd.readouterr().out)["bad_steps"]
    operator = step["operators"][0]
    assert (operator["phase"], operator["value"], operator["op"]) == ("forward", "NaN", "aten.log.default")
    assert operator["location"]["line"] == 8
    assert operator["originates"] is True


class Scaled(nn.Module):
    """Scales a hidden tensor in place by harmless numbers, then by `factor`."""

    def __init__(self, factor):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.factor = factor
        self.spoils = False

    def forward(self, x):
        hidden = self.first(x).clone()
        if self.spoils:
            hidden.data.view(-1).numpy()[0] = float("nan")  # No operator writes it.
        with torch.no_grad():
            hidden.mul_(0.5).div_(2).add_(1e-8).mul_(self.factor)
        return hidden


@pytest.mark.parametrize(
    ("factor", "spoils", "expected"),
    [
        (1e39, False, "the first Inf of the forward pass originates in aten.mul_.Tensor"),
        (0.5, True, "the first NaN of the forward pass is in an operand of aten."),
        (0.5, False, ""),
    ],
)
def test_update_in_place_by_a_harmless_number_hides_nothing(factor, spoils, expected):
    model = Scaled(factor)
    model.spoils = spoils
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", tier="native") as report:
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
    assert report.ok == (not expected)
    if expected:
        assert expected in str(report)


class Moved(nn.Module):
    """Makes a tensor of the user's numbers with an operator that makes no NaN or Inf itself."""

    def __init__(self, operation, number):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.operation = operation
        self.number = number

    def forward(self, x):
        given = torch.from_numpy(numpy.full((2, 4), self.number))  # No operator writes it.
        hidden = self.first(x)
        return hidden + self.operation(hidden, given).sum() * 0


MOVES = {
    "aten.relu.default": lambda hidden, given: given.relu(),
    "aten.abs.default": lambda hidden, given: given.abs(),
    "aten.neg.default": lambda hidden, given: -given,
    "aten.clone.default": lambda hidden, given: given.clone(),
    "aten.cat.default": lambda hidden, given: torch.cat([hidden.double(), given]),
    "aten.stack.default": lambda hidden, given: torch.stack([hidden.double(), given]),
    "aten.masked_fill.Scalar": lambda hidden, given: given.masked_fill(given == 0, 1.0),
    "aten.div.Tensor": lambda hidden, given: given / 2,
}


@pytest.mark.parametrize("op", MOVES)
def test_operator_that_makes_no_nan_is_named_if_an_operand_has_one(op):
    """Its result is not read if all operands were: numbers of the user were not."""
    for number, expected in ((1.0, []), (float("nan"), [op])):
        torch.manual_seed(0)
        net = Moved(MOVES[op], number)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with nncdbg.torch.watch(net, optimizer, tier="native", on_nan="report") as report:
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
        assert [each.operators[0].op for each in report.bad_steps[:1]] == expected


@pytest.mark.parametrize(
    ("overflow", "op"),
    [
        (lambda wide: wide.relu().float(), "aten._to_copy.default"),
        (lambda wide: wide.relu() / 1e-100, "aten.div.Tensor"),
        (lambda wide: wide.relu().neg() * 1e100, "aten.mul.Tensor"),
    ],
)
def test_overflow_of_numbers_that_were_finite_is_named(net, overflow, op):
    def add(module, args, result):
        with torch.no_grad():
            wide = torch.full((4,), 1e150, dtype=torch.float64) * 1e100
            added = (0 * overflow(wide)).sum().float()
        return result + added

    net.register_forward_hook(add)
    assert train(net, steps=1).bad_steps[0].operators[0].op == op


def test_absolute_value_of_complex_numbers_that_overflows_is_named():
    class Magnitude(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return torch.complex(x * 0 + 3e38, x * 0 + 3e38).abs() * self.weight

    bad = train(Magnitude(), steps=1).bad_steps[0]
    assert (bad.operators[0].op, bad.operators[0].value) == ("aten.abs.default", "Inf")
