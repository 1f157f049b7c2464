"""M12: the device of each value is known, and operands on different devices stop the statement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.execute import execute
from nncdbg.engine.backends.cupy import CuPy
from nncdbg.engine.execution.linking import Instrument
from tests.engine.backends.stand_in import StandIn

TEXT = """
graph @main(%a: f32[2,2], %b: f32[2,2]) -> (%y: f32[2,2]) {
  %h = Neg(%a)
  %y = MatMul(%h, %b)
  return %y
}
"""

INPUTS = {"a": np.ones((2, 2), np.float32), "b": np.ones((2, 2), np.float32)}


class TwoDevices(CuPy):
    """CuPy's kernels on a stand-in whose inputs are on the devices 0 and 1 in turn.

    `products` counts the executions of MatMul.
    """

    def __init__(self) -> None:
        self.space = StandIn()
        super().__init__()
        self._placed = 0

    def to_device(self, array: Any) -> Any:
        made = super().to_device(array)
        if isinstance(made, self.xp.ndarray) and made.ndim:
            made.device = SimpleNamespace(id=self._placed)
            self._placed = 1 - self._placed
        return made


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> TwoDevices:
    monkeypatch.setattr("nncdbg.engine.backends.cupy._library", StandIn)
    return TwoDevices()


def test_operands_on_two_devices_stop_before_the_kernel(
    two_devices: TwoDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M12: a two-device graph with one operand on the wrong device stops with both names."""
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), INPUTS, backend=two_devices)
    assert execute(debugger, "whatis %b").splitlines()[0] == "%b: f32[2,2] on cuda:1"
    stop = debugger.run()
    assert isinstance(stop.error, nncdbg.RunError)
    assert stop.line == 4
    assert stop.error.message == (
        "the operands of MatMul are on different devices: %h is on cuda:0, %b is on cuda:1"
    )
    assert stop.error.operands == ("%h: f32[2,2]", "%b: f32[2,2]")
    assert execute(debugger, "whatis %h").splitlines()[0] == "%h: f32[2,2] on cuda:0"


def test_operands_on_one_device_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nncdbg.engine.backends.cupy._library", StandIn)
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), INPUTS, backend="cupy")
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("backend", ["numpy", "torch", "cupy"])
def test_a_program_on_one_device_is_not_checked(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setattr("nncdbg.engine.backends.cupy._library", StandIn)
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), INPUTS, backend=backend)
    assert Instrument.DEVICES not in debugger.loaded.linker.instruments


META = """
graph @main(%x: f32[2,2], %i: i64[1], %w: f32[2,2]) -> (%y: f32[2,2]) {{
  %m = aten.empty.memory_format(size=[2,2], dtype="f32", device="meta")
  %s = aten.sum.default(%x)
  {statement}
  %y = aten.neg.default(%x)
  return %y
}}
"""


@pytest.mark.parametrize(
    ("statement", "places"),
    [
        ("%k = aten.mm.default(%m, %x)", "%m is on meta, %x is on cpu"),
        ("%k = aten.mm.default(%x, %m)", "%x is on cpu, %m is on meta"),
        ("%k = aten.add.Tensor(%w, %m)", "%w is on cpu, %m is on meta"),
        ("%k = aten.cat.default(%m, %x, n_tensors=2, dim=0)", "%m is on meta, %x is on cpu"),
        ("%k = aten.mul_.Tensor(%m, %x)", "%m is on meta, %x is on cpu"),
        ("%k = aten.add.Tensor(%m, %s)", None),
        ("%k = aten.index_select.default(%m, %i, dim=0)", "%m is on meta, %i is on cpu"),
        ("%k = aten.copy.default(%m, %x)", None),
        ("%k = aten.add.Tensor(%m, %m)", None),
    ],
)
def test_the_rules_for_devices_are_those_of_torch(statement: str, places: str | None) -> None:
    """M12: an operand on the device meta; torch itself accepts numbers of the CPU, and copies."""
    pytest.importorskip("torch", reason="needs torch")
    inputs = {"x": np.ones((2, 2), np.float32), "i": np.array([0]), "w": np.ones((2, 2), np.float32)}
    program = nncdbg.parse(META.format(statement=statement))
    debugger = nncdbg.Debugger(program, inputs, backend="torch")
    assert Instrument.DEVICES in debugger.loaded.linker.instruments
    stop = debugger.run()
    if places is None:
        assert stop.reason == "end", stop
        return
    assert stop.line == 5
    assert isinstance(stop.error, nncdbg.RunError)
    op = statement.split(" ")[2].partition("(")[0]
    assert stop.error.message == f"the operands of {op} are on different devices: {places}"


def test_a_value_without_elements_is_described() -> None:
    pytest.importorskip("torch", reason="needs torch")
    program = nncdbg.parse(META.format(statement="%k = aten.neg.default(%m)"))
    debugger = nncdbg.Debugger(program, backend="torch")
    assert debugger.run().reason == "end"
    assert execute(debugger, "whatis %k").splitlines()[0] == "%k: f32[2,2] on meta"
    with pytest.raises(nncdbg.NotComputed, match="a tensor on the device meta has no elements"):
        debugger.value("%k")
