"""A program with a value of every unusual kind, for tests that read and change values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.dap_server.client import Client

TEXT = """#nncdbg 1
opset 21

graph @main(%x: f32[2,3], %"odd name": f32[2,3]) -> (%y: f32[2,3]) {
  %words: str[2] = ["plain", "größe"]
  %empty: f32[0,3] = []
  %"größe/1": f32[] = ReduceMax(%x, keepdims=0)
  %narrow: bf16[2,3] = Cast(%x, to=16)
  %small: i4[2,3] = Cast(%x, to=22)
  %flags: bool[2,3] = Greater(%x, 0.5)
  %turned: f32[3,2] = Transpose(%x, perm=[1,0])
  %rows: seq(f32[1,3]) = SplitToSequence(%x, axis=0)
  %twice: f32[2,3] = Mul(%"odd name", 2.0)
  %y: f32[2,3] = Neg(%twice)
  return %y
}
"""

FLAGS = {
    "supportsMemoryReferences": True,
    "supportsVariableType": True,
    "supportsInvalidatedEvent": True,
    "supportsMemoryEvent": True,
}

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ODD = np.array([[np.nan, np.inf, -np.inf], [0.1, -0.0, 3]], np.float32)


def start(client: Client, folder: Path, **initialize: Any) -> None:
    """Run the program up to its `return`, where every value is available."""
    np.save(folder / "x.npy", X)
    np.save(folder / "odd.npy", ODD)
    file = folder / "odd.nnc"
    file.write_text(TEXT, encoding="utf-8")
    client.launch(file, initialize={**FLAGS, **initialize}, inputs={"x": "x.npy", "odd name": "odd.npy"})
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [{"line": 15}]})
    client.request("configurationDone")
    client.expect_stop("breakpoint")
