"""Installs nncdbg from this checkout into a virtual environment; run by `./demo` and `make`.

`tools/install.sh [--venv DIR] [--extra NAME]` does nothing where the installation is current. An environment
that is half-made, damaged or made by an older Python is replaced. A second run waits for the first. Uses the
standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"": (94, 330), "dev": (173, 550), "docs": (115, 420), "release": (102, 344)}
"""By `--extra`: MB that a first installation downloads, and MB on disk; docs/INSTALL.md has the parts."""

EXAMPLE = ROOT / "examples" / "first_steps.nnc"
PIP = "-m pip install --disable-pip-version-check --no-input --progress-bar off --retries 2 --no-compile"
VENV_ENTRIES = {"bin", "include", "lib", "lib64", "share", "tmp", "install.log"}
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Max retries exceeded",
    "ReadTimeoutError",
    "ProxyError",
)

WHOLE = """
import sys, importlib.metadata as metadata, pip
def whole(file):
    path = file.locate()
    return path.is_file() and (file.size is None or path.stat().st_size == file.size)
def listed(package):
    return package.files is not None and all(map(whole, package.files))
sys.exit(0 if sys.version_info >= (3, 11) and all(map(listed, metadata.distributions())) else 3)
"""
"""A script for the Python of an environment: exit code 0 if no installed file is missing or truncated."""


class InstallError(Exception):
    """A failed installation: the message, and a hint in the second argument."""


class Progress:
    """Report progress at least every three seconds: on one rewritten line, or as lines in a pipe."""

    def __init__(self) -> None:
        self.rewrites = sys.stderr.isatty()
        self.interval = 0.5 if self.rewrites else 3.0
        self.started = time.monotonic()
        self.shown = 0.0
        self.width = 0

    def say(self, words: str) -> None:
        """Print a permanent line."""
        self._write(words, "\n")

    def tick(self, words: str) -> None:
        """Show the current state with the elapsed seconds, unless the last update is recent."""
        if time.monotonic() - self.shown >= self.interval:
            self._write(f"  {time.monotonic() - self.started:3.0f} s  {words}", "" if self.rewrites else "\n")

    def _write(self, words: str, end: str) -> None:
        clear = f"\r{' ' * self.width}\r" if self.width else ""
        words = words[: shutil.get_terminal_size().columns - 1] if not end else words
        self.width = 0 if end else len(words)
        print(clear + words, end=end, file=sys.stderr, flush=True)
        self.shown = time.monotonic()


def main(arguments: list[str]) -> int:
    """Install if needed, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/install.sh", description="Install nncdbg from this checkout."
    )
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="the environment (default: .venv)")
    parser.add_argument("--extra", choices=[*SIZES], default="", help="also what the tests or the site need")
    options = parser.parse_args(arguments)
    try:
        install(options.venv.absolute(), options.extra, Progress())
    except InstallError as error:
        print(f"error: {error.args[0]}\nhint: {error.args[1]}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot install into {options.venv}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the next run starts anew", file=sys.stderr)
        return 130
    return 0


def install(venv: Path, extra: str, progress: Progress) -> None:
    """Update the environment; raise `InstallError` on failure."""
    if is_current(venv, extra):
        return
    with alone(venv, progress) as lock:
        if is_current(venv, extra):  # another run has installed meanwhile
            return
        if not is_whole(venv):
            remove(venv)
            download, disk = SIZES[extra]
            progress.say(f"installing nncdbg into {venv}")
            progress.say(f"  downloads about {download} MB, once; needs {disk} MB on disk")
            create(venv, progress, lock)
        else:
            progress.say(f"updating the installation in {venv}")
        add_packages(venv, extra, progress, lock)
        start_once(venv, progress, lock)
        for path in {stamp_of(venv, ""), stamp_of(venv, extra)}:
            path.write_text(fingerprint(venv))
    progress.say(f"installed in {time.monotonic() - progress.started:.0f} s")


def is_current(venv: Path, extra: str) -> bool:
    """Return whether the environment is complete, has the declared dependencies, and its Python exists."""
    return _read(stamp_of(venv, extra)) == fingerprint(venv) and (venv / "bin" / "python").exists()


def stamp_of(venv: Path, extra: str) -> Path:
    """Return the path of the file that marks a complete installation."""
    return venv / f".installed-{extra}".rstrip("-")


def fingerprint(venv: Path) -> str:
    """Return a text of everything that an installation depends on: dependencies and both folders."""
    declared = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"{declared}\n{ROOT}\n{venv}\n"


@contextlib.contextmanager
def alone(venv: Path, progress: Progress) -> Iterator[int]:
    """Lock an environment, and yield the lock's descriptor for processes that write there."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_name(f"{venv.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.tick(f"waiting for another run that installs into {venv}")
                time.sleep(0.2)
        yield file.fileno()


def is_whole(venv: Path) -> bool:
    """Return whether the environment works, its Python is new enough, and its packages are complete."""
    python = venv / "bin" / "python"
    if not (venv / "pyvenv.cfg").is_file() or not python.exists():
        return False
    try:
        return subprocess.run([python, "-I", "-c", WHOLE], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def remove(venv: Path) -> None:
    """Delete the environment; raise `InstallError` for other folders."""
    if not venv.exists() and not venv.is_symlink():
        return
    foreign = venv.is_symlink() or not venv.is_dir()
    if not foreign and not (venv / "pyvenv.cfg").is_file():
        foreign = any(not name.startswith(".installed") for name in {*os.listdir(venv)} - VENV_ENTRIES)
    if foreign:
        raise InstallError(
            f"{venv} is not a virtual environment", "move it away, or choose another: VENV=DIR ./demo"
        )
    shutil.rmtree(venv)


def create(venv: Path, progress: Progress, lock: int) -> None:
    """Create the environment with the current Python."""
    hint = (
        "Debian and Ubuntu: sudo apt install python3-venv; otherwise choose another Python: PYTHON=... ./demo"
    )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise InstallError(
            f"{sys.executable} cannot make virtual environments: it lacks the module ensurepip", hint
        )
    version = ".".join(map(str, sys.version_info[:3]))
    command = [sys.executable, "-m", "venv", str(venv)]
    output: list[str] = []
    for lines in running(command, {}, lock):
        output += lines
        progress.tick(f"making a virtual environment with Python {version}")
    if not (venv / "bin" / "pip").exists():
        raise InstallError(f"cannot make a virtual environment: {_last(output)}", hint)


def add_packages(venv: Path, extra: str, progress: Progress, lock: int) -> None:
    """Run pip in the environment, and report its progress."""
    temporary = venv / "tmp"
    temporary.mkdir(exist_ok=True)
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    command = [str(venv / "bin" / "python"), *PIP.split(), "--editable", target]
    output, doing = [], "starting pip"
    try:
        for lines in running(command, {"TMPDIR": str(temporary)}, lock):
            output += lines
            doing = next((what for line in reversed(lines) if (what := described(line))), doing)
            progress.tick(f"{doing}, {megabytes(venv)} MB so far")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    (venv / "install.log").write_text("\n".join(output) + "\n")
    if not output or not any(line.startswith("Successfully installed") for line in output):
        raise failure(output, venv / "install.log")


def start_once(venv: Path, progress: Progress, lock: int) -> None:
    """Start nncdbg once, which compiles its modules; raise `InstallError` on failure."""
    output: list[str] = []
    for lines in running([str(venv / "bin" / "python"), "-m", "nncdbg", "run", str(EXAMPLE)], {}, lock):
        output += lines
        progress.tick("starting nncdbg for the first time")
    if not any(line.startswith("%") for line in output):
        raise InstallError(
            f"nncdbg is installed, but does not start: {_last(output)}", "report this as a bug"
        )


def running(command: list[str], environment: dict[str, str], lock: int) -> Iterator[list[str]]:
    """Run a command, and yield its lines as it prints them, or an empty list every quarter of a second."""
    process = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    reader = threading.Thread(target=_queue_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        while reader.is_alive() or not lines.empty():
            reader.join(0.25)
            yield [lines.get() for _ in range(lines.qsize())]
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _queue_lines(output: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in output:
        lines.put(line.rstrip("\n"))


def described(line: str) -> str:
    """Return the activity in a line of pip's output; empty for other lines."""
    words = line.replace("Using cached", "Using").split()
    if len(words) > 1 and words[0] in ("Collecting", "Downloading", "Processing", "Using"):
        return f"downloading {re.split('[-<>=!~;[]', words[1].rsplit('/', 1)[-1])[0]}"
    if line.startswith("Installing collected packages"):
        return "unpacking the packages"
    return "preparing the build" if "build" in line and words[:1] != ["Successfully"] else ""


def megabytes(folder: Path) -> int:
    """Return the size of all files in a folder, which may change during the scan."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip has moved or deleted it
                total += os.lstat(os.path.join(path, name)).st_size
    return total // 1_000_000


def failure(output: list[str], log: Path) -> InstallError:
    """Return the error for pip's output."""
    if any(sign in line for line in output for sign in NO_NETWORK):
        hint = "check the network; HTTPS_PROXY sets a proxy, PIP_INDEX_URL another index"
        return InstallError(
            "cannot install nncdbg: the package index cannot be reached", f"{hint}. pip's output: {log}"
        )
    return InstallError(f"cannot install nncdbg: {_last(output)}", f"pip's output: {log}")


def _last(output: list[str]) -> str:
    """Return the last line with an error, or the last line."""
    errors = [line for line in output if "error" in line.lower() and line.strip()]
    return (errors or output or ["no output"])[-1].removeprefix("ERROR: ").strip()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
