"""The debugger for training in PyTorch (``pip install nncdbg[torch]``).

with nncdbg.torch.record(model, optimizer) as step:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()

debugger = nncdbg.Debugger(step)
step.save("step1")                      # nncdbg step1
"""

from nncdbg.torch.installation import check_torch

check_torch()

from nncdbg.torch.step import RecordedStep, record  # noqa: E402

__all__ = ["RecordedStep", "record"]
