"""The debugger for training in PyTorch (``pip install nncdbg[torch]``).

with nncdbg.torch.record(model, optimizer) as step:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()

debugger = nncdbg.Debugger(step)
step.save("step1")                      # nncdbg step1

with nncdbg.torch.watch(model, optimizer):
    train()                             # raises NaNFound, with the op where the first NaN originates
"""

import random
from importlib import import_module
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.text.torch_names import installed


def check_torch() -> None:
    """Raise UsageError without torch, or with a version that is not supported."""
    if not installed():
        raise UsageError(
            "nncdbg.torch needs the package torch, which is not installed", hint="pip install nncdbg[torch]"
        )
    from nncdbg.engine.ops.aten.versions import check_version

    check_version()


check_torch()

from nncdbg.torch.capture import capture  # noqa: E402
from nncdbg.torch.compiled import compiled_values  # noqa: E402
from nncdbg.torch.recorded_step import RecordedStep  # noqa: E402
from nncdbg.torch.step_function import step  # noqa: E402
from nncdbg.torch.step_recording import record  # noqa: E402

_LATE = {
    "debug": "nncdbg.script_breakpoint",
    "watch": "nncdbg.nan_watch.training.watching",
    **dict.fromkeys(("NaNFound", "TrainingReport"), "nncdbg.nan_watch.training.records"),
    "FlightRecorder": "nncdbg.torch.journal.flight_recorder",
    "SpikeRule": "nncdbg.torch.journal.tracking",
    "flight_recorder": "nncdbg.torch.journal.flight_recorder",
    "resume": "nncdbg.torch.journal.resuming",
    "track": "nncdbg.torch.journal.tracking",
    "track_loader": "nncdbg.torch.journal.tracked_loader",
    "record_accesses": "nncdbg.torch.access_recording",
}
"""Names of packages above this one, of the journal and for schedules: imported on first use."""

_CALLBACKS = {
    "LightningCallback": "nncdbg.nan_watch.training.lightning_callback",
    "LightningRecorder": "nncdbg.torch.journal.lightning_recorder",
    "TrainerCallback": "nncdbg.nan_watch.training.trainer_callback",
    "TrainerRecorder": "nncdbg.torch.journal.trainer_recorder",
}
"""Names that need other libraries, so `from nncdbg.torch import *` leaves them out."""


def __getattr__(name: str) -> Any:
    module = _LATE.get(name) or _CALLBACKS.get(name)
    if module is None:
        raise AttributeError(f"module 'nncdbg.torch' has no attribute {name!r}")
    # A library that is imported here, rich, draws a number: a seeded training must not see that.
    state = random.getstate()
    try:
        return getattr(import_module(module), name)
    finally:
        random.setstate(state)


__all__ = [*_LATE, "RecordedStep", "capture", "compiled_values", "record", "step"]
