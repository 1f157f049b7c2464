"""Causes in PyTorch's losses and in weight_norm: no elements, no targets, no alignment, a norm of 0."""

from __future__ import annotations

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause, reductions, softmax
from nncdbg.engine.ops.causes.places import spelled
from nncdbg.engine.ops.causes.torch_operands import as_op
from nncdbg.engine.text.counting import counted
from nncdbg.ir.records import Array

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def mean_of_losses(birth: Birth) -> Cause | None:
    return _of_no_elements(birth, "the mean")


def median(birth: Birth) -> Cause | None:
    return _of_no_elements(birth, "the median")


def _of_no_elements(birth: Birth, what: str) -> Cause | None:
    x = birth.inputs[0]
    if x.size or birth.kind != "nan":
        return None
    return reductions.empty_reduction(birth, 0, range(x.ndim), what)


def likelihood(birth: Birth) -> Cause | None:
    if birth.index:
        return None
    scores, targets = birth.inputs[:2]
    single = scores.ndim == 1
    given = [scores[None], targets[None]] if single else [scores, targets]
    return softmax.negative_log_likelihood(
        as_op(
            birth,
            "NegativeLogLikelihoodLoss",
            [*given, *birth.inputs[2:3]],
            reduction=_REDUCTIONS[birth.attributes["reduction"]],
            ignore_index=birth.attributes["ignore_index"],
        )
    )


def likelihood_backward(birth: Birth) -> Cause | None:
    """Return the cause for a gradient that is divided by a total weight of 0."""
    total = birth.inputs[-1]
    if total.size != 1 or total.item() != 0:
        return None
    evidence = (
        f"the gradient is divided by {spelled(birth, len(birth.inputs) - 1)}, the sum of the weights: 0"
    )
    return Cause("zero divided by zero", evidence, "")


def alignment(birth: Birth) -> Cause | None:
    """CTC: a transcript that needs more time steps than its audio has no alignment.

    Equal labels in a row need a blank between them.
    """
    if birth.index or len(birth.inputs) < 2:
        return None
    lengths = [birth.attributes.get(key) for key in ("input_lengths", "target_lengths")]
    steps, labels = (
        np.asarray(birth.inputs[2 + i] if given is None else given).reshape(-1)
        for i, given in enumerate(lengths)
    )
    repeats = _repeats(birth.inputs[1], labels)
    longer = labels + repeats > steps
    if not longer.any():
        return None
    first = int(longer.argmax())
    evidence = f"element {first} of the batch has {counted(int(labels[first]), 'label')}"
    if repeats[first]:
        evidence += f" and {counted(int(repeats[first]), 'blank')} between equal ones"
    evidence += f" for {counted(int(steps[first]), 'time step')}"
    if longer.size > 1:
        evidence += f", as {int(longer.sum())} of {longer.size} elements do"
    hint = "remove such elements from the batch, or use zero_infinity=True"
    return Cause("bad batch", f"{evidence}: no alignment exists", hint)


def _repeats(targets: Array, lengths: Array) -> Array:
    """Return the number of labels of each element that are equal to the label before."""
    if targets.ndim == 1:
        each = np.split(targets, np.cumsum(lengths)[:-1])
    else:
        each = [row[:length] for row, length in zip(targets, lengths, strict=True)]
    return np.array([int(np.count_nonzero(row[1:] == row[:-1])) for row in each])


def weighted_norm(birth: Birth) -> Cause | None:
    """`_weight_norm_interface`: v * g / norm(v), with one norm per index of `dim`."""
    return _of_norms(birth, birth.inputs[0], 0) if birth.kind == "nan" and birth.index == 0 else None


def weighted_norm_backward(birth: Birth) -> Cause | None:
    """The same for the gradients; the operands are the gradient, v, g and the norms."""
    return _of_norms(birth, birth.inputs[1], 1) if birth.kind == "nan" else None


def _of_norms(birth: Birth, direction: Array, number: int) -> Cause | None:
    axis = (birth.attributes.get("dim") or 0) % direction.ndim
    others = tuple(i for i in range(direction.ndim) if i != axis)
    zero = ~np.any(direction != 0, axis=others)
    if not zero.any():
        return None
    first = int(zero.argmax())
    place = ", ".join(str(first) if i == axis else ":" for i in range(direction.ndim))
    name = spelled(birth, number)
    evidence = (
        f"weight_norm divides {name}[{place}] by its norm, which is 0; {int(zero.sum())} of {zero.size} "
        f"norms {'is' if zero.sum() == 1 else 'are'} 0"
    )
    return Cause("zero divided by zero", evidence, "")
