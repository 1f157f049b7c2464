"""Processes that start with PyTorch imported: forks of one process of the tests that has imported it.

`Popen` is that of `subprocess`, for Python with a script, `-m MODULE` or `-c CODE`.  Other commands start as
usual.  So do all in a run of all nightly tests: there each process imports what it needs, as a user's does.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from select import select
from typing import Any

ROOT = Path(__file__).parents[1]

IMPORTED = (
    "onnx.reference",
    "torch._dynamo",  # each optimizer imports it
    "torch.distributed.run",
    "nncdbg.commands.familiar",
    "nncdbg.dap_server.session",
    "nncdbg.engine.backends.torch",
    "nncdbg.engine.diagnosis.diagnosing",
    "nncdbg.nan_watch.commands.watch",
    "nncdbg.nan_watch.commands.watch_script",
    "nncdbg.opening.journal.recording",
    "nncdbg.stats.compiled",
    "nncdbg.terminal.live_prompt",
    "nncdbg.terminal.main",
    "nncdbg.torch.compiled",
    "nncdbg.torch.guard",
    "nncdbg.torch.second_run",
    "nncdbg.torch.step_recording",
)
"""What the forks have imported: most of what the commands on training scripts import."""

LARGEST = 100_000
"""Bytes of the largest request: the command with its environment."""

MOST = 16
"""Descriptors of the largest request: three streams, the status, and those that the command inherits."""

HIGH = 500
"""The least number of the descriptors of this file: an inherited one keeps its number, which is lower."""

HIDDEN = (__file__, runpy.run_module.__code__.co_filename)
"""The files whose frames a traceback of a fork does not show."""

_forking: socket.socket | None = None
"""The connection to the process that forks."""


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process, which is forked if the command and its options allow that."""

    _status: socket.socket | None = None

    def _execute_child(self, args: Any, *options: Any) -> None:
        executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest = options
        words = [] if shell or isinstance(args, str | bytes) else [*map(os.fspath, args)]
        if executable or preexec_fn or not _is_forked(words):
            super()._execute_child(args, *options)  # type: ignore[misc]
            return
        ends, new_session = rest[:6], rest[11]
        request = {
            "words": words,
            "folder": os.path.abspath(cwd or ""),
            "environment": dict(os.environ if env is None else env),
            "new session": new_session,
            "parent": os.getpid(),
            "inherited": [*pass_fds],
        }
        streams = [end if end != -1 else number for number, end in enumerate((ends[0], ends[3], ends[5]))]
        self._status, other = socket.socketpair()
        assert _forking is not None, "call `prepare` before"
        with other:
            socket.send_fds(_forking, [json.dumps(request).encode()], [*streams, other.fileno(), *pass_fds])
        self.pid = int.from_bytes(self._status.recv(4), "little")
        assert self.pid, "the process that forks has ended"
        self._child_created = True
        _started.append(self.pid)
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._status is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags and not select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            return self.pid, int.from_bytes(self._status.recv(4), "little")

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self._status is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


_started: list[int] = []
"""The numbers of all forks of this process."""


def alive() -> list[int]:
    """Return the numbers of the forks of this process that have not ended."""
    return [number for number in _started if Path(f"/proc/{number}").exists()]


def _is_forked(words: list[str]) -> bool:
    """Return whether a command can be a fork: Python without options of the interpreter, except `-u`."""
    if not _forks() or words[:1] != [sys.executable]:
        return False
    more = words[1 + (words[1:2] == ["-u"]) :]
    return bool(more) and (more[0] in ("-m", "-c") or not more[0].startswith("-"))


def _forks() -> bool:
    return sys.platform == "linux" and os.environ.get("NNCDBG_QUARTER") != "all"


def prepare() -> None:
    """Start the process that forks; it ends with this one."""
    global _forking
    if _forking is None and _forks():
        _forking, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            line = f"from tests.processes import serve; serve({other.fileno()})"
            subprocess.Popen(
                [sys.executable, "-c", line],
                cwd=ROOT,
                # Forks with little memory must not find that of the thread that compiled the kernels.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                pass_fds=[other.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )


# -- the process that forks --------------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork a process for each request of the connection with this descriptor, and for those of the forks."""
    global _forking
    connection = _high(socket.socket(fileno=number))
    _forking, of_forks = map(_high, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    subprocess.Popen = Popen  # type: ignore[misc]
    for name in IMPORTED:
        importlib.import_module(name)
    sys.modules["nncdbg.stats"].prepare(wait=True)  # the forks have its kernels too
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the parents of the forks
    while True:
        ready, _, _ = select([connection, of_forks], [], [])
        data, descriptors, _, _ = socket.recv_fds(ready[0], LARGEST, MOST)
        if not data:
            return
        if os.fork() == 0:
            connection.close()
            of_forks.close()
            if _report(descriptors):
                _become(json.loads(data), descriptors)
                return
        for descriptor in descriptors:
            os.close(descriptor)


def _high(low: socket.socket) -> socket.socket:
    """Return a connection under a number that no inherited descriptor has."""
    with low:
        return socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH))


def _report(descriptors: list[int]) -> bool:
    """Fork, and return True in the child; report its number and its status to the process that waits.

    The fourth descriptor is that of the connection to it, which the child does not have.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    status = descriptors.pop(3)
    if child == 0:
        os.close(status)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    os.write(status, child.to_bytes(4, "little"))
    code = os.waitpid(child, 0)[1]
    with suppress(BrokenPipeError):
        os.write(status, code.to_bytes(4, "little"))
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run the command of a request in this process, which ends as it does under Python."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, [0, 1, 2, *request["inherited"]], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["new session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own, parent = os.getpid(), os.getppid
    # The ranks of a job have one parent; workers of a loader end without theirs.
    os.getppid = lambda: request["parent"] if os.getpid() == own else parent()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = sys.orig_argv = request["words"]
    unbuffered = words[1] == "-u"
    kind, *arguments = words[1 + unbuffered :]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        binary = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115
        stream = TextIOWrapper(binary, encoding=old.encoding, errors=old.errors)
        if number:
            stream.reconfigure(write_through=unbuffered, line_buffering=old.line_buffering or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
    sys.path[1:1] = filter(None, more)
    main = vars(sys.modules["__main__"])
    del main["serve"]
    code: object = 0
    try:
        _run(kind, arguments, request["folder"], main)
    except SystemExit as end:
        code = end.code
    except Exception as error:  # noqa: BLE001  printed without the frames of this file
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in HIDDEN:
            frames = frames.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(frames), frames
        sys.excepthook(type(error), error, frames)
        code = 1
    _end(code, main)


def _run(kind: str, arguments: list[str], folder: str, main: dict[str, Any]) -> None:
    """Run a module, code or a script in the module `__main__`."""
    if kind == "-m":
        sys.path[0], sys.argv = folder, ["-m", *arguments[1:]]
        if not hasattr(sys.modules.get(arguments[0]), "__path__"):
            sys.modules.pop(arguments[0], None)  # it is `__main__`
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), main)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.realpath(kind)), [kind, *arguments]
        main["__file__"] = kind
        exec(compile(Path(kind).read_bytes(), kind, "exec"), main)


def _end(code: object, main: dict[str, Any]) -> None:
    """End as Python does, except that imported modules are not torn down: that takes a quarter of a second.

    Python prints a status that is not a number, and reports an output that cannot be written.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    main.clear()
    gc.collect()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # type: ignore[arg-type]
    if code is None or isinstance(code, int):
        os._exit((code or 0) & 0xFF)
    sys.exit(code)  # type: ignore[arg-type]
