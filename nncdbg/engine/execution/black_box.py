"""The kernel being run, kept where it survives a crash of the process.

A kernel that is not ours (of an op library, of another backend than NumPy) may take the process
with it.  While one runs, its statement stands in a small file that is mapped into memory; the
kernel of the system keeps it when the process dies.  The next start of the same program finds it.
To write it takes 2 to 3 us per statement, so our own kernels, which do not crash, are left out.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from struct import Struct
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.engine.backends import Execute, Kernels
from nncdbg.engine.compilation.search import blocks
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.graph import TensorType
from nncdbg.engine.ops import declared
from nncdbg.engine.process.last_words import INSIDE, LENGTH, RECORD, SENDING, SENT, SIZE, read_box, sentence
from nncdbg.engine.process.state_folder import state_folder

if TYPE_CHECKING:
    from nncdbg.engine.backends import Backend
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.machine import Running
    from nncdbg.engine.graph import Program
    from nncdbg.engine.ops import Op

_LONGEST = 300
"""Characters of a name that are kept."""
_MOST = 16
"""Operands and loops that are kept."""

_KEPT = 30 * 24 * 3600
"""Seconds that a box waits for the next start of its program."""

_NUMBER = Struct("<Q")
_encode = msgspec.json.Encoder().encode


class BlackBox:
    """The box of one debugger; `program` is the path of its program, by which the next start finds it.

    It is a file only if kernels need it (see `begin`), and is removed with the debugger, or when the
    process ends in good order.  `folder` is where boxes are kept (`boxes_folder` if None).
    """

    def __init__(self, program: str | os.PathLike[str], folder: Path | None = None) -> None:
        self.program = _spelled(program)
        self.folder = folder if folder is not None else boxes_folder()
        self.file: str | None = None
        """The path of the box; None while there is none."""
        self._every_kernel = False
        self._mapped: mmap.mmap | None = None
        self.close: Callable[[], object] = lambda: None
        """Remove the file: the end is in good order."""

    def begin(self, program: Program, backend: Backend) -> list[str]:
        """Make the file if a kernel may run that is not ours; notes on earlier runs, and on what failed."""
        note = last_run(self.program, self.folder)
        notes = [note] if note is not None else []
        self._every_kernel = backend.name != "numpy"
        names = {node.op for _, graph in blocks(program) for node in graph.nodes}
        if self._every_kernel or any(op.foreign for name in names for op in declared(name)):
            try:
                self._open()
            except ImportError:
                notes.append("cannot report crashes: this system has no file locks")
            except OSError as error:
                notes.append(f"cannot report crashes: cannot write to {self.folder}: {error.strerror}")
        return notes

    def _open(self) -> None:
        import fcntl  # Windows has none

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, file = tempfile.mkstemp(".box", f"{os.getpid()}-", self.folder)
        os.ftruncate(descriptor, SIZE)
        # Held as long as the process lives: who gets the lock knows that it is gone.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._mapped = mmap.mmap(descriptor, SIZE)
        self.file = file
        self.close = weakref.finalize(self, _remove, file, descriptor, os.getpid())

    def cover(
        self, kernels: Kernels, op: Op, code: Code, pc: int, line: int | None, running: Running
    ) -> Kernels:
        """The kernels of a statement, which stands in the box while they run, if it has to."""
        if self._mapped is None or not (self._every_kernel or op.foreign):
            return kernels
        node = code.nodes[pc]
        value = next((value.name for value in node.outputs if value.name), "")
        fixed = {
            "program": self.program,
            "line": line,
            "op": node.op[:_LONGEST],
            "value": value[:_LONGEST],
            "source": str(node.location or "")[:_LONGEST],
            "pid": os.getpid(),
        }
        count = min(len(code.operands[pc]), _MOST)
        run = self._recorded(kernels.run, fixed, count, running)
        return Kernels(run, kernels.into and self._recorded(kernels.into, fixed, count, running))

    def _recorded(self, kernel: Execute, fixed: dict[str, Any], count: int, running: Running) -> Execute:
        """The kernel, with a record in the box while it runs; the first `count` arguments are operands."""
        mapped = self._mapped
        assert mapped is not None
        # JSON by hand, as it is written before each kernel: what never changes is written out once.
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

    # -- what a watchdog has to know of messages ------------------------------------------------

    def sending(self, number: int) -> None:
        """A message begins to be sent."""
        if self._mapped is not None:
            self._mapped[SENDING] = 1
            _NUMBER.pack_into(self._mapped, SENT, number)

    def sent(self) -> None:
        """It has gone whole."""
        if self._mapped is not None:
            self._mapped[SENDING] = 0


def _remove(file: str, descriptor: int, owner: int) -> None:
    os.close(descriptor)
    # A process that was forked off has inherited this, and must leave the file alone.
    if os.getpid() == owner:
        Path(file).unlink(missing_ok=True)


_texts: dict[tuple[Any, Any], str] = {}
"""(dtype, shape) to the type, as JSON."""

_KNOWN = 4096
"""Types that are remembered."""


def _type_text(value: Any) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return _encode("none" if value is None else type(value).__name__[:_LONGEST]).decode()
    try:
        text = str(TensorType(name_of(dtype), tuple(shape)))
    except (KeyError, TypeError):  # a custom op may hand on what no graph can hold
        return _encode(f"{dtype}{shape}"[:_LONGEST]).decode()
    if len(_texts) >= _KNOWN:
        _texts.clear()
    text = _texts[dtype, shape] = _encode(text).decode()
    return text


def _spelled(path: str | os.PathLike[str]) -> str:
    """The one name of a file, as text that JSON can hold."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


# -- the next start ---------------------------------------------------------------------------------


def boxes_folder() -> Path:
    """`nncdbg/black_boxes` in the user's folder for state (XDG Base Directory Specification)."""
    return state_folder() / "black_boxes"


def last_run(program: str | os.PathLike[str], folder: Path | None = None) -> str | None:
    """A note if an earlier run of the program ended inside a kernel; the latest of them, told once.

    What processes that are gone have left is removed.
    """
    spelled = _spelled(program)
    files = sorted((folder if folder is not None else boxes_folder()).glob("*.box"))
    records = [record for file in files if (record := _left_behind(file, spelled)) is not None]
    if not records:
        return None
    return f"the last run ended {sentence(max(records, key=itemgetter('time')))}"


def _left_behind(file: Path, program: str) -> dict[str, Any] | None:
    """The record of a box whose process is gone, if it is of this program; others wait for theirs."""
    import fcntl

    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = read_box(str(file)).record
            old = time() - file.stat().st_mtime > _KEPT
            if record is None or record["program"] == program or old:
                file.unlink(missing_ok=True)
    except OSError:
        # Its process lives, or somebody else has just removed it.
        return None
    return record if record is not None and record["program"] == program else None
