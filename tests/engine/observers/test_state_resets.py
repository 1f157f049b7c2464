"""P6: an update that sets a moment or step counter of an optimizer back to 0 is a finding, `state-reset`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.code import EVICTED
from nncdbg.engine.observers.statement_checks import old_slot
from nncdbg.errors import UsageError
from tests.presence import present

TEXT = """opset 18
state %w: f64[3] = [1, 2, 3]
state %m: f64[3] = zeros for %w
state %v: f64[3] = zeros for %w
state %step: i64[] = 0
state %sum: f64[3] = zeros for %w

graph @train(%x: f64[3]) -> (%l: f64[]) {
  %p = Mul(%x, %w)
  %l: f64[] = ReduceSum(%p, keepdims=0)
  %w.1, %m.1, %v.1, %step.1 = nncdbg.Adam(%w, %x, %m, %v, %step, lr=0.1)
  %none = Sub(%sum, %sum)
  update %w = %w.1, %m = %m.1, %v = %v.1, %step = %step.1, %sum = %none
  return %l
}

run @train for %x
"""
"""A state that is no state of an optimizer, `%sum`, may become 0."""

X = np.arange(18.0).reshape(6, 3) + 1


def resetting(what: str) -> str:
    """The program with a reset of some states at the fourth step."""
    lines = ["  %three: i64[] = 3", "  %fourth = Equal(%step, %three)"]
    updates = []
    for name in what.split():
        lines += [f"  %{name}.zero = Sub(%{name}.1, %{name}.1)"]
        lines += [f"  %{name}.2 = Where(%fourth, %{name}.zero, %{name}.1)"]
        updates.append((f"%{name} = %{name}.1", f"%{name} = %{name}.2"))
    text = TEXT.replace("  update", "\n".join(lines) + "\n  update")
    for old, new in updates:
        text = text.replace(old, new)
    return text


def opened(text: str, x: Any = X, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), {"x": x}, **options)


@pytest.mark.parametrize("allocator", ["debug", "plain"])
@pytest.mark.parametrize(
    ("states", "detail"),
    [
        ("m", "the optimizer's state %m is reset: all of its 3 elements become 0"),
        ("v", "the optimizer's state %v is reset: all of its 3 elements become 0"),
        ("step", "the optimizer's state %step is reset: it becomes 0"),
        ("m v step", "the optimizer's state %m is reset: all of its 3 elements become 0"),
    ],
)
def test_a_reset_stops_at_its_update(states: str, detail: str, allocator: str) -> None:
    """P6: the stop is at the update of the step that resets, with the name of the state."""
    debugger = opened(resetting(states), allocator=allocator)
    debugger.catch("state-reset")
    stop = debugger.run()
    assert stop.reason == "exception"
    assert present(stop.finding).kind == "state-reset"
    assert present(stop.node).op == "update"
    assert stop.detail == detail
    assert debugger.evaluate("$step") == 3


def test_a_training_without_a_reset_does_not_stop() -> None:
    """First values of 0, gradients of 0, and other states that become 0 are no resets."""
    x = X.copy()
    x[:2] = 0
    debugger = opened(TEXT, x)
    debugger.catch("state-reset")
    assert debugger.run().reason == "end"


def test_it_is_caught_only_on_request_and_with_its_condition() -> None:
    debugger = opened(resetting("m"))
    assert debugger.run().reason == "end"
    debugger = opened(resetting("m"))
    debugger.catch("state-reset", when="$step > 10")
    assert debugger.run().reason == "end"


def test_reverse_continue_finds_the_reset() -> None:
    debugger = opened(resetting("m"))
    debugger.run()
    debugger.catch("state-reset")
    stop = debugger.reverse_continue()
    assert (stop.reason, present(stop.finding).kind) == ("exception", "state-reset")
    assert debugger.evaluate("$step") == 3


def test_the_old_value_is_computed_again_if_it_was_dropped() -> None:
    """A history of no bytes keeps only what later statements read, and not the value of the first update."""
    size = 200_000
    text = TEXT.replace("[3]", f"[{size}]").replace("[1, 2, 3]", "data").replace("%sum = %none", "%sum = %x")
    text = text.replace("= data", f"= RandomNormal(dtype=11, shape=[{size}])")
    text = text.replace("  return", "  %zeros = Sub(%sum, %sum)\n  update %m = %zeros\n  return")
    debugger = opened(text, np.ones((3, size)), history=0)
    debugger.catch("state-reset")
    stop = debugger.run()
    assert stop.reason == "exception"
    frame = debugger.frames[0]
    slot = present(old_slot(frame.code, frame.pc - 1, 0))
    assert frame.slots[slot] is EVICTED
    assert debugger.evaluate("$step") == 0


@pytest.mark.parametrize("allocator", ["arena", "poison"])
def test_allocators_that_reuse_memory_say_that_they_cannot_find_it(allocator: str) -> None:
    with pytest.raises(UsageError, match="reuses the memory of old states"):
        opened(TEXT, allocator=allocator).catch("state-reset")
