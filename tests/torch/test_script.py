"""A script ends under each command as it does under Python."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg import presentation  # noqa: E402
from nncdbg.errors import NncdbgError  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.script import (  # noqa: E402
    ScriptInterrupted,
    on_module_call,  # noqa: E402
    run_to_end,
    script_runner,
    without_own_frames,
)

pytestmark = pytest.mark.usefixtures("forked_processes")

FORKS = """
import os
import torch
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step(scale):
    (net(torch.ones(4, 3)) * scale).sum().backward()
    optimizer.step()
step(1)
child = os.fork()
if child == 0:
    step(float("nan"))
    print("child: trained", flush=True)
    1 / 0
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
step(1)
"""


def nncdbg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nncdbg", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(
    "command",
    ["watch", "watch --tier hooks", "watch --tier live", "debug --catch nan", "record --step 2 -o step"],
)
def test_process_that_the_script_forked_ends_as_under_python(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(FORKS)
    done = nncdbg(tmp_path, *command.split(), "train.py")
    assert done.returncode == 0, done.stderr
    assert "child: trained\nchild: 1\n" in done.stdout
    assert done.stderr.count("ZeroDivisionError") == 1
    assert ("it is not watched" in done.stderr) == ("watch" in command), done.stderr
    assert "NaN" not in done.stdout.partition("training:")[0] + done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", None),
        ("raise SystemExit", None),
        ("raise SystemExit(3)", "train.py exited with code 3 here"),
        ("raise SystemExit('no data')", "train.py exited here: no data"),
        ("1 / 0", "train.py failed here: ZeroDivisionError: division by zero"),
        ("def (", "train.py cannot be compiled: invalid syntax"),
    ],
)
def test_failure_says_where_the_script_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    failure = run_to_end("train.py", script_runner("train.py", None, ()), no_exit, lambda: "here")
    assert (failure and failure.message) == message


def no_exit(failure: NncdbgError | None) -> int:
    raise AssertionError("the script does not call os._exit")


def test_own_errors_are_not_failures_of_the_script() -> None:
    def run() -> None:
        raise NncdbgError("not a failure of the script")

    with pytest.raises(NncdbgError, match="not a failure"):
        run_to_end("train.py", run, no_exit)


def test_interrupt_is_a_failure_with_its_own_exit_code() -> None:
    def run() -> None:
        raise KeyboardInterrupt

    failure = run_to_end("train.py", run, no_exit, lambda: "in step 2")
    assert isinstance(failure, ScriptInterrupted)
    assert (failure.message, failure.exit_code) == ("train.py was interrupted in step 2", 130)


ENDS = """
import atexit
import sys
import torch

class Says:
    def __del__(self):
        print("freed", flush=True)

net = torch.nn.Linear(3, 2)
net.says, says, file = Says(), Says(), open("log.txt", "w")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
atexit.register(lambda: print("exit function", sys.modules["__main__"].says is says))
net(torch.ones(4, 3)).sum().backward()
optimizer.step()
file.write("one update")
"""

REPLACES = """
sys.excepthook = lambda kind, error, _: print("hook of the script:", error)
sys.stdout = open("out.txt", "w")
sys.stderr.close()
raise ValueError("at the end")
"""


@pytest.mark.usefixtures("started_processes")
def test_objects_of_a_script_end_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS)
    done = nncdbg(tmp_path, "debug", "--catch", "nan", "-m", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-3:] == ["exit function True", "freed", "freed"]
    assert (tmp_path / "log.txt").read_text() == "one update"


def test_streams_and_hook_of_a_script_are_used_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS + REPLACES)
    done = nncdbg(tmp_path, "watch", "train.py")
    message = "error: train.py failed after 1 update, without NaN or Inf: ValueError: at the end\n"
    assert (done.returncode, done.stdout, done.stderr) == (4, "", message)
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert lines[:2] == ["hook of the script: at the end", "exit function True"]


@pytest.mark.parametrize("ends", ["sys.stdout.close()", "sys.stdout.detach()", "sys.stdout = io.StringIO()"])
def test_report_is_printed_if_the_script_has_ended_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))
    Path("train.py").write_text(f"import io, sys\nprint('of the script', flush=True)\n{ends}\n")
    assert run_to_end("train.py", script_runner("train.py", None, ()), no_exit) is None
    presentation.screen.Screen().put("of nncdbg")
    sys.stdout.flush()
    assert capfd.readouterr().out.splitlines() == ["of the script", "of nncdbg"]


def test_error_of_an_exception_hook_of_the_script_is_printed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", lambda *_: 1 / 0)
    Path("train.py").write_text("raise ValueError('of the script')")
    failure = run_to_end("train.py", script_runner("train.py", None, ()), no_exit)
    assert failure is not None
    assert re.search("(?s)ZeroDivisionError.*ValueError: of the script", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["torch.py", "numpy/__init__.py"])
def test_module_of_the_script_that_nncdbg_has_imported_before_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("train.py", "os.py", "helper.py", name):
        Path(each).parent.mkdir(exist_ok=True)
        Path(each).write_text("")
    assert run_to_end("train.py", script_runner("train.py", None, ()), no_exit) is None
    name = name.partition("/")[0].removesuffix(".py")
    [note] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        f"note: .*{name} is not imported: nncdbg has imported another module {name} before", note
    )


HINT = "  hint: rename it, or start nncdbg in another folder"


@pytest.mark.usefixtures("started_processes")
def test_another_module_named_torch_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "train.py").write_text("import torch")
    done = nncdbg(tmp_path, "watch", "train.py")
    assert done.returncode == 2
    assert done.stderr == f"error: the module torch is {tmp_path}/torch.py, not PyTorch\n{HINT}\n"


THREADS = """
import threading
import torch

def train(number):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(number):
        optimizer.zero_grad()
        net(torch.ones(4, 3)).sum().backward()
        optimizer.step()

thread = threading.Thread(target=train, args=(5,))
thread.start()
thread.join()
train(2)
"""


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            "watch train.py",
            [
                "training: no NaN or Inf, 2 updates",
                "not checked: 5 updates on other threads: only the thread of the watch is checked",
            ],
        ),
        (
            "record --step 2 train.py",
            [
                "note: recorded step 2 of train.py: 21 statements in 4 graphs, 2 states and 0 inputs with "
                "32 bytes",
                "note: saved in step2; open it with `nncdbg step2`",
            ],
        ),
        ("record --step 3 train.py", ["error: train.py ended after 2 steps: there is no step 3"]),
    ],
)
def test_updates_of_other_threads_are_no_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    lines: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(THREADS)
    main(command.split())
    printed = capsys.readouterr()
    assert [*printed.out.splitlines(), *printed.err.splitlines()][: len(lines)] == lines


EXITS = """
import os
import sys
import threading
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(1, 6):
    batch = torch.randn(4, 3)
    if "--bad" in sys.argv and number == 2:
        batch[0] = float("nan")
    loss = net(batch).square().sum()
    optimizer.zero_grad()
    loss.backward()
    if number == 4:
        try:
            leave = lambda: os._exit(int(sys.argv[1]))  # exits
            if "--thread" in sys.argv:
                thread = threading.Thread(target=leave)
                thread.start()
                thread.join()
            leave()
        finally:
            print("not reached")
    optimizer.step()
"""
PLACE = f"train.py:{1 + EXITS.splitlines().index(next(x for x in EXITS.splitlines() if '# exits' in x))}"


@pytest.mark.parametrize("thread", [[], ["--thread"]])
@pytest.mark.parametrize(
    ("command", "status", "code", "error"),
    [
        ("watch", 3, 4, "train.py exited with code 3 after 3 updates, without NaN or Inf"),
        ("watch", 0, 0, ""),
        ("debug --catch nan", 3, 4, "train.py exited with code 3"),
        ("debug --catch nan", 0, 0, ""),
        ("record --step 5", 3, 4, "train.py exited with code 3 before step 5, after 3 steps"),
        ("record --step 5", 0, 2, "train.py ended after 3 steps: there is no step 5"),
    ],
)
def test_script_that_calls_os_exit_is_reported(
    tmp_path: Path, command: str, status: int, code: int, error: str, thread: list[str]
) -> None:
    (tmp_path / "train.py").write_text(EXITS)
    done = nncdbg(tmp_path, *command.split(), "train.py", str(status), *thread)
    assert done.returncode == code
    note = f"note: train.py ended the process: os._exit({status}) at {PLACE}"
    assert done.stderr.splitlines()[:2] == [note, *([f"error: {error}"] if error else [])]
    assert done.stdout.splitlines() == (
        ["training: ok, 3 updates"] if command == "watch" and not status else []
    )


def test_report_of_a_script_that_calls_os_exit_has_what_was_found_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EXITS)
    done = nncdbg(tmp_path, "watch", "--on-nan", "report", "train.py", "3", "--bad")
    assert done.returncode == 1
    assert "step 2: NaN or Inf before the update" in done.stderr
    # The NaN of step 2 is in the parameters of the steps after it; the last one ends before its update.
    assert done.stdout == (
        "training: tripped: NaN or Inf in 3 steps, 3 updates\n"
        "2 more steps with an origin or parameters that are reported above\n"
    )
    done = nncdbg(tmp_path, "watch", "--on-nan", "report", "--json", "train.py", "3", "--bad")
    assert json.loads(done.stdout)["steps"] == 3


def test_step_in_which_the_script_calls_os_exit_is_saved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EXITS)
    done = nncdbg(tmp_path, "record", "--step", "4", "train.py", "3")
    assert done.returncode == 4
    assert "the step is not complete: train.py exited with code 3 in step 4" in done.stderr
    assert "@backward" in (tmp_path / "step4" / "program.nnc").read_text()


FAILS = """
import sys
import torch
class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2
    @staticmethod
    def backward(context, gradient):
        raise KeyError("function")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.outer = torch.nn.Linear(3, 2)
    def forward(self, x):
        if at == "forward":
            raise KeyError("forward")
        x = self.inner(x)
        if at == "function":
            x = Function.apply(x)
        x = self.outer(x[:, :2] if at == "shape" else x)
        if at == "hook":
            x.register_hook(lambda gradient: {}["hook"])
        return x
at = sys.argv[1]
net = Net()
if at == "module hook":
    net.inner.register_forward_hook(lambda *_: {}["module hook"])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def closure():
    raise KeyError("closure")
for number in range(2):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 3)).square().sum()
    if at == "operator":
        loss @ torch.ones(2, 2)
    if at == "arguments":
        torch.autograd.backward(loss, unknown=1)
    if at == "cause":
        try:
            torch.ones(3) @ torch.ones(2)
        except RuntimeError as error:
            raise KeyError("cause") from error
    if at == "closure":
        optimizer.step(closure)
    loss.backward()
    if at == "twice":
        loss.backward()
    optimizer.step()
"""
PLACES = (
    *("forward", "function", "shape", "hook", "module hook", "closure", "operator", "arguments", "cause"),
    "twice",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "command",
    ["watch", "debug --catch nan --history", "record"],
)
def test_traceback_of_a_script_has_no_frame_of_nncdbg(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    place: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(FAILS)
    assert main([*command.split(), "train.py", place]) == 4
    error = capfd.readouterr().err
    frames = re.findall(r'File "(.+?)"', error)
    assert str(tmp_path / "train.py") in frames
    package = str(Path(presentation.__file__).parents[1])
    assert not [each for each in frames if each.startswith(package)]
    if place in ("operator", "arguments"):
        assert {*frames} == {str(tmp_path / "train.py")}


def test_own_frames_remain_in_the_traceback_of_an_own_error() -> None:
    with pytest.raises(NncdbgError) as caught:
        script_runner("missing.py", None, ())
    kept = without_own_frames(caught.value, lambda whole: whole)
    assert kept.__traceback__ is not None
    assert kept.__traceback__.tb_next is not None
    assert kept.__traceback__.tb_next.tb_frame.f_code is script_runner.__code__


def test_step_begins_after_a_weight_that_is_computed_while_the_model_is_built() -> None:
    begun = []
    give_up = on_module_call(lambda: begun.append(True))
    try:
        layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 2))
        assert not begun
        layer(torch.ones(1, 3))
        assert begun == [True]
    finally:
        give_up()
