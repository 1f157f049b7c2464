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

from importlib import import_module
from typing import Any

from nncdbg.torch.installation import check_torch

check_torch()

from nncdbg.torch.guard import step  # noqa: E402
from nncdbg.torch.recorded_step import RecordedStep, record  # noqa: E402

_IN_WATCH = {
    "watch": "nncdbg.nan_watch.training.watching",
    **dict.fromkeys(("NaNFound", "TrainingReport"), "nncdbg.nan_watch.training.records"),
}
"""Names of the watch, which is above this package: imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _IN_WATCH:
        raise AttributeError(f"module 'nncdbg.torch' has no attribute {name!r}")
    return getattr(import_module(_IN_WATCH[name]), name)


__all__ = [*_IN_WATCH, "RecordedStep", "record", "step"]
