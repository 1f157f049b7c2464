"""Bugs planted in a memory plan are reported at their statement, with both sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.compilation.code import Code, last_uses
from nncdbg.engine.divergence.digest_run import digest
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.memory.reusing import Plan, by_liveness
from nncdbg.ir.kinds import CONTROL_OPS
from tests.engine.memory.differences import Difference, first_difference
from tests.engine.programs import runnable
from tests.laws import examples
from tests.presence import present

INPUTS = {"x": np.array([0.5, -1.0, 2.0], np.float32), "z": np.array([1.0, 0.0, -0.5], np.float32)}
FEW = examples(60)

BLOCKS = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %h = Add(%x, %z)
  %a = Exp(%x)
  %b = Neg(%a)
  %c = Mul(%h, %b)
  %go = Greater([1.0], 0.0)
  %k = Neg(%z)
  if %go @then {
    %p = Mul(%k, %c)
    %q = Exp(%z)
    %r = Sub(%p, %q)
    yield %r
  } else @other {
    yield %z
  } -> (%m: f32[3])
  while @w (%s: f32[3] = %m) times 3 {
    %t = Add(%s, %z)
    %u = Exp(%t)
    %v = Sub(%u, %t)
    next %s = %v
  } -> (%e: f32[3] = %s)
  %f = @layer(%e)
  %y = Add(%f, %z)
  return %y
}

graph @layer(%i: f32[3]) -> (%o: f32[3]) {
  %j = Neg(%i)
  %l = Exp(%i)
  %o = Mul(%j, %l)
  return %o
}"""


def shortened(name: str) -> Plan:
    """A plan that frees one value a statement too early."""

    def plan(code: Code, pc: int) -> Sequence[int]:
        slot = code.slot_of.get(name)
        slots = [each for each in by_liveness(code, pc) if each != slot]
        if pc < len(code.nodes) and slot in by_liveness(code, pc + 1):
            slots.append(present(slot))
        return slots

    return plan


def twice(name: str) -> Plan:
    """A plan that frees one value again one statement after its last use."""

    def plan(code: Code, pc: int) -> Sequence[int]:
        slot = code.slot_of.get(name)
        again = [present(slot)] if pc > 0 and slot in by_liveness(code, pc - 1) else []
        return [*by_liveness(code, pc), *again]

    return plan


def found(text: str, plan: Plan, **options: Any) -> Difference:
    difference = first_difference(nncdbg.parse(text), INPUTS, plan=plan, **options)
    assert difference is not None
    return difference


def stopped(text: str, plan: Plan) -> nncdbg.Stop:
    return nncdbg.Debugger(nncdbg.parse(text), INPUTS, allocator=ArenaAllocation(plan)).run()


EARLY = [
    ("h", "Mul", 5, "freed after %b = Neg (line 4)"),
    ("a", "Neg", 4, "freed after %a = Exp (line 3)"),
    ("c", "Mul", 9, "freed after %k = Neg (line 7)"),
    ("go", "if", 8, "freed after %k = Neg (line 7)"),
    ("q", "Sub", 11, "freed after %q = Exp (line 10)"),
    ("r", "yield", 12, "freed after %r = Sub (line 11)"),
    ("m", "while", 16, "freed after %m = if (line 8)"),
    ("t", "Sub", 19, "freed after %u = Exp (line 18)"),
    ("v", "next", 20, "freed after %v = Sub (line 19)"),
    ("e", "@layer", 22, "freed after %e = while (line 16)"),
    ("j", "Mul", 30, "freed after %l = Exp (line 29)"),
    ("o", "return", 31, "freed after %o = Mul (line 30)"),
    ("y", "return", 24, "freed after %y = Add (line 23)"),
]


@pytest.mark.parametrize(("name", "reader", "line", "freeing"), EARLY, ids=[case[0] for case in EARLY])
def test_a_lifetime_shortened_by_one_statement_is_reported_at_the_reader(
    name: str, reader: str, line: int, freeing: str
) -> None:
    difference = found(BLOCKS, shortened(name))
    assert difference.line == line
    assert difference.detail.startswith(f"{reader} reads %")
    assert freeing in difference.detail
    assert difference.finding is not None
    assert difference.finding.other is not None
    # Without a reference run, the arena stops at the same statement.
    stop = stopped(BLOCKS, shortened(name))
    assert (stop.reason, stop.line, stop.detail) == ("exception", line, difference.detail)
    assert stop.finding is not None
    assert stop.finding.kind == "guard"


def test_a_difference_has_the_new_owner_and_both_values() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %h = Add(%x, %z)
  %a = Neg(%z)
  %b = Exp(%x)
  %c = Mul(%a, %b)
  %y = Sub(%c, %h)
  return %y
}"""

    def early(code: Code, pc: int) -> Sequence[int]:
        slots = [slot for slot in by_liveness(code, pc) if slot != code.slot_of["h"]]
        return [*slots, code.slot_of["h"]] if pc == 1 else slots

    difference = found(text, early)
    assert difference.detail == (
        "Sub reads %h, but its memory was freed after %a = Neg (line 3) and reused by %b (Exp, line 4)"
    )
    assert (difference.op, difference.line, difference.value) == ("Sub", 6, "y")
    np.testing.assert_allclose(
        difference.expected, difference.actual + np.exp(INPUTS["x"]) - [1.5, -1, 1.5], 1e-6
    )


def test_a_difference_in_a_loop_has_the_iteration() -> None:
    visits = 0

    def early_in_the_third(code: Code, pc: int) -> Sequence[int]:
        nonlocal visits
        if "t" in code.slot_of and pc == 0:
            visits += 1
        return shortened("t")(code, pc) if visits == 3 else by_liveness(code, pc)

    difference = found(BLOCKS, early_in_the_third)
    assert (difference.line, difference.iteration) == (19, 2)


@pytest.mark.parametrize(
    ("name", "line", "detail"),
    [
        ("h", 6, "%h's memory is freed twice: after %c = Mul (line 5) and after %go = Greater (line 6)"),
        ("q", 12, "%q's memory is freed twice: after %r = Sub (line 11) and after yield (line 12)"),
        ("m", 22, "%r's memory is freed twice: after %e = while (line 16) and after %f = @layer (line 22)"),
        ("j", 31, "%j's memory is freed twice: after %o = Mul (line 30) and after return (line 31)"),
    ],
)
def test_a_double_free_is_reported_with_both_sites(name: str, line: int, detail: str) -> None:
    difference = found(BLOCKS, twice(name))
    assert (difference.line, difference.detail) == (line, detail)
    stop = stopped(BLOCKS, twice(name))
    assert (stop.reason, stop.line, stop.detail) == ("exception", line, detail)


def test_a_run_continues_after_a_finding() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(BLOCKS), INPUTS, allocator=ArenaAllocation(twice("h")))
    assert debugger.run().reason == "exception"
    assert debugger.run().reason == "end"
    debugger.restart()
    debugger.uncatch("guard")
    assert debugger.run().reason == "end"


@FEW
@given(runnable(), st.booleans())
def test_a_correct_plan_has_no_difference(text: str, poison: bool) -> None:
    assert first_difference(nncdbg.parse(text), INPUTS, poison=poison) is None


@FEW
@given(runnable(), st.data())
def test_any_shortened_lifetime_of_the_entry_graph_is_reported_at_its_last_reader(
    text: str, data: Any
) -> None:
    program = nncdbg.parse(text)
    code = nncdbg.Debugger(program, INPUTS).control.machine.frames[0].code
    names = _shortenable(code)
    assume(names)
    name = data.draw(st.sampled_from(names))
    difference = first_difference(program, INPUTS, plan=shortened(name))
    assert difference is not None
    last = last_uses(code)[code.slot_of[name]]
    assert (difference.statement.code.path, difference.statement.pc) == (("main",), last)
    assert f" reads %{name}, but its memory was freed after " in difference.detail


def _shortenable(code: Code) -> list[str]:
    """Names of op results that the entry graph itself reads last and never passes to a block or call."""
    last = last_uses(code)
    passed = {
        slot
        for pc, node in enumerate(code.nodes)
        if node.op in CONTROL_OPS or node.op.startswith("@")
        for slot in code.reads(pc)
    }
    return [
        name
        for name, slot in code.slot_of.items()
        if slot not in passed
        and 0 <= code.definition[slot] < last[slot]
        and code.nodes[code.definition[slot]].op not in CONTROL_OPS
        and not code.nodes[code.definition[slot]].op.startswith("@")
    ]


# -- bugs outside the plan ------------------------------------------------------------------------


def test_a_kernel_that_overwrites_another_value_is_reported_at_the_reader(
    declare_op: Callable[..., str],
) -> None:
    target: list[Any] = []

    def remember(xp: Any, x: Any, *, out: Any = None) -> Any:
        out = np.empty_like(x) if out is None else out
        out[...] = x
        target[:] = [out]
        return out

    def overwrite(xp: Any, x: Any, *, out: Any = None) -> Any:
        target[0][1] += 5
        out = np.empty_like(x) if out is None else out
        out[...] = x
        return out

    from nncdbg.engine.ops.types import same_as

    first = declare_op(remember, infer=same_as(0), accepts_out=True)
    second = declare_op(overwrite, infer=same_as(0), accepts_out=True)
    text = f"""graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {{
  %h = {first}(%x)
  %b = {second}(%z)
  %y = Add(%h, %b)
  return %y
}}"""
    # The results of both runs are equal, as the kernel corrupts memory in each.
    difference = found(text, by_liveness)
    assert (difference.line, difference.value) == (4, None)
    assert difference.finding is None
    assert difference.detail == "its operand %h changed after it was written"


def test_a_kernel_that_reads_reused_memory_is_reported_at_its_statement(
    declare_op: Callable[..., str],
) -> None:
    def accumulate(xp: Any, x: Any, *, out: Any = None) -> Any:
        out = np.zeros_like(x) if out is None else out
        out += x
        return out

    from nncdbg.engine.ops.types import same_as

    op = declare_op(accumulate, infer=same_as(0), accepts_out=True)
    text = f"""graph @main(%x: f32[3], %z: f32[3]) -> (%y: i32[3]) {{
  %i = Cast(%x, to=6)
  %j = Neg(%i)
  %k = Neg(%j)
  %y = {op}(%k)
  return %y
}}"""
    difference = found(text, by_liveness)
    assert (difference.line, difference.value) == (5, "y")
    assert "depends on memory that it does not own" in difference.detail


def test_a_program_that_fails_with_any_memory_is_an_error() -> None:
    text = "graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[2]) {\n  %y = Reshape(%x, [2])\n  return %y\n}"
    with pytest.raises(nncdbg.RunError, match="fails with any memory"):
        first_difference(nncdbg.parse(text), INPUTS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array([0.0], np.float32), np.array([-0.0], np.float32), False),
        (np.array([0x7FC00000], np.uint32).view("f4"), np.array([0x7FC00001], np.uint32).view("f4"), True),
        (np.array([np.nan, 1], np.float32), np.array([np.nan, 2], np.float32), False),
        (np.array([1], np.float32), np.array([1], np.float64), False),
        (np.array([1, 2], np.int8), np.array([1, 2], np.int8), True),
        (np.array(["a", None], object), np.array(["a", None], object), True),
        ([np.array([1], np.int8)], [np.array([1], np.int8)], True),
        ([np.array([1], np.int8)], [np.array([2], np.int8)], False),
        (None, None, True),
        (None, np.int8(0), False),
    ],
)
def test_a_digest_depends_on_all_bits_except_nan_payloads(one: Any, other: Any, same: bool) -> None:
    assert (digest(one) == digest(other)) is same


def test_blocks_of_the_arena_are_aligned() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(BLOCKS), INPUTS, allocator="arena")
    while not debugger.control.machine.ended:
        frame, pc = debugger.control.machine.frames[-1], debugger.control.machine.frames[-1].pc
        is_op = frame.code.instructions[pc][0] is not None
        debugger.step_into()
        if is_op:
            (result,) = frame.code.results_of(pc, frame.slots)
            assert address_of(result) % 64 == 0
