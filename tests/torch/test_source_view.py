"""A recorded step opens in its source: moves by lines, forward and back, and names of the source."""

from __future__ import annotations

import io
import re
import runpy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.commands.session import CommandSession  # noqa: E402
from nncdbg.presentation.screen import Screen  # noqa: E402
from nncdbg.target.program import ProgramTarget  # noqa: E402

SCRIPT = """import torch
import nncdbg.torch


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        h = self.linear(x)
        self.cache = torch.tanh(h)
        return x + self.cache


def train(model, optimizer, x, target):
    h = x
    for block in model:
        h = block(h)
    error = h - target
    loss = error.square().mean()
    kept.append((h, loss))
    for each in (error, loss, h):
        each.retain_grad()
    loss.backward()
    gradients.update(error=error.grad, h=h.grad)
    optimizer.step()
    return loss


torch.manual_seed(0)
kept, gradients = [], {}
model = torch.nn.ModuleList(Block(3) for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, target = torch.randn(2, 3), torch.randn(2, 3)
with nncdbg.torch.record(model, optimizer) as step:
    loss = train(model, optimizer, x, target)
step.save("step")
"""

LINE = {text.strip(): number for number, text in enumerate(SCRIPT.splitlines(), 1)}
PASS, OPTIMIZER = LINE["loss.backward()"], LINE["optimizer.step()"]
MODULE = LINE["loss = train(model, optimizer, x, target)"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the script and the recorded step, and the variables of the script."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = runpy.run_path("train.py", run_name="__main__")
    return folder, names


@pytest.fixture
def session(recorded, monkeypatch):
    monkeypatch.chdir(recorded[0])
    return opened("step")


def opened(program):
    return CommandSession(ProgramTarget(nncdbg.Debugger(program)), "step", Screen(width=100))


def run(session, *lines):
    """Run commands, and return what they print."""
    out = io.StringIO()
    session.screen = Screen(out, out, width=100)
    session.screen.name_values(session.target.program)
    for line in lines:
        session.execute(line)
    return out.getvalue()


def place(session):
    frame = session.target.source.frames()[0]
    return frame.function, frame.line


def walk(session, command):
    """Return the places that a command goes through, until it is refused or the step ends."""
    places = [place(session)]
    while session.execute(command) and not session.target.now.ended:
        places.append(place(session))
    return places


PARAMETERS = ["0.linear.weight", "0.linear.bias", "1.linear.weight", "1.linear.bias"]
FORWARD = [
    ("Block.forward", LINE["h = self.linear(x)"]),
    ("Block.forward", LINE["self.cache = torch.tanh(h)"]),
    ("Block.forward", LINE["return x + self.cache"]),
]
BACKWARD = [(f"backward of {function}", line) for function, line in reversed(FORWARD)]
STEPS = [
    ("<module>", MODULE),
    ("train", LINE["h = block(h)"]),
    *FORWARD,
    ("train", LINE["h = block(h)"]),
    *FORWARD,
    ("train", LINE["error = h - target"]),
    ("train", LINE["loss = error.square().mean()"]),
    ("train", LINE["loss.backward()"]),
    ("backward of train", LINE["loss = error.square().mean()"]),
    ("backward of train", LINE["error = h - target"]),
    ("backward of train", LINE["h = block(h)"]),
    *BACKWARD,
    ("backward of train", LINE["h = block(h)"]),
    *BACKWARD[1:],  # The derivative of the sum needs no operator.
    ("train", LINE["optimizer.step()"]),
    *((f"update of {each}", OPTIMIZER) for each in PARAMETERS),
]


def test_steps_go_through_the_lines_that_ran_and_back(session):
    assert walk(session, "step") == STEPS
    assert session.target.now.ended
    session.execute("rback")
    assert walk(session, "rback") == STEPS[::-1]


def test_next_and_back_stay_in_the_function(session):
    session.execute("step")
    own = [place for place in STEPS if place[0] == "train"]
    assert walk(session, "next") == own
    session.execute("rback")
    session.execute("rback")
    assert [each for each in walk(session, "back") if each[0] == "train"] == own[::-1]


def test_finish_returns_to_the_line_that_called(session):
    run(session, "step 2")
    assert place(session) == FORWARD[0]
    run(session, "finish")
    assert place(session) == ("train", LINE["h = block(h)"])
    assert session.target.source.frames()[0].names["h"] != session.target.source.frames()[1].names["x"]
    run(session, "step 2", "rfinish")
    assert place(session) == ("train", LINE["h = block(h)"])


def test_names_hold_what_they_held(session, recorded):
    _, names = recorded
    run(session, f"break {PASS}", "continue")
    h, loss = names["kept"][0]
    for name, tensor in [("h", h), ("loss", loss), ("x", names["x"])]:
        np.testing.assert_array_equal(session.target.evaluate(name), tensor.detach().numpy())
    assert session.target.evaluate("h.shape") == (2, 3)
    text = run(session, "where full")
    assert "h f32[2,3]" in text
    assert "loss f32[]" in text


def test_gradients_are_named_after_the_names_of_the_forward_pass(session, recorded):
    gradients = recorded[1]["gradients"]
    run(session, "step", f"until {OPTIMIZER}")
    bound = [each for each in session.target.program.saved.trace.names if each.name.endswith(".grad")]
    assert {each.name for each in bound} >= {"h.grad", "self.cache.grad"}
    in_train = [each.value for each in bound if each.name == "h.grad"]
    assert any(
        np.array_equal(session.target.value(f"%{value}"), gradients["h"].numpy()) for value in in_train
    )


def test_the_graph_can_be_shown_instead_and_both(session):
    assert 'step.save("step")' in run(session, "list")
    assert "aten." not in run(session, "list")
    assert "aten." in run(session, "set view split", "step 2", "list")
    assert "@forward" in run(session, "set view graph", "list 1,400")
    assert "view is graph" in run(session, "show view")
    assert "view cannot be model" in run(session, "set view model")


def test_statements_move_inside_a_line(session):
    run(session, "step 2", "nexti")
    assert place(session)[0] == "Block.forward"
    before = session.target.now.tick
    run(session, "nexti")
    run(session, "backi")
    assert session.target.now.tick == before


def test_breakpoints_bind_to_lines_and_functions(session):
    text = run(session, f"break {LINE['return x + self.cache']}", "continue", "continue", "info breakpoints")
    assert place(session) == FORWARD[2]
    assert "train.py" in text
    text = run(session, "delete", "break Block.forward", "restart", "continue")
    assert place(session) == FORWARD[0]
    assert f"*-> {LINE['h = self.linear(x)']}" in text


def test_a_program_without_a_source_has_no_view_of_it(repository):
    session = opened(repository / "examples" / "first_steps.nnc")
    assert "there is no source to show" in run(session, "set view source")
    assert session.view == "graph"


def test_names_have_values_of_the_moment_and_of_the_selected_call(session):
    text = run(session, f"break {FORWARD[1][1]}", "continue", "up", "p h")
    assert "train, train.py" in text
    inner = session.target.source.frames()[0].names["h"]
    assert session.target.source.names()["h"] != inner
    assert re.search(r"f32\[2,3\]", text)


def test_a_line_of_the_backward_pass_shows_gradients_beside_the_values(session):
    text = run(session, f"until {PASS}", "step")
    assert place(session) == ("backward of train", LINE["loss = error.square().mean()"])
    assert "loss f32[]" in text
    assert "loss.grad f32[] 1" in text


def test_an_update_shows_each_parameter(session):
    text = run(session, f"until {OPTIMIZER}", "step", "next")
    assert place(session) == ("update of 0.linear.bias", OPTIMIZER)
    assert "in update of 0.linear.bias, train.py:" in text
    assert "0.linear.bias.grad f32[3]" in text


def test_the_end_shows_the_names_of_the_script(session):
    text = run(session, "continue")
    assert "The step has ended" in text


LOOP, ERROR = LINE["h = block(h)"], LINE["error = h - target"]


def test_a_condition_reads_the_names_of_the_moment(session):
    text = run(session, f"break train.py:{LOOP} if h.mean() > -0.1", "continue")
    assert "Breakpoint 1, source train.py:19 if h.mean() > -0.1\n" in text
    source, first = session.target.source, session.target.program.graph.inputs[0].name
    assert place(session) == ("train", LOOP)
    assert source.names()["h"] != first, "the first block has another h, with a smaller mean"
    assert session.target.evaluate("h.mean()") > -0.1
    assert "Breakpoint 1" in run(session, "condition 1 h.mean() < -0.1", "rcontinue")
    assert source.names()["h"] == first


def test_a_condition_reads_the_names_of_its_own_function(session):
    text = run(session, f"log train.py:{FORWARD[1][1]} {{h.shape}} {{mean(h) - mean(x)}}", "continue")
    assert text.count("(2, 3) ") == 2
    assert "no value" not in text
    text = run(session, "delete", "restart", f"break train.py:{ERROR} if loss > 3", "continue")
    assert "its condition failed: `loss` holds no tensor here" in text
    assert place(session) == ("train", ERROR)


def test_a_condition_with_a_name_that_no_line_binds_is_refused(session):
    text = run(session, f"break train.py:{ERROR} if lost > 3", f"break train.py:{ERROR} if x.cache > 1")
    assert "there is no value or function `lost`" in text
    assert "^" in text
    assert not session.stops.numbers()
    assert "there is no value" in run(session, f"break train.py:{FORWARD[0][1]} if error > 3")


def test_the_condition_of_a_finding_reads_the_names_of_its_line(session):
    text = run(session, f"until {ERROR}", "set h[0, 0] = nan", "catch nan if error.mean() > 3")
    assert "nan if error.mean() > 3" in text
    # The NaN is returned by the whole step, when `train` has ended.
    text = run(session, "continue")
    assert "the condition of catch nan failed: `error` holds no tensor here" in text


def test_a_watched_name_stops_where_a_line_has_bound_it(session):
    text = run(session, f"until {LOOP}", "watch h", "watch loss > 3", "info breakpoints")
    assert "Watchpoint 1: watch h in train, lines" in text
    assert "1: watch h in train\n" in text
    assert "2: watch loss > 3 in train\n" in text
    text = run(session, "continue")
    assert place(session) == ("train", LOOP), "after the first block, not inside of it"
    assert "Breakpoint 1, watch h in train" in text
    run(session, "continue")
    assert place(session) == ("train", ERROR)
    run(session, "rcontinue")
    assert place(session) == ("train", LOOP)
    run(session, "continue", "continue")
    assert session.target.now.ended, "the loss is 1.9, and stays false"


def test_a_watched_expression_and_an_assertion_follow_the_name(session):
    text = run(session, f"until {LOOP}", "watch h[0,0]", "continue", "continue")
    assert re.search(r"watch h\[0,0\] in train: -?[\d.]+ -> -?[\d.]+", text)
    assert place(session) == ("train", ERROR)
    run(session, "delete", "restart", f"until {LOOP}", "assert h.mean() < 0", "continue")
    assert place(session) == ("train", ERROR)
    assert session.target.evaluate("h.mean()") > 0


def test_a_name_of_another_function_is_not_watched(session):
    text = run(session, "watch h", "watch nothing")
    assert "no line binds `h` here, but in train, Block.forward" in text
    assert "the program has no value %nothing" in text


def test_a_displayed_name_is_shown_where_it_is_bound(session):
    text = run(session, "display h", f"until {LOOP}")
    assert "1: h: there is no value or function `h`" in text
    assert re.search(r"^1: h f32\[2,3\] \[\[", text, re.MULTILINE)


def test_an_expression_may_begin_with_a_name_that_is_a_command(session):
    text = run(session, f"until {LOOP}", "h.shape", "h[0].shape", "h * 2 == h + h", "h next")
    assert "there is no command" not in text
    assert "(2, 3)\n" in text
    assert "(3,)\n" in text
    assert "Execute this statement" in text, "`h` alone is `help`"


LOOP_SCRIPT = """import torch
import nncdbg.torch


def double(x):
    return x * 2


def total(x):
    for row in x:
        y = double(row)
    return y.sum()


x = torch.ones(3, 2)
with nncdbg.torch.record() as step:
    total(x)
step.save("loop")
"""
LOOP_LINES = {text.strip(): number for number, text in enumerate(LOOP_SCRIPT.splitlines(), 1)}
INNER, OUTER = LOOP_LINES["return x * 2"], LOOP_LINES["y = double(row)"]


@pytest.fixture
def loop(tmp_path, monkeypatch):
    """A session in a step whose inner lines begin at the statements of outer ones."""
    (tmp_path / "loop.py").write_text(LOOP_SCRIPT)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("loop.py", run_name="__main__")
    return opened("loop")


def test_continue_stops_at_a_line_that_begins_at_the_statement_of_the_present_line(loop):
    run(loop, f"until {OUTER}")
    assert place(loop) == ("total", OUTER)
    before = loop.target.now.tick
    text = run(loop, f"break {INNER}", "continue")
    assert place(loop) == ("double", INNER)
    assert loop.target.now.tick == before
    assert f"Breakpoint 1, source loop.py:{INNER}" in text
    run(loop, "continue", "continue")
    assert place(loop) == ("double", INNER)
    assert "hit 3x" in run(loop, "info breakpoints")
    run(loop, "continue")
    assert loop.target.now.ended


def test_breakpoints_of_two_lines_that_begin_together_stop_in_their_order(loop):
    run(loop, f"break {OUTER}", f"break {INNER}")
    for number, line in [(1, OUTER), (2, INNER)] * 3:
        text = run(loop, "continue")
        assert place(loop)[1] == line
        assert text.count("Breakpoint ") == 1
        assert f"Breakpoint {number}, source loop.py:{line}" in text
    counts = run(loop, "info breakpoints")
    assert counts.count("hit 3x") == 2


def test_a_move_by_lines_stops_at_a_breakpoint_inside_of_the_line(loop):
    run(loop, f"until {OUTER}", f"break {INNER}")
    assert "Breakpoint 1" in run(loop, "next")
    assert place(loop) == ("double", INNER)
    assert "Breakpoint 1" in run(loop, "next")
    assert place(loop) == ("double", INNER)


def test_a_breakpoint_at_an_update_has_one_hit_for_all_parameters(session):
    text = run(session, f"break {OPTIMIZER}", "continue", "continue", "info breakpoints")
    assert session.target.now.ended
    assert "hit 1x" in text


def test_a_name_that_is_not_bound_yet_is_refused(session):
    text = run(session, "step", "p error", "p nothing")
    assert "`error` has no value here" in text
    assert "there is no value or function `nothing`" in text
