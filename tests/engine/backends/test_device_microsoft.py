"""Formulas of onnxruntime's ops on a device, with each statement placed separately."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import cupy as device
from tests.engine.backends.stand_in import StandIn
from tests.engine.ops.against_runtime import Row, compare, fed, program_of
from tests.engine.ops.test_microsoft_ops import ROWS

ONE_PER_OP = {row.op: row for row in ROWS}


@pytest.mark.parametrize("row", ONE_PER_OP.values(), ids=ONE_PER_OP.keys())
def test_op_on_a_device_equals_numpy(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    program, results = program_of(row), []
    for backend in ("cupy", "numpy"):
        debugger = nncdbg.Debugger(
            program, fed(row), backend=backend, allocator="plain", statistics=False, fallback=True
        )
        stop = debugger.run()
        assert stop.reason == "end", stop.detail
        assert debugger.outputs is not None
        results.append([np.asarray(value) for value in debugger.outputs.values()])
    on_device, on_host = results
    compare(on_device, on_host, 1e-5, 1e-6)
