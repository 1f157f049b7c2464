"""A recording without memory gives up: the training runs on with the same bits, and the step says why."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import nncdbg.torch  # noqa: E402
from nncdbg.errors import RunError  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

HEAD = """
import resource
import torch
torch.set_num_threads(1)

def limit(megabytes):
    "Let this process have some more memory than it has now."
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20),) * 2)
"""

TRAINING = """
weight = torch.ones(5 << 20, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.5, foreach=False)

def train():
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    print("trained", weight.sum().item(), flush=True)
"""


def run(tmp_path: Path, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the limit, under `nncdbg` if a command is given."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + text)
    start = ["-m", "nncdbg.terminal.main", *command] if command else []
    return subprocess.run(
        [sys.executable, *start, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )


def test_step_without_memory_for_an_input_trains_on(tmp_path: Path) -> None:
    text = """
import nncdbg.torch
from nncdbg.errors import RunError
with nncdbg.torch.record(None, optimizer):
    torch.ones(1).add_(1)
limit(30)
with nncdbg.torch.record(torch.nn.ParameterDict({"w": weight}), optimizer) as step:
    train()
print(*step.notes)
for _ in range(2):
    try:
        step.program
    except RunError as error:
        print(error)
"""
    done = run(tmp_path, TRAINING + text)
    assert done.returncode == 0, done.stderr
    trained, note, *errors = done.stdout.splitlines()
    assert trained == f"trained {(5 << 20) * 0.5}"
    assert note.startswith(
        "the step cannot be recorded: %w of 20,971,520 bytes cannot be copied: Cannot allocate memory"
    )
    hint = "  hint: record with a smaller batch, or free memory before the step"
    line = (
        f"  from {tmp_path / 'train.py'}:{(HEAD + TRAINING).splitlines().index('    optimizer.step()') + 1}"
    )
    assert errors == [note, line, hint] * 2


def test_operator_without_memory_runs_again_without_the_copies(tmp_path: Path) -> None:
    text = """
import nncdbg.torch
with nncdbg.torch.record(None, optimizer):
    torch.ones(1).add_(1)
limit(50)
with nncdbg.torch.record(torch.nn.ParameterDict({"w": weight}), optimizer) as step:
    weight.grad = torch.ones_like(weight)
    optimizer.step()  # copies 20 MB
    root = weight.detach().sqrt()
    print("trained", weight.sum().item(), root.sum().item() > 0, flush=True)
print(*step.notes)
"""
    done = run(tmp_path, TRAINING + text)
    assert done.returncode == 0, done.stderr
    trained, note = done.stdout.splitlines()
    assert trained == f"trained {(5 << 20) * 0.5} True"
    assert note.startswith("the step cannot be recorded: out of memory after ")


def test_error_without_memory_is_the_script_s_own_if_the_recording_has_no_copies(tmp_path: Path) -> None:
    text = """
import nncdbg.torch
one = torch.ones(1)
with nncdbg.torch.record():
    one.add(1)
limit(30)
try:
    with nncdbg.torch.record() as step:
        one.expand(5 << 20).sqrt().sqrt()
except RuntimeError as error:
    print("can't allocate" in str(error), error.__context__)
print(*step.notes)
print(*(node.op for node in step.program.graphs["forward"].nodes))
"""
    done = run(tmp_path, TRAINING + text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True None", "", "aten.expand.default aten.sqrt.default"]


def test_record_ends_with_the_error_after_the_step(tmp_path: Path) -> None:
    done = run(tmp_path, TRAINING + "limit(30)\ntrain()\nprint('never')\n", "record", "-o", "saved")
    assert done.returncode == RunError.exit_code
    assert "error: the step cannot be recorded: an input of 20,971,520 bytes cannot be copied" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "saved").exists()


def test_recorded_result_without_memory_is_left_out(tmp_path: Path) -> None:
    text = """
import nncdbg.torch
with nncdbg.torch.record():
    torch.eye(2).to_sparse().to_dense()
indices, values = torch.zeros(2, 1, dtype=torch.int64), torch.ones(1)
sparse = torch.sparse_coo_tensor(indices, values, (5 << 10, 1 << 10))
limit(30)
with nncdbg.torch.record() as step:
    total = sparse.to_dense().sum()
print(total.item())
print(*step.notes)
print(*(node.op for node in step.program.graphs["forward"].nodes))
"""
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    total, note, ops = done.stdout.splitlines()
    assert total == "1.0"
    assert note == (
        "%to_dense is uninitialized: there was no memory to copy this result of aten._to_dense.default "
        "with 20,971,520 bytes"
    )
    assert ops == "aten.empty.memory_format aten.sum.default"


def test_block_that_raises_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1 << 10)

    def fail(self: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(torch.Tensor, "clone", fail)
    with pytest.raises(ZeroDivisionError), nncdbg.torch.record() as step:
        x.add(1 / int(x.sum() - 1024))
    assert step.notes == (
        "the step cannot be recorded: an input of 4,096 bytes cannot be copied: out of memory",
    )
    assert not step.complete
    assert repr(step) == f"<RecordedStep, {step.notes[0]}>"
