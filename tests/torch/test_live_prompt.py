"""`nncdbg debug SCRIPT` at a prompt that reads a pipe."""

import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.terminal.live_prompt import pausing_on_interrupt  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_training.py"


@pytest.fixture
def debug(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    (tmp_path / "fails.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")

    def run(*arguments, commands=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands)))
        code = main(["debug", *arguments])
        found = capfd.readouterr()
        return code, found.out, found.err

    return run


def test_catch_where_back_and_continue_to_the_next_step(debug):
    code, out, err = debug(
        "--history",
        "train.py",
        commands=[
            "set view graph",
            "back",
            "catch nan inf",
            "continue",
            "where",
            "back 2",
            "continue",
            "next",
            "uncatch",
            "continue",
        ],
    )
    assert code == 0, err
    assert "the script has not started" in err
    assert (
        out.index("step 3 loss")
        < out.index("catch inf: the first Inf is in %div.1")
        < out.index("step 4 loss")
    )
    assert "step 4, backward, node SqrtBackward0" in out
    assert "gradient of train.py:27  return (a - b).square().sum(dim=-1).sqrt()" in out
    assert "train.py:40  loss.backward()" in out
    assert "The script is here" in out
    assert re.search(r">> [0-9]+   %unsqueeze", out)
    assert "step 6 loss nan" in out


def test_options_set_stops_and_quit_ends_the_script(debug):
    code, out, err = debug(
        "--break",
        "aten.tanh if $step == 2",
        "train.py",
        commands=["p $out.shape", "print 10 + $step", "info b", "quit"],
    )
    assert (code, err) == (0, "")
    assert "\n12\n" in out
    assert "Breakpoint 1, op aten.tanh if $step == 2" in out
    assert "(16, 8)" in out
    assert "hit 1x" in out
    assert "step 1 loss" in out
    assert "step 2 loss" not in out


def test_breakpoints_are_listed_changed_and_deleted(debug):
    code, out, err = debug(
        "train.py",
        commands=[
            "break @out",
            "tbreak train.py:27",
            "log aten.mean loss {$out}",
            "disable 1",
            "info b",
            "enable",
            "delete 1",
            "delete 9",
            "break",
            "frobnicate",
            "continue",
            "continue",
        ],
    )
    assert code == 0
    assert "1: module @out, off" in out
    assert "2: source train.py:27, temporary" in out
    assert "3: op aten.mean, logpoint: loss {$out}" in out
    assert out.count("Breakpoint 2, source train.py:27") == 1
    assert out.count("\nloss 0.") == 4
    for words in ("there is no breakpoint 9", "there is no current line", 'no command "frobnicate"'):
        assert words in err


def test_each_command_about_stops_changes_those_of_the_script(debug):
    code, out, err = debug(
        "--history",
        "train.py",
        commands=[
            "break aten.addmm",
            "ignore 1 3",
            "break aten.tanh",
            "commands",
            "silent",
            "p 7000 + $step",
            "continue",
            "end",
            "info breakpoints",
            "continue",
            "condition 1 $step == 3",
            "clear aten.tanh",
            "clear aten.tanh",
            "watch %out.weight if $step == 4",
            "info breakpoints",
            "continue",
            "delete 1",
            "continue",
            "rcontinue",
            "clear %out.weight",
            "continue",
            "quit",
        ],
    )
    assert code == 0
    assert "breakpoint 1 ignores its next 3 hits" in out
    assert "1: op aten.addmm, ignores the next 3" in out
    assert "     p 7000 + $step" in out
    # The fourth call of the first step: the two views pass two layers.
    first = out.index("Breakpoint 1, op aten.addmm\n")
    assert out.index("7001") < first < out.index("step 1 loss")
    assert out.count("7001") == 2
    assert "7002" not in out
    assert "Breakpoint 1: op aten.addmm if $step == 3" in out
    assert "Deleted breakpoint 2: op aten.tanh" in out
    assert "there is no breakpoint at aten.tanh" in err
    assert "Watchpoint 3: parameter %out.weight if $step == 4" in out
    assert out.index("step 2 loss") < out.index("Breakpoint 1, op aten.addmm if $step == 3\n")
    assert out.index("step 3 loss") < out.index("Breakpoint 3, parameter %out.weight if $step == 4\n")
    assert "Deleted breakpoint 3: parameter %out.weight if $step == 4" in out
    assert "The script is here" in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("watch mean(%w)", "can watch a parameter or gradient, not an expression"),
        ("assert max($out) < 1", "no values by name that an assertion could test"),
        ("break 12", "line 12 of which file?"),
        ("break node a/*", "a running script has no nodes"),
        ("break aten.addmm stream 1", "a running script has no schedule"),
        ("log aten.addmm", "there is no message"),
        ("ignore 4 1", "there is no breakpoint 4"),
        ("condition 4 $step > 1", "there is no breakpoint 4"),
        ("commands 4", "there is no breakpoint 4"),
        ("commands", "there are no breakpoints"),
        ("clear", "there is no current line"),
        ("uncatch nan", '"nan" is not caught'),
        ("catch race", "cannot catch 'race'"),
        ("until aten.addmm", "the script has not started"),
    ],
)
def test_commands_that_a_script_refuses(debug, line, words):
    code, out, err = debug("train.py", commands=[line, "info breakpoints", "continue"])
    assert code == 0
    assert words in err
    assert "there are no breakpoints\ncaught: nothing" in out


def test_rcontinue_stops_at_the_breakpoints_of_the_script(debug):
    code, out, err = debug(
        "--history",
        "train.py",
        commands=[
            "break @backward",
            "continue",
            "delete",
            "break aten.tanh",
            "until aten.mean",
            "rcontinue",
            "p 5000 + $iter",
            "rcontinue",
            "rcontinue",
            "back",
            "continue",
            "quit",
        ],
    )
    assert code == 0
    assert "the script runs on from here" in err
    assert out.count("Breakpoint 2, op aten.tanh") == 2
    assert "this is the start of step 1" in err
    assert "The script is here" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("fails.py",), 4, "fails.py failed: RuntimeError"),
        (("exits.py", "3"), 4, "exited with code 3"),
        (("exits.py", "0"), 0, ""),
        (("none.py",), 3, "there is no file none.py"),
        ((), 2, "there is no script"),
        (("--break", "aten.nothing", "train.py"), 2, "torch has no operator aten.nothing"),
        (("--catch", "race", "train.py"), 2, "cannot catch 'race'"),
        (
            ("--break", "@nothing.there", "exits.py", "0"),
            0,
            "breakpoint 1, module @nothing.there, was not reached",
        ),
    ],
)
def test_bad_input(debug, arguments, code, words):
    found, _, err = debug(*arguments, commands=["continue"])
    assert found == code
    assert words in err
    assert "Traceback" not in err or arguments == ("fails.py",)


@pytest.mark.parametrize(("options", "step"), [(("--history",), 2), ((), 3)])
def test_record_step_stops_at_the_end_of_a_whole_step(debug, options, step):
    code, out, err = debug(
        *options,
        "--break",
        "aten.tanh if $step == 2",
        "train.py",
        commands=[
            "set view graph",
            "record step",
            "restart",
            "break @backward",
            "continue",
            "back",
            "p $op",
            "delete all",
            "continue",
            "continue",
        ],
    )
    assert (code, err) == (0, "")
    assert out.count("Breakpoint 1, ") == 1
    assert f"Paused: the end of step {step}" in out
    assert "@optimizer(" in out
    assert "step 6 loss" in out


def test_end_of_input_ends_the_script(debug):
    code, out, err = debug("train.py")
    assert (code, err) == (0, "")
    assert "step 1" not in out


EVALUATION = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
def evaluate():
    with torch.no_grad():
        h = net(torch.randn(8, 4))
        return h.sigmoid().mean()
evaluate()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(2):
    loss = net(torch.randn(8, 4)).exp().mean()
    loss.backward()
    opt.step()
"""


def test_history_has_an_evaluation_before_the_first_update(debug, tmp_path):
    (tmp_path / "evaluates.py").write_text(EVALUATION)
    commands = [
        "set view graph",
        "break aten.sigmoid",
        "break aten.exp",
        "continue",
        "back",
        "back",
        "where",
        "print %2.weight",
    ]
    commands += ["continue", "continue", "print %0.weight", "back", "back", "print %0.weight", "quit"]
    code, out, err = debug("--history", "evaluates.py", commands=commands)
    assert (code, err) == (0, "")
    past = out[out.index("step 1, before the stop") :]
    # The stack is that of the call of the last layer, in an earlier line than the stop.
    assert "evaluates.py:6  h = net(torch.randn(8, 4))" in past
    assert "evaluates.py:7" not in past
    assert past.count("f32[8,4]") >= 2


LAYERS = """import torch


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        h = self.linear(x)
        return x + torch.tanh(h)


def train(model, optimizer, x):
    for block in model:
        x = block(x)
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    return loss


torch.manual_seed(0)
model = torch.nn.ModuleList(Block(3) for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    x = torch.randn(2, 3)
    loss = train(model, optimizer, x)
    print("loss", loss.item())
"""

LINE = {text.strip(): number for number, text in enumerate(LAYERS.splitlines(), 1)}
FORWARD, CALL, PASS = LINE["h = self.linear(x)"], LINE["x = block(x)"], LINE["loss.backward()"]
MEAN, TRAIN = LINE["loss = x.square().mean()"], LINE["loss = train(model, optimizer, x)"]


@pytest.fixture
def layers(debug, tmp_path):
    """Debug a script with two layers, up to a line; return its output after the first stop."""
    (tmp_path / "layers.py").write_text(LAYERS)

    def run(*commands, line=CALL, options=("--history",)):
        code, out, err = debug(
            *options, "layers.py", commands=[f"break layers.py:{line}", "continue", "delete", *commands]
        )
        assert code == 0
        return out.partition("delete\n")[2], err

    return run


def heads(out):
    """Return the calls and lines where the stops with a title are."""
    return re.findall(r"^in (.*?), layers.py:(\d+)", out, re.MULTILINE)


def arrows(out):
    """Return the lines with the arrow of each stop."""
    return [int(each) for each in re.findall(r"^[* ]-> +(\d+) ", out, re.MULTILINE)]


def test_lines_of_a_running_script_are_stepped_forward_and_back(layers):
    out, err = layers(*["step"] * 7, "rback", "back", "continue", "quit")
    assert not err
    backward = [PASS, MEAN, CALL, LINE["return x + torch.tanh(h)"]]
    forward = [FORWARD, FORWARD + 1, CALL, FORWARD, FORWARD + 1, MEAN]
    assert arrows(out)[:7] == [*forward, backward[0]]
    # From the past, it goes to the place of the script.
    assert arrows(out)[7:] == [MEAN, CALL, PASS]
    assert "The script is here" in out


def test_next_and_finish_continue_the_script_over_the_end_of_a_step(layers):
    out, err = layers("next", "next", "next", "next", "finish", "next", "next", "quit")
    assert not err
    assert arrows(out) == [CALL, MEAN, PASS, PASS + 1, TRAIN + 1, TRAIN - 1, TRAIN]
    assert "  loss f32[]" in out
    assert "loss 0." in out


def test_steps_enter_the_backward_pass_of_a_running_script(layers):
    out, err = layers(*["step"] * 4, "next", "finish", "step", "quit", line=PASS)
    assert not err
    assert heads(out)[0] == ("backward of train", str(MEAN))
    assert ("backward of Block.forward", str(FORWARD + 1)) in heads(out)
    assert arrows(out)[:3] == [MEAN, CALL, FORWARD + 1]
    assert heads(out)[-1][0] == "update of 0.linear.weight"


def test_names_of_a_running_script_come_first_and_missing_ones_are_refused(layers):
    out, err = layers("p x", "p loss", "p nothing", "where full", "up", "p x.shape", "quit", line=MEAN)
    assert "f32[2,3]" in out
    assert f"#1 <module>, layers.py:{TRAIN}: loss = train(model, optimizer, x)" in out
    assert "(2, 3)" in out
    assert "`loss` has no value here" in err
    assert "there is no value or function `nothing`" in err


def test_the_graph_of_a_running_script_can_be_shown_instead_and_both(layers):
    out, _ = layers("set view graph", "next", "where", "set view split", "nexti", "backi", "quit")
    assert "step 1, forward, module 0.linear" in out
    assert f"layers.py:{FORWARD}  h = self.linear(x)" in out
    assert f" -> {FORWARD + 1}         return x + torch.tanh(h)" in out
    assert re.search(r"^ >> \d+ +%", out, re.MULTILINE)


def test_a_stop_without_history_is_in_the_source_too(layers):
    out, err = layers("next", "step", "finish", "back", "quit", options=())
    assert arrows(out) == [CALL, FORWARD, CALL + 1]
    assert err.count("this stop has only its operator") == 1
    out, err = layers("next", "next", "step", "next", "quit", line=MEAN, options=())
    assert arrows(out) == [PASS, PASS + 1, PASS + 1, TRAIN + 1]


def test_a_breakpoint_of_a_running_script_has_one_hit_for_each_execution_of_its_line(layers):
    commands = [f"break {CALL}", *["continue"] * 3, "info breakpoints", "quit"]
    out, _ = layers(*commands, line=TRAIN - 1)
    assert arrows(out) == [CALL, CALL, CALL]
    assert f"source layers.py:{CALL}, hit 3x" in out


def test_continue_stops_at_a_line_that_begins_with_the_operator_of_the_present_line(layers):
    out, _ = layers(f"break {FORWARD}", "continue", "continue", "info breakpoints", "quit")
    assert arrows(out) == [FORWARD, FORWARD]
    assert heads(out) == [("Block.forward", str(FORWARD))] * 2
    assert f"source layers.py:{FORWARD}, hit 2x" in out
    # Of two lines that begin with one operator, the outer one stops first.
    out, _ = layers(f"break {CALL}", f"tbreak {FORWARD}", *["continue"] * 3, "quit", line=TRAIN - 1)
    assert arrows(out) == [CALL, FORWARD, CALL]


SCRIPT = """
import torch
from torch import nn

import nncdbg
import nncdbg.torch


class Net(nn.Module):
    def forward(self, x):
        h = x + 1
        nncdbg.breakpoint()
        return torch.relu(h) * 2


print("first", Net()(torch.ones(3)).sum().item())
try:
    nncdbg.torch.debug()
except nncdbg.UsageError as error:
    print(error)
"""

BLOCK = """
import torch

import nncdbg.torch

with nncdbg.torch.debug("aten.mul if min($out) < 0", catch="nan"):
    y = torch.ones(3) * -2
    z = y.log() + 1
y * -3
nncdbg.torch.debug()
y + 1
"""


def run_python(folder, script, commands):
    (folder / "script.py").write_text(script)
    found = subprocess.run(
        [sys.executable, "script.py"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )
    return found.returncode, found.stdout, found.stderr


def test_breakpoint_in_a_forward_opens_the_prompt_at_the_next_operator(tmp_path):
    commands = ["p $out[0]", "set view graph", "where", "step", "step", "continue"]
    code, out, err = run_python(tmp_path, SCRIPT, commands)
    assert code == 0, err
    assert "Paused: nncdbg.breakpoint() at script.py:12" in out
    assert "script.py:13  return torch.relu(h) * 2" in out
    assert out.index("aten.relu(") < out.index("aten.mul(") < out.index("first 12.0")
    assert "cannot start inside a dispatch mode" in out


def test_debug_stops_in_its_block_and_at_the_next_operator(tmp_path):
    code, out, err = run_python(tmp_path, BLOCK, ["continue", "continue", "quit"])
    assert code == 0, err
    assert "Breakpoint 1, op aten.mul if min($out) < 0" in out
    assert "catch nan: the first NaN is in %log" in out
    assert out.count("aten.mul(") == 1
    assert "Paused: nncdbg.torch.debug()" in out
    assert "-> 11 y + 1" in out


def test_stop_without_history_says_how_to_get_it(debug):
    code, out, err = debug(
        "--break", "aten.tanh", "train.py", commands=["back", "back", "back", "continue", "continue"]
    )
    assert code == 0
    message = "this stop has only its operator: the step is not recorded"
    assert out.count(message) == 1
    assert f"error: {message}\n  hint: `nncdbg debug --history`" in err


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_interrupt_stops_the_training_and_not_its_workers():
    stops = []

    def hold(debugger):
        stops.append(debugger.stop.detail)
        debugger.run()

    training = LiveTraining(hold, print)
    with pausing_on_interrupt(training), training:
        worker = multiprocessing.get_context("fork").Process(target=interrupt, daemon=True)
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        interrupt()
        torch.ones(2).tanh()
        assert stops == ["Ctrl-C"]
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


RANKS = """
import hashlib, os, sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for step in range(3):
    optimizer.zero_grad()
    parallel(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
sys.stdout.write(f"rank {dist.get_rank()} ends with {hashlib.sha256(bits).hexdigest()}\\n")
dist.barrier()
dist.destroy_process_group()
# Without nncdbg, torch sometimes aborts when Python frees the threads of the group.
if "nncdbg" not in sys.modules:
    sys.stdout.flush()
    os._exit(0)
"""


def run_ranks(folder, *command, commands=(), script=RANKS):
    (folder / "train.py").write_text(script)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run(
        [sys.executable, *torchrun, *command],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(("options", "rank"), [((), 0), (("--rank", "1"), 1)])
def test_one_rank_stops_and_the_bits_are_those_of_a_plain_run(tmp_path, options, rank):
    pattern = re.compile(r"rank \d ends with \w+")
    code, plain, err = run_ranks(tmp_path, "train.py")
    assert code == 0, err
    debug = ["-m", "nncdbg", "debug", "--history", "--catch", "nan,inf", *options]
    stop = "aten.tanh if $step == 2"
    code, out, err = run_ranks(
        tmp_path, *debug, "--break", stop, "train.py", commands=["py 1", "back 3", "continue", "continue"]
    )
    assert code == 0, err
    assert out.count("Breakpoint 1, op aten.tanh") == 1
    assert "The script is here" in out
    assert sorted(pattern.findall(out)) == sorted(pattern.findall(plain))
    assert len(pattern.findall(plain)) == 2


def test_a_rank_that_does_not_exist_is_refused(debug, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = debug("--rank", "2", "train.py")
    assert code == 2
    assert "there is no rank 2 of 2\n  hint: use a rank from 0 to 1" in err


@pytest.mark.parametrize(
    ("call", "command", "variable"),
    [
        ("nncdbg.torch.debug('aten.tanh', rank=1)", (), ""),
        ("nncdbg.torch.debug('aten.tanh')", (), "1"),
        ("nncdbg.torch.debug('aten.tanh')", (), ""),
        ("model.register_forward_hook(lambda *_: nncdbg.breakpoint())", (), "1"),
        (
            "model.register_forward_hook(lambda *_: nncdbg.breakpoint())",
            ("-m", "nncdbg", "debug", "--rank", "1", "-ex", "continue"),
            "",
        ),
    ],
)
def test_one_rank_stops_for_calls_in_the_script(tmp_path, monkeypatch, call, command, variable):
    monkeypatch.setenv("NNCDBG_RANK", variable or "0")
    rank = 0 if call.endswith("tanh')") and not variable else 1
    marked = RANKS.replace("for step", f"import nncdbg, nncdbg.torch\n{call}\nfor step")
    shown = ["py print('stopped on', __import__('os').environ['RANK'])", "quit"]
    code, out, err = run_ranks(tmp_path, *command, "train.py", commands=shown, script=marked)
    assert out.count("stopped on ") == 1, err
    assert f"stopped on {rank}" in out
