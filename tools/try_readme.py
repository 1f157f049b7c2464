"""Tries the commands of README.md as a new user: pasted in order into bash, in a terminal of 80 columns.

`make readme` does so in a fresh clone with an empty HOME, installation included, and prints the seconds and
the longest silence of each command. The tests use `play` with a prepared environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL, PROMPT = "paste>", "(nncdbg)"
SETTLED = 0.4
"""Seconds without output after which a prompt is ready; it is redrawn while a line is typed."""


@dataclass(frozen=True)
class Tried:
    """A command with its exit code, output and seconds."""

    command: str
    code: int
    output: str
    seconds: float
    silence: float

    @property
    def as_printed(self) -> bool:
        """Return whether the exit code is the one that the README states for the command."""
        return self.code == (1 if "exit code 1" in self.command else 0)


def commands(readme: str) -> list[str]:
    """Return the commands of the `sh` blocks, each with the comments before and behind it."""
    found: list[str] = []
    comment = ""
    for line in "".join(BLOCK.findall(readme)).splitlines():
        if line.startswith("#"):
            comment = line + "\n"
        elif line:
            found.append(comment + line)
            comment = ""
    return found


def installations(readme: str) -> list[str]:
    """Return the install commands of the table that work before nncdbg is in the package index."""
    rows = readme.split("| install | run |")[1].split("\n\n")[0].splitlines()
    return [span for row in rows if "published" not in row for span in re.findall(r"`([^`]+)`", row)]


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a new container with this machine's package index and certificates."""
    index = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(("PIP_", "UV_", "SSL_")) or "proxy" in name
    }
    terminal = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "INPUTRC": "/dev/null"}
    path = os.pathsep.join([*_programs(), "/usr/local/bin", "/usr/bin", "/bin"])
    return {**index, **terminal, "PATH": path, "HOME": str(home), "PS1": f"{SHELL} ", "LANG": "C.UTF-8"}


def play(folder: Path, variables: dict[str, str], typed: list[str], patience: float) -> list[Tried]:
    """Paste the commands in order into one shell. At nncdbg's prompt: `next`, then `quit`."""
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], cwd=folder, env=variables, dimensions=(40, 80), encoding="utf-8"
    )
    try:
        _read(shell, patience)
        return [_try(shell, command, patience) for command in typed]
    finally:
        shell.close(force=True)


def _try(shell: pexpect.spawn[str], command: str, patience: float) -> Tried:
    started = time.monotonic()
    shell.sendline(command.splitlines()[-1])
    output, silence = _read(shell, patience)
    seconds = time.monotonic() - started - SETTLED
    for answer in ("next", "quit"):
        if output.rstrip(" ").endswith(PROMPT):
            shell.sendline(answer)
            output += _read(shell, patience)[0]
    shell.sendline("echo code=$?")
    code = re.search(r"code=(\d+)", _read(shell, patience)[0])
    if code is None:
        raise RuntimeError(f"`{command}` does not come back to the shell: {output}")
    return Tried(command, int(code[1]), output, seconds, silence)


def _read(shell: pexpect.spawn[str], patience: float) -> tuple[str, float]:
    """Return the output up to the next prompt, without escape sequences, and its longest pause."""
    output, silence, last = "", 0.0, time.monotonic()
    while True:
        waits = output.rstrip(" ").endswith((SHELL, PROMPT))
        try:
            output += shell.read_nonblocking(4096, timeout=SETTLED if waits else patience)
        except pexpect.TIMEOUT:
            if waits:
                return output, silence
            raise RuntimeError(f"no output and no prompt for {patience:g} s after: {output}") from None
        output = re.sub(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|\r", "", output)
        silence, last = max(silence, time.monotonic() - last), time.monotonic()


def _programs() -> list[str]:
    """Return the folders of python3, pipx and uv."""
    found = [shutil.which(name) for name in ("python3", "pipx", "uv")]
    return list(dict.fromkeys(str(Path(path).parent) for path in found if path))


def main() -> int:
    """Try everything in a fresh clone; 1 if a command does not end as the README says."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="readme ") as name:
        home, checkout = Path(name) / "home", Path(name) / "nncdbg"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        variables = environment(home)
        tried = play(checkout, variables, commands(readme), 60)
        for number, command in enumerate(installations(readme)):
            if shutil.which(command.split()[0], path=variables["PATH"]) or command.startswith("env/"):
                typed = command.replace("git+URL", f"'git+file://{checkout}'")
                tried += play(checkout, variables | {"HOME": f"{home}{number}"}, [typed], 180)
    for each in tried:
        result = "ok" if each.as_printed else f"exit code {each.code}:\n{each.output}"
        print(
            f"{each.seconds:5.1f} s, silence {each.silence:4.1f} s  {each.command.splitlines()[-1]}  {result}"
        )
    return 0 if all(each.as_printed for each in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
