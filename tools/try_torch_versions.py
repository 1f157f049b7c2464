"""Tries nncdbg with other versions of torch, each in a virtual environment `build/torch-VERSION` of its own.

`python tools/try_torch_versions.py [VERSION ...]` runs `tests/torch`, and from torch's own samples all
modules, all optimizers and the operators of `SAMPLE`. It prints a row of the table in docs/PYTORCH.md for
each version. A CUDA build takes 5 GB of disk: delete the folder when you are done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("2.10.0", "2.12.0", "2.13.0", "2.14.1", "2.15.0")
"""The oldest version that nncdbg works with, the newest one, and some between."""

SAMPLE = "not test_operators or linalg or norm"
"""The samples of torch that run, in the words of `pytest -k`; all of them take half an hour."""

RUNS = (
    ("tests/torch",),
    ("tests/torch/conformance", "-m", "conformance_torch", "-k", SAMPLE),
)


def requirements(version: str) -> list[str]:
    """Return what the tests need, with a version of torch in place of the one of the extra `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = [each for each in project["optional-dependencies"]["dev"] if not each.startswith("torch==")]
    return [*others, f"torch=={version}"]


def install(version: str) -> Path:
    """Return the Python of the environment of a version, which is made if it is missing."""
    folder = ROOT / "build" / f"torch-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    options = ("--quiet", "--disable-pip-version-check", "--editable", str(ROOT))
    subprocess.run([python, "-m", "pip", "install", *options, *requirements(version)], check=True)
    return python


def run(python: Path, arguments: tuple[str, ...]) -> tuple[bool, str]:
    """Run pytest; return whether all tests passed, and its last line without the time."""
    command = [str(python), "-m", "pytest", "-n", "auto", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "NNCDBG_QUARTER": "all"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return process.wait() == 0, last.partition(" in ")[0].strip("= ")


def main(versions: list[str]) -> int:
    """Test the versions, print their rows, and return the exit code."""
    rows, passed = [], True
    for version in versions:
        python = install(version)
        subprocess.run([python, "-m", "nncdbg.torch.compile_libraries"], cwd=ROOT, check=False)
        results = [run(python, arguments) for arguments in RUNS]
        passed = passed and all(right for right, _ in results)
        rows.append(f"| {version} | {' | '.join(line for _, line in results)} |")
    print(*rows, sep=os.linesep)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*VERSIONS]))
