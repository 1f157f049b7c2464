"""A script ends under each command as it does under Python."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.errors import NncdbgError  # noqa: E402
from nncdbg.torch.script import run_to_end, script_runner  # noqa: E402

FORKS = """
import os
import torch
child = os.fork()
if child == 0:
    1 / 0
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 3)).sum().backward()
optimizer.step()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("command", ["watch", "debug --catch nan", "record -o step"])
def test_process_that_the_script_forked_ends_as_under_python(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(FORKS)
    done = subprocess.run(
        [sys.executable, "-m", "nncdbg", *command.split(), "train.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert "child: 1" in done.stdout
    assert done.stderr.count("ZeroDivisionError") == 1


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
    failure = run_to_end("train.py", script_runner("train.py", None, ()), lambda: "here")
    assert (failure and failure.message) == message


@pytest.mark.parametrize("error", [KeyboardInterrupt, NncdbgError("not a failure of the script")])
def test_interrupt_and_own_errors_are_not_failures_of_the_script(error: BaseException) -> None:
    def run() -> None:
        raise error

    with pytest.raises((KeyboardInterrupt, NncdbgError)):
        run_to_end("train.py", run)
