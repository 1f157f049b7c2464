"""A corpus of whole training steps, as users write them.

`STEPS` is a tuple of `Step`.  `step.build()` returns a `Training`: `run()` executes one training step,
and `changed()` returns the tensors that it may change, by name.  Equal builds give equal bits on one thread.
A step with a `skip_reason` needs a package that is not installed.  `distributed.in_ranks` runs a step on
several ranks.
"""

from tests.torch.steps import (
    attention,
    autograd,
    classic,
    configurations,
    control,
    distributed,
    generative,
    losses,
    optimizers,
    precision,
    recurrent,
    schedules,
    weights,
    writes,
)
from tests.torch.steps.training import Step, Training

__all__ = ["STEPS", "Step", "Training"]

STEPS: tuple[Step, ...] = (
    *classic.STEPS,
    *attention.STEPS,
    *recurrent.STEPS,
    *configurations.STEPS,
    *generative.STEPS,
    *precision.STEPS,
    *optimizers.STEPS,
    *schedules.STEPS,
    *weights.STEPS,
    *autograd.STEPS,
    *writes.STEPS,
    *control.STEPS,
    *losses.STEPS,
    *distributed.STEPS,
)
