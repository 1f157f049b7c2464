"""What each kind of finding and each cause means, for those who see it for the first time.

What a gate means stands beside the gate; here is what else a finding can be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nncdbg.nan_watch.gates import KINDS, MEASURES, RANGE

_NAMES = {
    "nan": "NaN",
    "inf": "Inf",
    "uninitialized": "uninitialized memory",
    "integer": "an integer fault",
    "guard": "a write outside of a buffer",
    "reuse": "wrong reuse of memory",
    "state": "state kept between runs",
    "plan": "a wrong plan of memory",
    RANGE: "a value out of range",
}
"""Kinds whose name in a sentence is another than their own."""

_MEANINGS = {
    "reuse": "memory was reused or overwritten while its value was still needed",
    "state": "a kernel gives a different result when it runs again",
    "plan": "the memory plan gives two live values the same bytes, or too few bytes",
    RANGE: "the expression of the gate is true",
}
"""What the kinds mean that are no plain gates."""

CAUSES = {
    "log of zero": "Use Log(Max(%p, 1e-7)), -Softplus(-x) for Log(Sigmoid), or LogSoftmax for Log(Softmax).",
    "log of a negative number": "Find why it is negative: it should be a probability or a length.",
    "division by zero": "Add an epsilon to the divisor, or choose another branch with Where before dividing.",
    "zero divided by zero": "Add an epsilon to the divisor; a mean of no elements is the usual reason.",
    "infinity divided by infinity": "Find where the infinities come from, and scale before that.",
    "square root of a negative number": "A variance is the mean of (x - mean)^2: E[x^2] - E[x]^2 cancels.",
    "power of a negative number": "A negative base needs a whole exponent: clip it at 0.",
    "power of zero": "Zero to a negative power is infinite: add an epsilon to the base.",
    "overflow of the exponential": "Subtract the maximum first, as Softmax and LogSumExp do.",
    "overflow": "Scale the operands, or keep this op in a wider element type.",
    "infinity minus infinity": "Find where the infinities come from; a mask applied twice is one reason.",
    "zero times infinity": "A masked value is infinite: mask before the log or the division, not after.",
    "outside of the domain": "The function is not defined there: clip the operand to its domain.",
    "empty reduction": "Nothing was reduced: an axis has size 0. Check the batch size and slices.",
    "fully masked row": "Every element of a row is masked: leave one, or give such rows another value.",
    "zero variance": "A row or a channel is constant and epsilon is 0: give the normalization an epsilon.",
    "uninitialized read": "A kernel or the memory plan left elements uninitialized.",
    "bad input": "The data already had NaN or Inf: check the pipeline that loads it.",
    "bad parameter": "The model was saved with it: check the training or the conversion.",
    "cast out of range": "The value does not fit the target type: scale it, or cast to a wider type.",
    "integer division by zero": "Make the divisor at least 1, or choose another value with Where.",
    "scale of zero": "Give each scale a minimum above 0.",
    "kernel": "The kernel's result differs from the op's definition: report it to its developers.",
    "wrong reuse": "Free the first value only after its last reader, or give the second one different bytes.",
    "partial write": "The kernel has to write every element of its result.",
    "write out of bounds": "The kernel has to write to the elements of its result only.",
    "write into foreign memory": "A kernel writes to its own result only: copy the operand.",
    "kept reference": "Do not keep operands or buffers between calls.",
    "read before write": "The kernel has to write an element of its result before it reads it.",
    "state between runs": "Keep no state between calls.",
    "wrong plan": "Keep each value live until its last reader, and round sizes up.",
    "unknown": "No rule matches: inspect the operands at that statement.",
}
"""Cause to its usual cure: every name of `diagnosis.cause.NAMES` and of `memory_words.CAUSES`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`id` such as `nan/log-of-zero`; `title` a few words; `help` what it means and what to do."""

    id: str
    title: str
    help: str


def rule_of(kind: str, cause: str) -> Rule:
    """The rule of a kind of finding with its cause ("" for none)."""
    name, meaning = kind_words(kind)
    if not cause or cause == kind:
        return Rule(_slug(kind), name, meaning)
    cure = CAUSES.get(cause)
    return Rule(f"{_slug(kind)}/{_slug(cause)}", f"{name}: {cause}", f"{meaning} {cure}" if cure else meaning)


def kind_words(kind: str) -> tuple[str, str]:
    """(its name in a sentence, what it means) of a kind of finding."""
    name = _NAMES.get(kind, kind)
    measure = MEASURES.get(kind)
    if measure is not None:
        return name, ". ".join(filter(None, (_capital(measure.meaning), _capital(measure.hint)))) + "."
    meaning = KINDS.get(kind) or _MEANINGS.get(kind)
    return name, f"{_capital(meaning)}." if meaning else f"The gate {kind} tripped."


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "finding"
