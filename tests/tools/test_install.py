"""`tools/install.sh`: real pip and real environments with a small checkout that needs no network."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import install

ROOT = Path(__file__).resolve().parents[2]

PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "nncdbg"
version = "1"
"""

BACKEND = """import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    time.sleep(float(os.environ.get("SLOW_BUILD", "0")))
    name, info = "nncdbg-1-py3-none-any.whl", "nncdbg-1.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("nncdbg.py", "answer = 42\\nprint('%answer i64[]', answer)\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: nncdbg\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "nncdbg.py,,43\\n")
    return name
"""


class Checkout:
    """A checkout of a project that pip can install without a network; its path contains a space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        (folder / "tools").mkdir(parents=True)
        for name in ("install.sh", "install.py"):
            shutil.copy(ROOT / "tools" / name, folder / "tools" / name)
        (folder / "pyproject.toml").write_text(PROJECT)
        (folder / "backend.py").write_text(BACKEND)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))
        }
        chosen = {
            "HOME": str(self.folder / "no such home"),
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": "/dev/null",
        }
        return subprocess.Popen(
            [self.folder / "tools" / "install.sh", *arguments],
            cwd=self.folder,
            env=inherited | chosen | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def install(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run the installer, and return its exit code and output."""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def module_output(self) -> str:
        """Return the output of the installed module."""
        command = [str(self.venv / "bin" / "python"), "-I", "-m", "nncdbg"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "my checkout")


def test_install_waits_for_another_run_reports_progress_and_runs_once(checkout: Checkout) -> None:
    with (checkout.folder / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = checkout.start(SLOW_BUILD="4")
        assert process.stdout is not None
        assert "waiting for another run that installs into" in process.stdout.readline()
        assert not checkout.venv.exists()
    times = [time.monotonic()]
    output = ""
    for line in process.stdout:
        times.append(time.monotonic())
        output += line
    assert process.wait() == 0, output
    assert max(after - before for before, after in zip(times, times[1:], strict=False)) < 15, output
    assert re.search(r"downloads about \d+ MB, once; needs \d+ MB on disk\n", output)
    assert re.search(r"^ +\d+ s  .*, \d+ MB so far$", output, re.MULTILINE)
    assert re.search(r"^installed in \d+ s$", output, re.MULTILINE)
    assert checkout.module_output() == "%answer i64[] 42"
    assert checkout.install() == (0, "")


def test_a_killed_install_is_replaced_and_its_lock_is_free(checkout: Checkout) -> None:
    """Also an environment that is updated, damaged, or whose Python is gone."""
    process = checkout.start(SLOW_BUILD="60")
    deadline = time.monotonic() + 60
    while not (checkout.venv / "tmp").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (checkout.venv / ".installed").exists()
    code, output = checkout.install()
    assert code == 0, output
    assert checkout.module_output() == "%answer i64[] 42"

    other_file = checkout.venv / "other_file.txt"
    other_file.write_text("kept while the environment is whole")
    (checkout.folder / "pyproject.toml").write_text(PROJECT + 'description = "changed"\n')
    code, output = checkout.install()
    assert (code, other_file.exists()) == (0, True)
    assert "updating the installation" in output

    (checkout.venv / ".installed").unlink()
    next(checkout.venv.glob("lib/*/site-packages/nncdbg.py")).write_text("half of the fi")
    code, output = checkout.install()
    assert (code, other_file.exists()) == (0, False)
    assert "installing nncdbg into" in output
    assert checkout.module_output() == "%answer i64[] 42"

    other_file.write_text("of an environment whose Python is gone")
    (checkout.venv / "bin" / "python").unlink()
    (checkout.venv / "bin" / "python").symlink_to("/no/such/python3.9")
    assert (checkout.install()[0], other_file.exists()) == (0, False)
    assert checkout.module_output() == "%answer i64[] 42"


def test_a_folder_that_is_not_an_environment_is_kept(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "thesis.tex").write_text("years of work")
    code, output = checkout.install()
    assert code == 1
    assert f"error: {checkout.venv} is not a virtual environment\nhint: move it away" in output
    assert (checkout.venv / "thesis.tex").read_text() == "years of work"


def test_an_unreachable_index_and_a_program_that_does_not_start_are_errors(checkout: Checkout) -> None:
    project = checkout.folder / "pyproject.toml"
    project.write_text(PROJECT.replace("requires = []", 'requires = ["hatchling"]'))
    code, output = checkout.install(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert code == 1
    assert (
        "error: cannot install nncdbg: the package index cannot be reached\nhint: check the network" in output
    )
    assert "Traceback" not in output

    project.write_text(PROJECT)
    backend = checkout.folder / "backend.py"
    backend.write_text(BACKEND.replace("answer = 42", "import missing").replace(",,43", ",,"))
    code, output = checkout.install()
    assert code == 1
    assert "error: nncdbg is installed, but does not start: ModuleNotFoundError: No module named" in output
    assert not (checkout.venv / ".installed").exists()


def test_an_older_python_is_rejected_and_a_newer_one_is_found(checkout: Checkout) -> None:
    programs = checkout.folder / "programs"
    programs.mkdir()
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11"):
        (programs / name).write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9.2 ;; *) exit 1 ;; esac\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    code, output = checkout.install(PATH=path, PYTHON="")
    assert code == 1
    assert output.startswith(
        "error: nncdbg needs Python 3.11 or newer: python3 is 3.9.2, python3.14 is 3.9.2"
    )
    assert "hint: install one" in output
    (programs / "python3.12").write_text(
        '#!/bin/sh\ncase "$2" in *print*) echo 3.12.1 ;; *version*) ;; *) echo "chosen: $0" ;; esac\n'
    )
    code, output = checkout.install(PATH=path, PYTHON="")
    assert (code, output) == (0, f"chosen: {programs}/python3.12\n")
    code, output = checkout.install(PATH=path, PYTHON="python9")
    assert (code, output.splitlines()[0]) == (
        1,
        "error: nncdbg needs Python 3.11 or newer: python9 is not found",
    )


def test_python_without_ensurepip_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert install.main(["--venv", str(tmp_path / "venv")]) == 1
    error = capsys.readouterr().err
    assert "cannot make virtual environments: it lacks the module ensurepip" in error
    assert "hint: Debian and Ubuntu: sudo apt install python3-venv" in error


def test_an_unwritable_folder_is_an_error_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["--venv", "/proc/nncdbg/venv"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot install into /proc/nncdbg/venv: ")


@pytest.mark.parametrize(
    ("line", "description"),
    [
        ("Collecting numba>=0.61 (from nncdbg==0.1.0)", "downloading numba"),
        ("  Using cached onnx-1.23.2-cp311-cp311-manylinux.whl (8.9 MB)", "downloading onnx"),
        ("Processing /opt/files/ml_dtypes-0.6.0-cp311.whl (from nncdbg==0.1.0)", "downloading ml_dtypes"),
        ("Installing collected packages: wcwidth, numpy", "unpacking the packages"),
        ("  Installing build dependencies: started", "preparing the build"),
        ("Successfully built nncdbg", ""),
    ],
)
def test_lines_of_pip_are_described(line: str, description: str) -> None:
    assert install.described(line) == description


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shell_scripts_pass_shellcheck() -> None:
    scripts = [ROOT / "demo", ROOT / "tools" / "install.sh", ROOT / ".ci" / "run"]
    checked = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
