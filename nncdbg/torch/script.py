"""Run a Python file as `python FILE ARGUMENTS` does, and record one training step of it.

Step N ends with the Nth call of `step` of an optimizer, or of a `GradScaler` that skips it, and begins when
the call before it has ended.  Step 1 begins with the first call of a module with gradients enabled.
In a script without an optimizer, a step ends after a backward pass, before the next call of a module.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from os.path import dirname
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch.nn.utils.parametrize import ParametrizationList

from nncdbg.engine.ops.aten.internals import compiling_nothing, operator_file
from nncdbg.errors import Excerpt, LoadError, NncdbgError, RunError, UsageError
from nncdbg.presentation.exit_codes import INTERRUPTED, exit_code_of
from nncdbg.presentation.screen import Screen, writable
from nncdbg.presentation.source_files import short_path
from nncdbg.text.counting import counted
from nncdbg.torch.hooks import on_backward, on_compiled_call, on_module_calls, on_updates
from nncdbg.torch.named_models import live_objects, models_of, objects_of_script
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.source_lines import calling_modules, place_of, user_lines
from nncdbg.torch.step_recording import record


def run_script(file: str | os.PathLike[str], arguments: Sequence[str] = ()) -> None:
    """Run a Python file as the module `__main__`, with its own `sys.argv` and `sys.path[0]`.

    Raises what the file raises: SyntaxError if it does not compile, SystemExit if it exits.
    """
    given = os.fspath(file)
    path = os.path.abspath(given)
    with io.open_code(path) as opened:
        code = compile(opened.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    module.__loader__ = SourceFileLoader("__main__", path)
    with _as_main(module, given, arguments):
        exec(code, module.__dict__)


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run a module as `python -m NAME ARGUMENTS` does.

    Raises UsageError if there is no such module, and what the module raises.
    """
    module = types.ModuleType("__main__")
    with _as_main(module, name, arguments):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"there is no module {name}", hint="name it as for `python -m`")
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # In `module`, which stays.


def script_runner(script: str | None, module: str | None, arguments: Sequence[str]) -> Callable[[], None]:
    """Return a function that runs a script, or a module.  Raises LoadError if there is no such file."""
    if module:
        return partial(run_module, module, arguments)
    assert script is not None
    if not os.path.isfile(script):
        raise LoadError(f"there is no file {script}", hint=f"searched {os.getcwd()}")
    return partial(run_script, script, arguments)


_of_last_script: list[Any] = []
"""The module, standard output and standard error of the last script, which live as long as the process."""


def last_script_as_main() -> None:
    """Let the last script be `__main__` and have its streams until Python ends its objects."""
    if _of_last_script:
        sys.modules["__main__"], *streams = _of_last_script
        if streams:  # There are none if the script did not begin.
            sys.stdout, sys.stderr = streams
        _of_last_script.clear()


@contextmanager
def _as_main(module: types.ModuleType, file: str, arguments: Sequence[str]) -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, sys.path[:]
    _of_last_script[:] = [module]
    sys.modules["__main__"] = module
    sys.argv = [file, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(file).resolve().parent)
    for name in _hidden_modules(sys.path[0]):
        Screen().note(
            f"{os.path.join(short_path(sys.path[0]), name)} is not imported: nncdbg has imported another "
            f"module {name} before"
        )
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


def _hidden_modules(folder: str) -> list[str]:
    """Return the modules in the folder of a script that Python would import instead of loaded ones."""
    found = []
    for each in pkgutil.iter_modules([folder]):
        loaded = sys.modules.get(each.name)
        # Python itself has the frozen modules before a script begins.
        if loaded is None or getattr(loaded.__spec__, "origin", None) in (None, "built-in", "frozen"):
            continue
        if not Path(loaded.__file__ or "").resolve().is_relative_to(Path(folder).resolve()):
            found.append(each.name)
    return found


# -- the end of a script ---------------------------------------------------------------------


class ScriptInterrupted(RunError):
    """Ctrl-C has ended the script."""

    exit_code = INTERRUPTED


def run_to_end(
    target: str,
    run: Callable[[], None],
    at_exit: Callable[[NncdbgError | None], int],
    place: Callable[[], str] = str,
) -> NncdbgError | None:
    """Run the script `target` by `run`, and return its failure; None if it succeeded.

    The traceback of the script is printed.  `place` returns where the script is, for the message.  A process
    that the script forked ends here as it does under Python.

    If the script calls `os._exit`, on any thread of this process, `at_exit` is called with the failure
    instead, and the process ends with the exit code that it returns, or with that of its error.  No more
    code of the script runs.

    Standard output and error are those of the caller again, if the script has replaced or closed them.

    Raises NncdbgError if `run` does.
    """
    process = os.getpid()
    failure = None
    with _own_streams() as restore:
        try:
            with _ending_process(target, at_exit, place, restore), objects_of_script():
                run()
        except SystemExit as leaving:
            if os.getpid() != process:
                raise
            failure = _exit_failure(target, leaving.code, place())
        except NncdbgError:
            raise
        except KeyboardInterrupt:
            failure = ScriptInterrupted(_sentence(target, "was interrupted", place()))
        except Exception as error:  # noqa: BLE001  whatever the script raises
            failure = _script_failure(target, error, place())
    if os.getpid() != process:
        raise SystemExit(1 if failure is not None else 0)
    return failure


@contextmanager
def _own_streams() -> Iterator[Callable[[], None]]:
    """Restore the standard streams after the body, or when it calls the yielded function.

    The body may replace or close them.
    """
    before = sys.stdout, sys.stderr

    def restore() -> None:
        of_script = sys.stdout, sys.stderr
        for stream in of_script:
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        # A stream that is freed closes its buffer, which may be that of the stream before.
        if _of_last_script:
            _of_last_script[1:] = of_script
        sys.stdout, sys.stderr = map(writable, before, (1, 2))

    try:
        yield restore
    finally:
        restore()


@contextmanager
def _ending_process(
    target: str,
    at_exit: Callable[[NncdbgError | None], int],
    place: Callable[[], str],
    restore: Callable[[], None],
) -> Iterator[None]:
    """Call `restore` and `at_exit` before `os._exit` ends this process; it ends forked ones as usual."""
    process, leave = os.getpid(), os._exit

    def _exit(status: int) -> NoReturn:
        os._exit = leave
        if os.getpid() != process:
            leave(status)
        failure = _exit_failure(target, status, place())
        place_of_exit = place_of(user_lines(sys._getframe(1), most=1))
        restore()
        where = f" at {place_of_exit}" if place_of_exit else ""
        Screen().note(f"{target} ended the process: os._exit({status}){where}")
        code = exit_code_of(partial(at_exit, failure))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        leave(code)

    os._exit = _exit
    try:
        yield
    finally:
        os._exit = leave


def _script_failure(target: str, error: Exception, place: str) -> NncdbgError:
    """Print the traceback of a script's error, and return the error of the command."""

    def after_start(found: TracebackType | None) -> TracebackType | None:
        """Return the part of a traceback from the script's first line on."""
        start = found
        while start is not None and start.tb_frame.f_code not in (run_script.__code__, run_module.__code__):
            start = start.tb_next
        return found if start is None or start.tb_next is None else start.tb_next

    if isinstance(error, SyntaxError) and error.filename == os.path.abspath(target):
        excerpt = None
        if error.text is not None and error.lineno is not None:
            excerpt = Excerpt(error.text.rstrip("\n"), error.lineno, error.offset or 1, 1, target)
        return LoadError(f"{target} cannot be compiled: {error.msg}", excerpt=excerpt)
    without_own_frames(error, after_start)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failure:  # noqa: BLE001  whatever the script's function raises
        traceback.print_exception(failure)
        traceback.print_exception(error)
    # PyTorch's anomaly mode ends the backward pass before the gradients can be checked.
    anomaly = isinstance(error, RuntimeError) and "returned nan values in its" in str(error)
    first_line = str(error).partition("\n")[0]
    return RunError(
        f"{_sentence(target, 'failed', place)}: {type(error).__name__}: {first_line}",
        hint="run without torch.autograd.detect_anomaly: nncdbg finds the operator itself"
        if anomaly
        else None,
    )


def _exit_failure(target: str, code: str | int | None, place: str) -> NncdbgError | None:
    """Return the error of a script that exited with a code or a message; None for one that succeeded."""
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        return RunError(_sentence(target, f"exited with code {code}", place))
    return RunError(f"{_sentence(target, 'exited', place)}: {code}")


def _sentence(*parts: str) -> str:
    """Return the parts that are not empty, with spaces between them."""
    return " ".join(filter(None, parts))


# -- tracebacks without the frames of nncdbg that pass calls on ----------------------------

_OWN = f"{dirname(dirname(__file__))}/"

_HIDDEN = "__tracebackhide__"
"""A function with this local variable only passes a call of the user on, as in pytest."""


def without_own_frames(
    error: BaseException, cut: Callable[[TracebackType | None], TracebackType | None]
) -> BaseException:
    """Return an error whose traceback, and those of its causes, have no frames of nncdbg.

    `cut` selects the part of each traceback that is shown.  If nncdbg itself raises the error, its innermost
    frames remain.
    """
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _shown(cut(each.__traceback__))
        pending += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return error


def _shown(found: TracebackType | None) -> TracebackType | None:
    """Return a traceback without own frames that called code of others or are marked."""
    entries = []
    while found is not None:
        entries.append(found)
        found = found.tb_next
    shown: TracebackType | None = None
    foreign = False
    for number in range(len(entries) - 1, -1, -1):
        entry = entries[number]
        code = entry.tb_frame.f_code
        own = code.co_filename.startswith(_OWN)
        if own and (foreign or _HIDDEN in code.co_varnames):
            foreign = True
            continue
        caller = entries[number - 1].tb_frame.f_code if number else code
        if code.co_filename == operator_file and caller.co_filename.startswith(_OWN):
            foreign = True  # An operator that a dispatch mode of nncdbg calls.
            continue
        foreign = foreign or not own
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A recorded step of a script."""

    step: RecordedStep
    title: str
    notes: tuple[str, ...] = ()
    failure: NncdbgError | None = None
    """Why the script ended within the step; None if the step is complete."""


class _StepRecorded(BaseException):
    """Ends the script when the step has been recorded."""


def record_script(
    script: str, run: Callable[[], None], recorder: ScriptRecorder, use: Callable[[ScriptStep], int]
) -> int:
    """Run a script until the end of the training step of a recorder, and return `use(step)`.

    `script` is the path of the file or the name of the module that `run` runs.  If the script fails in the
    step, the step ends there; the traceback of the script is printed.  If it ends the process by `os._exit`,
    so does the step, and the process ends with the code that `use` returns.

    Raises LoadError if the script cannot be compiled, RunError if it fails or is interrupted before the step,
    and UsageError if it ends before the step.
    """
    thread = threading.get_ident()

    def recording() -> None:
        with recorder:
            run()

    def at_exit(failure: NncdbgError | None) -> int:
        if threading.get_ident() != thread:  # The step still runs.
            raise failure or recorder.missing(script)
        recorder.__exit__()
        return use(_recorded(script, recorder, failure))

    failure: NncdbgError | None = None
    with suppress(_StepRecorded):
        failure = run_to_end(script, recording, at_exit, lambda: recorder.place)
    return use(_recorded(script, recorder, failure))


def _recorded(script: str, recorder: ScriptRecorder, failure: NncdbgError | None) -> ScriptStep:
    """Return the step of a script that has ended.  Raises its failure or UsageError without a step."""
    title = recorder.title(os.path.basename(script))
    step = recorder.step
    if failure is None and not recorder.complete:
        raise recorder.missing(script)
    if step is None:
        raise failure or recorder.missing(script)
    if failure is not None:
        return ScriptStep(step, title, (f"the step is not complete: {failure.message}",), failure)
    return ScriptStep(step, title, recorder.notes)


class ScriptRecorder:
    """Records a step between its first module call, or the end of the step before, and its end.

    It is the step `number` of those that are counted, from 1.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.shown = number
        """The number of the step in messages."""
        self.ended = 0
        """The number of optimizer steps that have ended or were skipped."""
        self.step: RecordedStep | None = None
        self.complete = False
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._outermost: torch.optim.Optimizer | None = None
        """The optimizer whose step runs now; another may step inside it."""
        self._hooks = ExitStack()
        self._recording = ExitStack()
        self._without_optimizer: bool | None = None
        """Whether the script has no optimizer; None before the first backward pass."""
        self._passed = False
        """Whether a backward pass has ended, which ends the step in such a script."""
        self._calls_modules = False
        self._late = False
        self._skipped = False
        """Whether a gradient scaler skipped the recorded step."""

    def __enter__(self) -> None:
        # A recording cannot begin inside of a compiled function, such as one that calls the optimizer.
        self._hooks.enter_context(compiling_nothing())
        self.count()

    def count(self) -> None:
        """Count the steps from here on."""
        on_updates(self._hooks, self._before_step, self._after_step, self._after_skip)
        self._hooks.callback(on_backward(self._after_backward))
        self._hooks.callback(on_module_calls(self._before_module))
        if self.number == 1:
            self._hooks.callback(on_module_call(self._begin, self._thread))

    @property
    def here(self) -> bool:
        """Whether this is the thread of the recorder, and no forked process."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def __exit__(self, *_: object) -> None:
        if self._passed and self.step is not None:
            self.ended, self.complete = self.ended + 1, True
        self._recording.close()
        self._hooks.close()

    def _after_backward(self, _: Any) -> None:
        if not self.here:
            return
        if self._without_optimizer is None:
            self._without_optimizer = not live_objects(torch.optim.Optimizer)
        self._passed = self._without_optimizer
        if self._passed and not self._calls_modules:
            self._end_pass()

    def _before_module(self, module: torch.nn.Module) -> None:
        self._calls_modules = True
        if self._passed and torch.is_grad_enabled() and self.here:
            self._end_pass()

    def _end_pass(self) -> None:
        self._passed = False
        self._end_step()

    def title(self, script: str) -> str:
        """Return the title of the recorded step."""
        return f"recorded step {self.shown} of {script}"

    @property
    def place(self) -> str:
        """Where the script is, for messages."""
        if self.step is not None:
            return f"in step {self.shown}"
        return f"before step {self.shown}" + (f", after {counted(self.ended, 'step')}" if self.ended else "")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must know of the step."""
        assert self.step is not None
        if self._skipped:
            return ("the gradient scaler skipped the update of this step",)
        if self._late and "backward" not in self.step.program.graphs:
            return ("no module was called before step 1, which has only the optimizer; step 2 is whole",)
        return ()

    def _begin(self) -> None:
        if self.step is None and self.here:
            optimizers = live_objects(torch.optim.Optimizer)
            self.step = self._recording.enter_context(record(models_of(optimizers), optimizers))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.here or not self._counts(optimizer):
            return
        self._without_optimizer = self._passed = False
        if self._outermost is None:
            self._outermost = optimizer
        if self.step is None and self.ended == self.number - 1:
            self._late = True
            self._begin()

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._outermost is not optimizer or not self.here:
            return
        self._outermost = None
        self._end_step()

    def _after_skip(self, optimizer: Any) -> None:
        if not self.here or not self._counts(optimizer):
            return
        if self.step is None and self.ended == self.number - 1:
            self._begin()
        self._skipped = self.ended == self.number - 1
        self._end_step()

    def _counts(self, optimizer: Any) -> bool:
        return True

    def _end_step(self) -> None:
        self.ended += 1
        if self.ended >= self.number:
            self._recording.close()
            self.complete = True
        self._step_ended()
        if self.complete:
            raise _StepRecorded
        if self.ended == self.number - 1:
            self._begin()

    def _step_ended(self) -> None:
        """Called at the end of each step, outside of a recording."""

    def missing(self, script: str) -> NncdbgError:
        """Return the error of a script that ended before the end of the step."""
        if not self.ended:
            return UsageError(
                f"{script} ended without a step of an optimizer",
                hint="nncdbg records steps of torch.optim optimizers, or backward passes of a script without "
                "one, in the process and on the thread that it starts",
            )
        last = f" to {self.ended}" if self.ended > 1 else ""
        return UsageError(
            f"{script} ended after {counted(self.ended, 'step')}: there is no step {self.number}",
            hint=f"use --step 1{last}",
        )


def on_module_call(
    begin: Callable[[], None], thread: int | None = None, *, evaluation: bool = False
) -> Callable[[], None]:
    """Call `begin` before the first call of a module with gradients enabled; return how to give up.

    With `evaluation`, a call without gradients counts too.
    The call of a compiled function counts too.  With `thread`, calls on other threads do not count.  A weight
    that `spectral_norm` or another parametrization computes while the model is built does not count either.
    """

    def hear(called: Any, *_: Any) -> None:
        if thread not in (None, threading.get_ident()) or not (evaluation or torch.is_grad_enabled()):
            return
        running = called, *calling_modules(sys._getframe(1), traced=True)
        if any(isinstance(each, ParametrizationList) for each in running):
            return
        restore()
        begin()

    ended = on_module_calls(hear), on_compiled_call(hear, lambda *_: None)

    def restore() -> None:
        for end in ended:
            end()

    return restore
