"""The meaning of each kind of finding and each cause, for first-time readers.

Gates describe themselves; this file describes the other kinds of findings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nncdbg.engine.ops import contracts
from nncdbg.nan_watch.measuring.gates import KINDS, MEASURES, RANGE

_NAMES = {
    "nan": "NaN",
    "inf": "Inf",
    "uninitialized": "uninitialized memory",
    "integer": "an integer fault",
    "contract": "a broken op contract",
    "guard": "a write outside a buffer",
    "state-reset": "reset of an optimizer's state",
    "reuse": "wrong reuse of memory",
    "state": "state kept between runs",
    "plan": "an incorrect memory plan",
    "race": "a race",
    "schedule": "a wrong schedule",
    "replica": "a replica that differs",
    RANGE: "a value out of range",
}
"""Names of kinds in sentences, where they differ from the kind."""

_MEANINGS = {
    "reuse": "memory was reused or overwritten while its value was still needed",
    "state": "a kernel computes a different result when it runs again",
    "plan": "the memory plan assigns the same bytes to two live values, or too few bytes to a value",
    "schedule": "an event or a wait of the schedule is missing or wrong",
    "replica": "one call of a graph computes other values than the other calls",
    RANGE: "the expression of the gate is true",
}
"""Meanings of the kinds that are not gates."""

CAUSES = {
    "log of zero": "Use Log(Max(%p, 1e-7)), -Softplus(-x) for Log(Sigmoid), or LogSoftmax for Log(Softmax).",
    "log of a negative number": "Check why the operand is negative: it should be a probability or a length.",
    "division by zero": "Add an epsilon to the divisor, or choose another branch with Where before dividing.",
    "zero divided by zero": "Add an epsilon to the divisor. The usual cause is the mean of zero elements.",
    "infinity divided by infinity": "Find the origin of the infinities, and scale the values before it.",
    "square root of a negative number": "Compute variance as mean((x - mean)^2): E[x^2] - E[x]^2 cancels.",
    "power of a negative number": "Clip the base at 0: a negative base needs an integer exponent.",
    "power of zero": "Add an epsilon to the base: zero to a negative power is infinite.",
    "overflow of the exponential": "Subtract the maximum first, as Softmax and LogSumExp do.",
    "overflow": "Scale the operands, or keep this op in a wider element type.",
    "infinity minus infinity": "Find the origin of the infinities, such as a mask that is applied twice.",
    "zero times infinity": "Mask before the log or the division: a masked value is infinite.",
    "outside of the domain": "Clip the operand to the domain of the function.",
    "empty reduction": "Check the batch size and slices: a reduced axis has size 0.",
    "fully masked row": "Unmask one element of each row, or set another value for fully masked rows.",
    "zero variance": "Add an epsilon to the normalization: a row or channel is constant and epsilon is 0.",
    "uninitialized read": "Check the kernel and the memory plan: some elements were never written.",
    "bad input": "Check the pipeline that loads the data: the input already had NaN or Inf.",
    "bad parameter": "Check the training or the conversion: the model file contains the NaN or Inf.",
    "cast out of range": "Scale the value, or cast to a wider type: it is out of range for the target type.",
    "integer division by zero": "Make the divisor at least 1, or choose another value with Where.",
    "scale of zero": "Clip each scale to a minimum above 0.",
    **contracts.CAUSES,
    "kernel": "Report the kernel to its developers: its result differs from the op's definition.",
    "wrong reuse": "Free the first value after its last reader, or place the second value at other bytes.",
    "overwritten state": "Read the state before its update, or make a copy that the update does not change.",
    "partial write": "Write every element of the result in the kernel.",
    "write out of bounds": "Write only to the elements of the result in the kernel.",
    "write into foreign memory": "Copy the operand: a kernel may write only to its own result.",
    "kept reference": "Do not keep operands or buffers between calls.",
    "read before write": "Write each element of the result before reading it.",
    "state between runs": "Do not keep state between calls.",
    "wrong plan": "Keep each value live until its last reader, and round sizes up.",
    "unordered accesses": "Record an event after the first statement, and wait for it before the second.",
    "unordered reuse": "Wait for the last reader of the old value before the new one is written.",
    "unordered free": "Wait for the last reader of the value before its memory is freed.",
    "shared workspace": "Give each stream its own workspace, or order the two statements.",
    "read by the host": "Let the host wait for an event of the writer before it reads the value.",
    "wait without record": "Record the event before the wait, in the order in which the host issues them.",
    "dead-lock": "Move the record of the event before the wait.",
    "lost record": "Use one event for each record, or wait for the first before the second.",
    "unsynchronized start": "Let each stream of a graph wait for its beginning.",
    "unsynchronized end": "Let the end of a graph wait for each of its streams.",
    "use after free": "Free the value after its last reader.",
    "double free": "Free each value once, after its last reader.",
    "operands of two devices": "Copy the operand to the device of the others, with a statement of its own.",
    "overwritten value": "Place the two values at different bytes: both are still in use.",
    "too many launches": "Let the host wait for an event of the stream from time to time.",
    "unbound stream": "Write the binding wherever the graph uses the logical stream.",
    "order-dependent value": "Order the two statements by an event: the schedule allows both orders.",
    "hidden state": "Do not keep state in the kernel: its result depends on the calls before.",
    "replicas differ": "Compare the operands of the statement in both calls, and the order of its launches.",
    "unknown": "Inspect the operands at that statement: no rule matches.",
}
"""Fix per cause: those of `ops.causes.NAMES`, and of `CAUSES` in `ops.contracts` and `memory.comparison`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`id` such as `nan/log-of-zero`; `title` a few words; `help` the meaning and the fix."""

    id: str
    title: str
    help: str


def rule_of(kind: str, cause: str) -> Rule:
    """Return the rule of a kind of finding with its cause ("" for none)."""
    name, meaning = kind_words(kind)
    if not cause or cause == kind:
        return Rule(_slug(kind), name, meaning)
    cure = CAUSES.get(cause)
    return Rule(f"{_slug(kind)}/{_slug(cause)}", f"{name}: {cause}", f"{meaning} {cure}" if cure else meaning)


def kind_words(kind: str) -> tuple[str, str]:
    """Return (name in a sentence, meaning) of a kind of finding."""
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
