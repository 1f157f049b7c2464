"""`nncdbg record`: scripts run unchanged, and a step of each is saved."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nncdbg.engine.frontends.program_folder import open_program_folder
from nncdbg.terminal.main import main

Capture = pytest.CaptureFixture[str]

TRAINING = """
import sys
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for number in range(1, 5):
    batch = torch.randn(8, 3)
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    {before}
    optimizer.step()
    print("step", number)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="needs torch")


def script(before: str = "", text: str = TRAINING, name: str = "train.py") -> str:
    with open(name, "w", encoding="utf-8") as file:
        file.write(text.replace("{before}", before))
    return name


# -- steps --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 3])
def test_a_step_of_a_script_is_saved_and_the_script_ends(torch: Any, capfd: Capture, number: int) -> None:
    assert main(["record", script(), "--step", str(number), "-o", "saved"]) == 0
    output, messages = capfd.readouterr()
    assert output.splitlines() == [f"step {each}" for each in range(1, number)]
    assert f"recorded step {number} of train.py" in messages
    assert "open it with `nncdbg saved`" in messages

    folder = open_program_folder(Path("saved"))
    assert {"forward", "backward", "optimizer", "0", "2.backward"} <= folder.program.graphs.keys()
    lines = {node.location and node.location.line for node in folder.program.graphs["0"].nodes}
    assert lines == {11}
    assert main(["run", "saved"]) == 0


def test_a_step_of_a_module_is_saved(torch: Any, capfd: Capture) -> None:
    Path("package").mkdir()
    script(name="package/train.py", text="from . import numbers_of\nimport sys\n" + TRAINING)
    Path("package/__init__.py").write_text("numbers_of = 'package'\n", encoding="utf-8")
    assert main(["record", "--step", "2", "-o", "saved", "-m", "package.train", "--step", "3"]) == 0
    output, messages = capfd.readouterr()
    assert output.splitlines() == ["step 1"]
    assert "recorded step 2 of package.train" in messages
    assert "forward" in open_program_folder(Path("saved")).program.graphs


def test_a_saved_step_continues_the_training_bit_for_bit(torch: Any, capfd: Capture) -> None:
    import nncdbg
    from nncdbg.engine.ops.aten.arrays import host_array

    assert main(["record", script(), "--step", "4", "-o", "saved"]) == 0
    names: dict[str, Any] = {}
    exec(compile(TRAINING.replace("{before}", ""), "train.py", "exec"), names)
    outputs = nncdbg.run("saved")
    for name, parameter in names["net"].named_parameters():
        assert outputs[name].tobytes() == host_array(parameter).tobytes(), name


def test_the_folder_is_named_after_the_step(torch: Any) -> None:
    assert main(["record", script(), "--step", "2"]) == 0
    assert open_program_folder(Path("step2")).sentence() == "recorded step 2 of train.py"


def test_a_script_sees_its_own_arguments_name_and_folder(torch: Any, capfd: Capture) -> None:
    os.mkdir("project")
    script("", "SIZE = 3", "project/sizes.py")
    script(
        'print(sys.argv, __name__, __file__ == __import__("os").path.abspath(sys.argv[0]))',
        name="project/train.py",
    )
    text = "from sizes import SIZE\n" + Path("project/train.py").read_text()
    script("", text, "project/train.py")
    arguments = ["project/train.py", "--lr", "0.1", "-o", "saved", "--flag=-o", "--", "--step", "9"]
    before = [*sys.argv], [*sys.path], sys.modules["__main__"]
    assert main(["record", *arguments]) == 0
    expected = ["project/train.py", "--lr", "0.1", "--flag=-o", "--step", "9"]
    assert f"{expected} __main__ True" in capfd.readouterr().out
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_several_models_have_the_names_of_their_variables(torch: Any) -> None:
    text = """
import torch
generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, critic)]
critic(generator(torch.randn(4, 2))).mean().backward()
for each in optimizers:
    each.step()
"""
    assert main(["record", script(text=text), "-o", "saved"]) == 0
    states = {state.value.name for state in open_program_folder(Path("saved")).program.states}
    assert {"generator.weight", "critic.weight"} <= states


SCALED = """
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for number in range(1, 5):
    batch = torch.full((4, 3), float("nan") if number == 3 else 1.0)
    optimizer.zero_grad()
    scaler.scale(net(batch).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    print("step", number)
"""


def test_a_step_that_a_scaler_skips_is_recorded_by_its_number(torch: Any, capfd: Capture) -> None:
    step, scale = torch.amp.GradScaler.step, "aten.mul.Tensor"
    assert main(["record", script(text=SCALED), "--step", "3", "-o", "saved"]) == 0
    output, messages = capfd.readouterr()
    assert output.splitlines() == ["step 1", "step 2"]
    assert "note: the gradient scaler skipped the update of this step" in messages
    assert torch.amp.GradScaler.step is step
    graphs = open_program_folder(Path("saved")).program.graphs
    assert {"forward", "backward", "gradients"} <= graphs.keys()
    assert "optimizer" not in graphs
    assert scale in {node.op for node in graphs["forward"].nodes}
    assert main(["watch", "saved"]) == 1


def test_the_step_after_a_skipped_one_has_the_next_number(torch: Any, capfd: Capture) -> None:
    assert main(["record", script(text=SCALED), "--step", "4", "-o", "saved"]) == 0
    output, messages = capfd.readouterr()
    assert output.splitlines() == ["step 1", "step 2", "step 3"]
    assert "skipped" not in messages
    assert "optimizer" in open_program_folder(Path("saved")).program.graphs


def test_a_skipped_step_without_a_module_is_recorded(torch: Any, capfd: Capture) -> None:
    text = """
import torch
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu")
scaler.scale((weight * float("inf")).sum()).backward()
scaler.step(optimizer)
print("never")
"""
    assert main(["record", script(text=text), "-o", "saved"]) == 0
    output, messages = capfd.readouterr()
    assert not output
    assert "note: the gradient scaler skipped the update of this step" in messages


def test_a_closure_is_part_of_the_step(torch: Any) -> None:
    text = """
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
batch = torch.randn(4, 2)
def closure():
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    return loss
optimizer.step(closure)
"""
    assert main(["record", script(text=text), "-o", "saved"]) == 0
    assert "backward" in open_program_folder(Path("saved")).program.graphs


def test_a_step_without_a_module_has_only_the_optimizer(torch: Any, capfd: Capture) -> None:
    text = """
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    weight.square().sum().backward()
    optimizer.step()
"""
    assert main(["record", script(text=text), "-o", "first"]) == 0
    assert "no module was called before step 1" in capfd.readouterr().err
    assert "backward" not in open_program_folder(Path("first")).program.graphs
    assert main(["record", script(text=text), "--step", "2", "-o", "second"]) == 0
    assert "backward" in open_program_folder(Path("second")).program.graphs


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="needs fork")
def test_workers_and_forked_processes_are_not_recorded(torch: Any, capfd: Capture) -> None:
    text = """
import os, sys, torch
torch.set_num_threads(1)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(8, 3))
child = os.fork()
for _ in range(3):
    for [batch] in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        net(batch).sum().backward()
        optimizer.step()
if child == 0:
    print("child trained", flush=True)
    sys.exit(5)
"""
    script(text=text)
    done = subprocess.run(
        [sys.executable, "-m", "nncdbg", "record", "train.py", "--step", "3", "-o", "saved"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("saved in saved") == 1
    assert main(["run", "saved"]) == 0


# -- failures -----------------------------------------------------------------------------


def failure(capfd: Capture, *arguments: str) -> tuple[int, str]:
    """Return the exit code, and what was printed to standard error."""
    code = main(["record", *arguments])
    return code, capfd.readouterr().err


def test_a_script_that_fails_in_the_step_leaves_the_part_that_ran(torch: Any, capfd: Capture) -> None:
    code, messages = failure(capfd, script('raise ValueError("bad batch")'), "-o", "saved")
    assert code == 4
    assert "error: train.py failed in step 1: ValueError: bad batch" in messages
    assert "script.py" not in messages  # The traceback begins in the user's file.
    assert 'train.py", line 14' in messages
    folder = open_program_folder(Path("saved"))
    assert "backward" in folder.program.graphs
    assert (
        "the step is not complete: train.py failed in step 1: ValueError: bad batch" in folder.program.notes
    )


@pytest.mark.parametrize(
    ("before", "step", "code", "message"),
    [
        ("1 / 0", "2", 4, "failed before step 2: ZeroDivisionError: division by zero"),
        ("sys.exit(7)", "2", 4, "exited with code 7 before step 2"),
        ('if number == 3: sys.exit("no data")', "4", 4, "exited before step 4, after 2 steps: no data"),
        (
            "if number == 3: sys.exit()",
            "4",
            2,
            "ended after 2 steps: there is no step 4\n  hint: use --step 1 to 2",
        ),
        ("", "5", 2, "ended after 4 steps: there is no step 5\n  hint: use --step 1 to 4"),
        ("continue", "2", 2, "ended without a step of an optimizer"),
    ],
)
def test_a_script_that_ends_before_the_step_is_an_error(
    torch: Any, capfd: Capture, before: str, step: str, code: int, message: str
) -> None:
    found, messages = failure(capfd, script(before), "--step", step)
    assert (found, message in messages) == (code, True), messages
    assert os.listdir() == ["train.py"]


def test_a_script_that_swallows_the_end_of_the_step_is_ended_later(torch: Any, capfd: Capture) -> None:
    text = """
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(3):
    try:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except:
        pass
"""
    assert failure(capfd, script(text=text), "-o", "saved")[0] == 0
    assert main(["run", "saved"]) == 0


def test_a_script_that_does_not_compile_is_an_error_at_the_line(torch: Any, capfd: Capture) -> None:
    code, messages = failure(capfd, script(text="x = 1\ny = = 2\n"))
    assert code == 3
    assert (
        "error: train.py cannot be compiled: invalid syntax\n  at train.py:2:5\n    2 | y = = 2" in messages
    )
    assert "Traceback" not in messages


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.py"], 3, "there is no file missing.py"),
        (["."], 3, ". is a folder"),
        (["train.py", "--step", "0"], 2, "--step 0: not a step"),
        (["train.py", "--step", "x"], 2, "--step x: not a step"),
        (["train.py", "--step"], 2, "argument --step: expected one argument"),
        (["--unknown", "train.py"], 2, "unrecognized arguments: --unknown"),
        (["train.py", "-o", "train.py"], 2, "the path is a file"),
        (["train.py", "-o", "."], 2, "the folder is not empty"),
        ([], 2, "there is no script"),
        (["-m", "missing_module", "--epochs", "3"], 2, "there is no module missing_module"),
    ],
)
def test_wrong_arguments_are_reported_before_the_script_runs(
    torch: Any, capfd: Capture, arguments: list[str], code: int, message: str
) -> None:
    script(text="print('ran')\n")
    found, messages = failure(capfd, *arguments)
    assert (found, message in messages) == (code, True), messages
    assert "hint:" in messages


def test_torch_is_imported_only_when_the_script_runs(tmp_path: Path) -> None:
    check = (
        "import sys; sys.modules['torch'] = None\n"
        "from nncdbg.terminal.main import main\n"
        "assert main(['record', '--help']) == 0\n"
        "assert main(['record', 'missing.py']) == 3\n"
        "open('train.py', 'w').close()\n"
        "raise SystemExit(main(['record', 'train.py']))\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2, done.stderr
    assert "nncdbg.torch needs the package torch, which is not installed" in done.stderr
    assert "pip install nncdbg[torch]" in done.stderr
