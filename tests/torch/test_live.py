"""A training under the live debugger stops at the places that are set, and computes the same."""

import os
import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.torch import storages  # noqa: E402
from nncdbg.torch.live.breakpoints import parse_breakpoint  # noqa: E402
from nncdbg.torch.live.target import ScriptTarget  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402
from nncdbg.torch.storages import NotCopied  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.drop(torch.tanh(self.hidden(x))))


LINE = Net.forward.__code__.co_firstlineno + 1


def train(steps=2, bad=None):
    """Train, and return the parameters.  The gradient of the root is Inf in the step `bad`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        x = torch.randn(16, 4)
        scale = 0.0 if step == bad else 1.0
        loss = (model(x).square().sum(-1) * scale).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


class Stops:
    """Keeps what is seen at each stop, and continues with the given commands; with `continue` after them."""

    def __init__(self, *commands):
        self.commands = [*commands]
        self.seen = []
        self.said = []
        self.nodes = []
        self.process = os.getpid()

    def hold(self, debugger):
        assert os.getpid() == self.process
        operator = debugger.live.operator
        self.seen.append((operator.step, operator.phase, operator.signature.name, debugger.stop.detail))
        self.nodes.append(operator.sequence)
        command = self.commands.pop(0) if self.commands else "run"
        if callable(command):
            command(debugger)
            command = "run"
        assert getattr(debugger, command)().reason == "end"

    def run(self, *breakpoints, catch=(), history=False, **training):
        live = LiveTraining(self.hold, self.said.append, history=history)
        for number, each in enumerate(breakpoints, 1):
            live.add(parse_breakpoint(number, each) if isinstance(each, str) else each)
        live.catch(dict.fromkeys(catch))
        with live:
            return train(**training)


@pytest.mark.parametrize("history", [False, True])
def test_stops_do_not_change_the_training(history):
    stops = Stops(*["step_into"] * 12)
    found = stops.run("aten.tanh", "aten.bernoulli_", "@backward", "%out.weight", history=history)
    assert all(map(torch.equal, found, train()))
    assert len(stops.seen) > 15


@pytest.mark.parametrize("history", [False, True])
def test_moves_by_lines_do_not_change_the_training(history):
    moves = [*["step"] * 8, "back", "next", "rback", "finish", "nexti", "backi", *["next"] * 8]

    def hold(debugger):
        target = ScriptTarget(live, debugger)
        source = target.source
        assert source is not None
        stops.append(source.frames()[0].line)
        while not target.continues:
            with suppress(UsageError):
                source.move(moves.pop(0) if moves else "next")

    stops: list[int] = []
    notes: list[str] = []
    live = LiveTraining(hold, notes.append, history=history)
    live.add(parse_breakpoint(1, f"test_live.py:{LINE}"))
    with live:
        found = train()
    assert all(map(torch.equal, found, train()))
    assert len(stops) > 10
    assert LINE in stops


def test_operator_with_condition_on_its_result():
    stops = Stops()
    stops.run("aten.addmm if max($out) > 1e4", "aten.addmm if $out.shape[1] == 2 and $step == 2")
    assert [(step, name) for step, _, name, _ in stops.seen] == [(2, "aten.addmm.default")]
    assert "breakpoint 2, op aten.addmm if $out.shape[1] == 2" in stops.seen[0][3]


@pytest.mark.parametrize(
    ("place", "phase", "name"),
    [
        ("@out", "forward", "aten.t.default"),
        ("@out.backward", "backward", "aten.t.default"),
        ("@optimizer", "optimizer", "aten.lift_fresh.default"),
        ("%hidden.bias", "optimizer", "aten.mul_.Tensor"),
        ("%hidden.bias.grad", "backward", "aten.detach.default"),
        (f"test_live.py:{LINE}", "forward", "aten.t.default"),
    ],
)
def test_places(place, phase, name):
    stops = Stops()
    stops.run(place, steps=1)
    assert stops.seen[0][1:3] == (phase, name)


def test_line_stops_once_for_all_its_operators():
    stops = Stops()
    stops.run(f"test_live.py:{LINE}", steps=3)
    assert [step for step, *_ in stops.seen] == [1, 2, 3]


def split_over_lines(x):
    for _ in range(2):
        x = (
            x.neg()
            + x.abs()
        ).exp()  # fmt: skip
    return x


def through(depth, x):
    if depth:
        return through(depth - 1, x)
    return split_over_lines(x.sin())


@pytest.mark.parametrize("others", [[], ["test_live.py:1"], ["aten.sin"]])
@pytest.mark.parametrize(
    ("line", "operators"),
    [
        (split_over_lines.__code__.co_firstlineno + 3, ["neg", "add"] * 2),
        (split_over_lines.__code__.co_firstlineno + 4, ["abs"] * 2),
        (through.__code__.co_firstlineno + 3, ["sin"]),
        (through.__code__.co_firstlineno + 2, ["sin"]),
    ],
)
def test_line_stops_once_per_execution_whatever_ran_before_it(line, operators, others):
    stops = Stops()
    live = LiveTraining(stops.hold, stops.said.append)
    live.add(parse_breakpoint(1, f"test_live.py:{line}"))
    for number, each in enumerate(others, 2):
        live.add(parse_breakpoint(number, each))
    with live:
        through(6, torch.ones(2).cos())
        torch.ones(2).tan()
    at_line = [name for *_, name, detail in stops.seen if "breakpoint 1" in detail]
    assert [name.split(".")[1] for name in at_line] == operators


@pytest.mark.parametrize("history", [False, True])
def test_catch_stops_where_inf_and_nan_originate(history):
    def look(debugger):
        assert debugger.stop.node.op == debugger.live.operator.signature.name

    stops = Stops(look, look)
    stops.run(catch=("nan", "inf"), bad=2, history=history)
    assert [seen[:3] for seen in stops.seen[:2]] == [
        (2, "backward", "aten.div.Tensor"),
        (2, "backward", "aten.mul.Tensor"),
    ]


def test_mask_of_infinity_is_not_caught():
    stops = Stops()
    live = LiveTraining(stops.hold, stops.said.append)
    live.catch({"nan": None, "inf": None})
    with live:
        scores = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
        torch.softmax(scores, -1)
        torch.empty(4).fill_(float("nan"))
        torch.tensor(float("inf")) + 1
    assert stops.seen == []


def test_back_to_the_start_of_the_step_and_forward_to_the_script():
    def travel(debugger):
        present = debugger.timeline.tick
        loss = debugger.value("loss").copy()
        assert debugger.go_to(0).reason == "entry"
        assert debugger.run().detail == "the script is here"
        assert debugger.timeline.tick == present
        assert debugger.value("loss") == loss
        assert debugger.step_back().reason == "step"

        # From the past, a step ends at the place of the script, and only the next one leaves it.
        assert debugger.step_over().reason == "step"
        assert debugger.wanted == ""

    stops = Stops(travel)
    stops.run("aten.tanh_backward hits 2", history=True)
    assert [seen[:2] for seen in stops.seen] == [(2, "backward")]


def test_steps_follow_operators_modules_and_nodes():
    stops = Stops("step_into", "step_out", "step_over", "step_over")
    stops.run("@hidden hits 1", steps=1)
    assert [name.split(".")[1] for _, _, name, _ in stops.seen] == [
        "t",
        "addmm",
        "tanh",
        "detach",
        "pow",
    ]
    stops = Stops("step_out", "step_out")
    stops.run("@backward", steps=1)
    assert len(stops.nodes) == len(set(stops.nodes)) == 3


def test_logpoint_prints_values_and_does_not_stop():
    stops = Stops()
    stops.run(parse_breakpoint(1, "aten.mean", log="step {$step}: {$out > 0} {$nothing}"), steps=2)
    assert stops.seen == []
    assert stops.said[0].startswith("step 1: True <")
    assert len(stops.said) == 2


def test_failing_condition_stops_and_says_why():
    stops = Stops()
    stops.run("aten.tanh if max(%no.such) > 1 hits 1", steps=1)
    assert "its condition failed: nothing is named %no.such" in stops.seen[0][3]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("aten.softmaxx", "torch has no operator aten.softmaxx"),
        ("12", "line 12 of which file"),
        ("aten.mm if", "no condition"),
        ("aten.mm hits many", "is not a number"),
    ],
)
def test_wrong_places(place, words):
    with pytest.raises(UsageError, match=words):
        parse_breakpoint(1, place)


def test_unknown_module_is_refused_once_the_models_are_known():
    def add(debugger):
        with pytest.raises(UsageError, match="named outt") as caught:
            live.add(parse_breakpoint(2, "@outt"))
        assert caught.value.hint == "did you mean out?"

    stops = Stops(add)
    live = LiveTraining(stops.hold, stops.said.append)
    live.add(parse_breakpoint(1, "aten.tanh hits 1"))
    with live:
        train(steps=1)
    assert len(stops.seen) == 1
    with pytest.raises(UsageError, match="cannot catch 'race'"):
        live.catch({"race": None})


@pytest.mark.parametrize("history", [False, True])
def test_training_without_memory_for_a_stop_continues(history, monkeypatch):
    def fail(part, kept, memory):
        raise NotCopied(kept.keys, part.nbytes, "out of memory")

    monkeypatch.setattr(storages, "_copied", fail)
    stops = Stops()
    found = stops.run("aten.tanh", history=history)
    assert stops.seen == []
    assert len(stops.said) == 2
    assert stops.said[0].startswith("no stop at aten.tanh.default: ")
    assert "bytes cannot be copied: out of memory" in stops.said[0]
    assert all(map(torch.equal, found, train()))


def test_step_number_counts_the_steps_that_a_scaler_skips():
    stops = Stops()
    live = LiveTraining(stops.hold, stops.said.append)
    live.add(parse_breakpoint(1, "aten.tanh"))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with live:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [step for step, *_ in stops.seen] == [1, 2, 3]


# -- what a script may use -------------------------------------------------------------------


class Doubled(TensorDataset):
    """Runs an operator in the workers."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0].mul(2)


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def checkpointed(model):
    return lambda x: checkpoint(model, x, use_reentrant=False)


def checkpointed_reentrantly(model):
    return lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True)


def mapped(model):
    parameters = dict(model.named_parameters())

    def one(row):
        return torch.func.functional_call(model, parameters, (row.unsqueeze(0),)).squeeze(0)

    return torch.vmap(one, randomness="different")


def train_with(wrapped=lambda model: model, workers=0, backward=torch.Tensor.backward):
    """Train on the batches of a DataLoader, and return the parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    run = wrapped(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x in DataLoader(Doubled(torch.randn(24, 4)), batch_size=8, num_workers=workers):
        optimizer.zero_grad()
        backward(run(x).square().mean())
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_with_gradients_of_a_function():
    """Train with the mean of the gradients of each row, and return the parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(parameters, row):
        return torch.func.functional_call(model, parameters, (row,)).square().sum()

    for _ in range(3):
        parameters = {name: each.detach() for name, each in model.named_parameters()}
        found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.randn(8, 4))
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].mean(0)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def backward_on_a_thread(loss):
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


SCRIPTS = {
    "compile": lambda: train_with(compiled),
    "checkpoint": lambda: train_with(checkpointed),
    "reentrant checkpoint": lambda: train_with(checkpointed_reentrantly),
    "vmap": lambda: train_with(mapped),
    "grad": train_with_gradients_of_a_function,
    "workers": lambda: train_with(workers=2),
    "backward on a thread": lambda: train_with(backward=backward_on_a_thread),
}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_compute_the_same_and_stop(name, history):
    script = SCRIPTS[name]
    expected = script()
    stops = Stops("step_into", "step_over", "step_out")
    live = LiveTraining(stops.hold, stops.said.append, history=history)
    for number, place in enumerate(("aten.tanh", "@optimizer", "aten.mul.Tensor"), 1):
        live.add(parse_breakpoint(number, place))
    live.catch({"nan": None, "inf": None})
    with live:
        found = script()
    assert all(map(torch.equal, found, expected))
    assert {step for step, *_ in stops.seen} == {1, 2, 3}
    assert {"forward", "optimizer"} <= {phase for _, phase, *_ in stops.seen}
    eager = [each for each in stops.said if "torch.compile compiles nothing" in each]
    assert len(eager) == (name == "compile")


def test_training_on_another_thread_does_not_stop():
    stops = Stops()
    live = LiveTraining(stops.hold, stops.said.append, history=True)
    live.add(parse_breakpoint(1, "@optimizer"))
    trained = []
    thread = threading.Thread(target=lambda: trained.extend(train()))
    with live:
        thread.start()
        while thread.is_alive():
            torch.ones(3).tanh()
    assert stops.seen == []
    assert all(map(torch.equal, trained, train()))


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (False, "this stop has only its operator: the step is not recorded"),
        (True, "this is the start of step 2: earlier steps are not recorded"),
    ],
)
def test_step_back_from_the_start_names_what_is_not_recorded(history, message):
    def back(debugger):
        debugger.go_to(0)
        for verb in (debugger.step_back, debugger.step_back_into, debugger.reverse_continue):
            with pytest.raises(UsageError, match=message) as caught:
                verb()
            assert history or "--history" in str(caught.value.hint)
        debugger.run()

    stops = Stops(back, back)
    stops.run("aten.tanh if $step == 2", history=history, steps=3)
    assert len(stops.seen) == 1
    assert len([each for each in stops.said if "--history" in each]) == (not history)


@pytest.mark.parametrize("history", [False, True], ids=["plain", "history"])
def test_torch_compile_compiles_again_afterwards(history):
    traced = []

    def backend(graph, examples):
        traced.append(graph)
        return graph

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    Stops().run(history=history)
    compiled(torch.ones(2))
    assert len(traced) == 1
