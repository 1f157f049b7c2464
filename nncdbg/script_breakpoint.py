"""`nncdbg.breakpoint()` and `nncdbg.torch.debug()`: stop in the attached editor, else open the prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING

from nncdbg.dap_server.attach import calls
from nncdbg.engine.stopping.supervision import PROCESS
from nncdbg.errors import UsageError
from nncdbg.process.ranks import choose_rank

if TYPE_CHECKING:
    from nncdbg.torch.live.training import LiveTraining


def breakpoint() -> None:  # noqa: A001  as debugpy has it
    """Stop before the next statement of a graph that this thread runs.

    In the forward pass of a PyTorch module, and in a script under `nncdbg debug`, stop after the next
    operator.  Without `listen`, the prompt opens there, as pdb's does; `continue` returns to the script.
    After `listen`, the editor stops there; without an attached editor nothing happens.  In a kernel, the next
    statement is the one after the kernel's own.  ``PYTHONBREAKPOINT=nncdbg.breakpoint`` makes Python's
    own `breakpoint()` call this function.

    Under torchrun, the prompt opens on one rank: that of `nncdbg debug --rank` or ``NNCDBG_RANK``, or else
    rank 0.  Other ranks run on.

    Raises UsageError if the prompt cannot read standard input, and for a rank that does not exist.
    """
    if calls.attachment() is None and not choose_rank():
        return
    caller = sys._getframe(1)
    place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    words = f"nncdbg.breakpoint() at {place}"
    if PROCESS.moving() is None and _stop_training(words, caller):
        return
    if calls.stop_here(words):
        return
    from nncdbg.terminal.script_prompt import break_here

    break_here(words)


def _stop_training(words: str, frame: FrameType) -> bool:
    """Stop the training of this thread, if there is one; return whether there is."""
    if "torch" not in sys.modules:
        return False
    from nncdbg.torch.live.training import active

    training = active()
    if training is not None:
        training.pause(words)
        return True
    attachment = calls.attachment()
    if not _in_forward(frame) or (attachment is not None and attachment.session is None):
        return False
    training = debug().training
    assert training is not None  # `breakpoint` returns before on other ranks.
    training.pause(words)
    return True


def _in_forward(frame: FrameType | None) -> bool:
    """Return whether a module of torch calls the user's code now."""
    from nncdbg.engine.ops.aten.internals import module_call

    while frame is not None:
        if frame.f_code is module_call:
            return True
        frame = frame.f_back
    return False


class LiveDebugging:
    """A training under the live debugger, until `stop` or the end of a `with` block."""

    def __init__(self, training: LiveTraining | None) -> None:
        self.training = training
        """None on a rank that runs without stops."""

    def __enter__(self) -> LiveDebugging:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Run the rest of the script without the live debugger."""
        if self.training is not None:
            self.training.__exit__()


def debug(
    *places: str, catch: Iterable[str] = (), history: bool = False, rank: int | None = None
) -> LiveDebugging:
    """Run the rest of the training of this thread under the live debugger.

    `places` are breakpoints as `break` takes them: ``"aten.softmax if max($out) > 1e4"``, ``"@encoder.out"``,
    ``"%fc.weight.grad"``, ``"train.py:27"``.  `catch` has kinds: ``("nan", "inf")``.  Without both, the
    next operator is a stop.  With `history`, each step is recorded as it runs, and a stop can step back to
    its start.  After `nncdbg.listen`, stops are shown in the editor, otherwise the prompt opens.

    Under torchrun, only `rank` stops, without it that of `nncdbg debug --rank` or ``NNCDBG_RANK``, or else
    rank 0.  A rank that called `nncdbg.listen` stops also without being named.

    Raises UsageError for places and kinds that do not exist, if the training is debugged already, if a
    dispatch mode is active, if the prompt cannot read standard input, and for a rank that does not exist.
    """
    from nncdbg.engine.ops.aten.internals import dispatch_modes
    from nncdbg.torch.live.breakpoints import parse_breakpoint

    if (rank is not None or calls.attachment() is None) and not choose_rank(rank):
        return LiveDebugging(None)
    if dispatch_modes():
        raise UsageError(
            "the live debugger cannot start inside a dispatch mode of torch",
            hint="call nncdbg.torch.debug before the mode is entered, or run `nncdbg debug SCRIPT`",
        )
    found = [parse_breakpoint(number, place) for number, place in enumerate(places, 1)]
    training = _training(history)
    for each in found:
        each.number = training.last_number + 1
        training.add(each)
    kinds = [catch] if isinstance(catch, str) else [*catch]
    training.catch(dict.fromkeys(kinds))
    training.__enter__()
    if not found and not kinds and calls.attachment() is None:
        training.pause("nncdbg.torch.debug()")
    return LiveDebugging(training)


def _training(history: bool) -> LiveTraining:
    """Return a training with stops in the editor, or at a prompt."""
    attachment = calls.attachment()
    if attachment is not None:
        from nncdbg.dap_server.attach.live import AttachedTraining

        return AttachedTraining(attachment, history=history).training
    from nncdbg.presentation.screen import Screen
    from nncdbg.terminal.live_prompt import LivePrompt
    from nncdbg.terminal.script_prompt import check_input

    check_input("nncdbg.torch.debug()")
    title = os.path.basename(sys.argv[0]) if sys.argv else "the script"
    return LivePrompt(title, Screen(), history=history).training
