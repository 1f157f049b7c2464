"""The linker: the order of instruments and of covers, and when it links again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import Call, Kernels
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.linking import Allocation, Binding, Cover, Execute, Instrument, Linker, Wrap

PROGRAM = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y: f32[2] = Relu(%x)
  return %y
}
"""


def instrument(names: list[str], name: str) -> Wrap:
    """Return an instrument that appends `name` to `names` when a statement runs, after its kernel."""

    def wrap(binding: Binding, execute: Execute) -> Execute:
        def run(*inputs: Any) -> Any:
            result = execute(*inputs)
            names.append(name)
            return result

        return run

    return wrap


def linker_of(covers: list[Cover] | None = None) -> Linker:
    """Return a linker with the one block of PROGRAM."""
    code = Debugger(nncdbg.parse(PROGRAM), {"x": np.ones(2, np.float32)}).loaded.codes[0]
    linker = Linker(NumPy(), Allocation(), lambda path, pc, seed: None, covers or [])
    linker.link(code)
    return linker


def run(linker: Linker) -> Any:
    """Run the first statement."""
    execute = linker.codes[0].instructions[0][0]
    assert execute is not None
    return execute(np.array([-1, 2], np.float32))


def test_instruments_wrap_in_their_order_however_they_are_added() -> None:
    names: list[str] = []
    linker = linker_of()
    for each in reversed(Instrument):
        linker.instrument({each: instrument(names, each.name)})
    run(linker)
    assert names == [each.name for each in Instrument]


def test_a_removed_instrument_no_longer_runs() -> None:
    names: list[str] = []
    linker = linker_of()
    linker.instrument({each: instrument(names, each.name) for each in Instrument})
    linker.instrument({Instrument.TRACKER: None, Instrument.FINDINGS: None})
    run(linker)
    removed = (Instrument.TRACKER, Instrument.FINDINGS)
    assert names == [each.name for each in Instrument if each not in removed]


def test_a_change_of_several_instruments_links_once_and_no_change_does_not_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linker = linker_of()
    linked: list[Linker] = []
    monkeypatch.setattr(Linker, "link_again", lambda self: linked.append(self))
    wraps: dict[Instrument, Wrap | None] = {each: instrument([], "") for each in Instrument}
    linker.instrument(wraps)
    assert len(linked) == 1
    linker.instrument(wraps)
    linker.instrument({Instrument.TRACKER: wraps[Instrument.TRACKER]})
    assert len(linked) == 1
    linker.instrument(dict.fromkeys(Instrument))
    assert len(linked) == 2
    linker.instrument(dict.fromkeys(Instrument))
    assert len(linked) == 2


def test_covers_replace_kernels_from_the_innermost_to_the_outermost() -> None:
    def adding(number: float) -> Cover:
        def cover(kernels: Kernels, call: Call, statement: Statement) -> Kernels:
            assert (call.node.op, statement.pc) == ("Relu", 0)
            return Kernels(lambda *inputs: kernels.run(*inputs) * 2 + number)

        return cover

    assert run(linker_of([adding(1), adding(10)])).tolist() == [12, 20]
