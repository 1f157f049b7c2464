"""Record the running kernel in a file that survives a crash of the process.

A third-party kernel (of an op library or a backend other than NumPy) can crash the process.  While it
runs, a small memory-mapped file holds its statement; the operating system keeps the file when the
process dies, and the next start of the same program reads it.  A record takes 2 to 3 us per statement,
so the built-in kernels, which do not crash, are not recorded.
"""

from __future__ import annotations

import os
from operator import itemgetter
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dtypes import name_of
from nncdbg.engine.backends import Execute, Kernels
from nncdbg.engine.ops import declared
from nncdbg.ir.records import TensorType
from nncdbg.ir.walk import walk_nodes
from nncdbg.process.crash_box import CrashBox
from nncdbg.process.crash_report_reader import INSIDE, LENGTH, RECORD, read_box, sentence
from nncdbg.process.files import state_folder
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.engine.backends import Backend, Call
    from nncdbg.engine.compilation.code import Statement
    from nncdbg.engine.execution.machine import Running
    from nncdbg.ir.records import Program

_LONGEST = 300
"""Maximum length of a recorded name, in characters."""
_MOST = 16
"""Maximum number of recorded operands, and of loops."""

_KEPT = 30 * 24 * 3600
"""Seconds until the box of a program that is not started again is removed."""

_encode = msgspec.json.Encoder().encode


class CrashLog:
    """Records the kernels of a debugger; the next start finds the box by `program`, the path of its program.

    The `box` exists only if kernels need it (see `begin`).  It is removed with the debugger, or at a normal
    exit of the process.  `folder` contains the boxes (`boxes_folder` if None).
    """

    def __init__(self, program: str | os.PathLike[str], folder: Path | None = None) -> None:
        self.program = _spelled(program)
        self.folder = folder if folder is not None else boxes_folder()
        self.box: CrashBox | None = None
        self._every_kernel = False

    def begin(self, program: Program, backend: Backend) -> list[str]:
        """Make the file if third-party kernels may run; return notes on earlier runs and on failures."""
        note = last_run(self.program, self.folder)
        notes = [note] if note is not None else []
        self._every_kernel = backend.name != "numpy"
        names = {node.op for node in walk_nodes(program)}
        if self._every_kernel or any(op.foreign for name in names for op in declared(name)):
            try:
                self.box = CrashBox(self.folder)
            except ImportError:
                notes.append("cannot report crashes: this system has no file locks")
            except OSError as error:
                notes.append(f"cannot report crashes: cannot write to {self.folder}: {error.strerror}")
        return notes

    def cover(
        self, kernels: Kernels, call: Call, statement: Statement, line: int | None, running: Running
    ) -> Kernels:
        """Return the kernels of a statement, with a record in the box while they run if they need it."""
        if self.box is None or not (self._every_kernel or call.op.foreign):
            return kernels
        code, pc = statement.code, statement.pc
        node = code.nodes[pc]
        value = next((value.name for value in node.outputs if value.name), "")
        fixed = {
            "program": self.program,
            "line": line,
            "op": node.op[:_LONGEST],
            "value": value[:_LONGEST],
            "source": origin_text(node)[:_LONGEST],
            "pid": os.getpid(),
        }
        count = min(len(code.operands[pc]), _MOST)
        run = self._recorded(kernels.run, fixed, count, running)
        return Kernels(run, kernels.into and self._recorded(kernels.into, fixed, count, running))

    def _recorded(self, kernel: Execute, fixed: dict[str, Any], count: int, running: Running) -> Execute:
        """Return the kernel, recorded in the box while it runs; its first `count` arguments are operands."""
        assert self.box is not None
        mapped = self.box.mapped
        # Formatted by hand for speed, as it is written before each kernel: the fixed part is built once.
        beginning = _encode(fixed).decode()[:-1]

        def run(*arguments: Any) -> Any:
            try:
                operands = ",".join([_texts[each.dtype, each.shape] for each in arguments[:count]])
            except (AttributeError, KeyError, TypeError):
                operands = ",".join(map(_type_text, arguments[:count]))
            frames = running.frames
            loops = [frame.iteration for frame in frames if frame.is_loop][:_MOST] if len(frames) > 1 else []
            text = f'{beginning},"iterations":{loops},"operands":[{operands}],"time":{time():.3f}}}'
            content = text.encode()
            size = len(content)
            mapped[LENGTH : RECORD + size] = size.to_bytes(RECORD - LENGTH, "little") + content
            mapped[INSIDE] = 1
            try:
                return kernel(*arguments)
            finally:
                mapped[INSIDE] = 0

        return run


_texts: dict[tuple[Any, Any], str] = {}
"""(dtype, shape) to the type as JSON."""

_KNOWN = 4096
"""Maximum number of cached types."""


def _type_text(value: Any) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return _encode("none" if value is None else type(value).__name__[:_LONGEST]).decode()
    try:
        text = str(TensorType(name_of(dtype), tuple(shape)))
    except (KeyError, TypeError):  # a custom op may pass on objects that no graph can hold
        return _encode(f"{dtype}{shape}"[:_LONGEST]).decode()
    if len(_texts) >= _KNOWN:
        _texts.clear()
    text = _texts[dtype, shape] = _encode(text).decode()
    return text


def _spelled(path: str | os.PathLike[str]) -> str:
    """Return the canonical path of a file, as text that JSON can hold."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


# -- the next start ---------------------------------------------------------------------------------


def boxes_folder() -> Path:
    """Return `nncdbg/black_boxes` in the user's state folder (XDG Base Directory Specification)."""
    return state_folder() / "black_boxes"


def last_run(program: str | os.PathLike[str], folder: Path | None = None) -> str | None:
    """Return a note on the latest run of the program that ended inside a kernel; reported only once.

    Removes the files of ended processes.
    """
    spelled = _spelled(program)
    files = sorted((folder if folder is not None else boxes_folder()).glob("*.box"))
    records = [record for file in files if (record := _left_behind(file, spelled)) is not None]
    if not records:
        return None
    return f"the last run ended {sentence(max(records, key=itemgetter('time')))}"


def _left_behind(file: Path, program: str) -> dict[str, Any] | None:
    """Return the record of an ended process if it ran this program; keep those of other programs."""
    import fcntl

    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = read_box(str(file)).record
            old = time() - file.stat().st_mtime > _KEPT
            if record is None or record["program"] == program or old:
                file.unlink(missing_ok=True)
    except OSError:
        # The process is running, or another process has just removed the file.
        return None
    return record if record is not None and record["program"] == program else None
