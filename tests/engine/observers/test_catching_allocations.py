"""`catch nan` and memory that PyTorch only allocates: the backend fills it with NaN."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg

torch = pytest.importorskip("torch", reason="torch is not installed")

EMPTY = "%e = aten.empty.memory_format(size=[2])"

WRITTEN = {
    "filled": ("%w = aten.fill_.Scalar(%e, value=1)", "%r = aten.add.Tensor(%w, %x)"),
    "copied to": ("%w = aten.copy_.default(%e, %x)", "%r = aten.add.Tensor(%w, %x)"),
    "filled through a view": (
        "%v = aten.detach.default(%e)",
        "%w = aten.fill_.Scalar(%v, value=1)",
        "%r = aten.add.Tensor(%w, %x)",
    ),
    "not used": ("%r = aten.neg.default(%x)",),
}

READ = {
    "added": ("%r = aten.add.Tensor(%e, %x)",),
    "returned": ("%r = aten.detach.default(%e)",),
    "read after it was copied from": (
        "%w = aten.fill_.Scalar(%e, value=1)",
        "%r = aten.add.Tensor(%w, %e)",
    ),
    "copied to itself": ("%r = aten.copy_.default(%e, %e)",),
    "called with": ("%r = @inner(%e)",),
}


def stopped(lines: tuple[str, ...]) -> nncdbg.Stop:
    body = "\n".join(f"  {line}" for line in (EMPTY, *lines))
    inner = "graph @inner(%p: f32[2]) -> (%q) {\n  %q = aten.fill_.Scalar(%p, value=1)\n  return %q\n}\n"
    text = f"#nncdbg 1\ngraph @main(%x: f32[2]) -> (%r) {{\n{body}\n  return %r\n}}\n\n{inner}"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.ones(2, np.float32)}, backend="torch")
    debugger.catch("nan", "inf")
    return debugger.run()


@pytest.mark.parametrize("lines", WRITTEN.values(), ids=WRITTEN)
def test_an_allocation_is_no_stop_if_all_of_it_is_written_first(lines: tuple[str, ...]) -> None:
    assert stopped(lines).reason == "end"


@pytest.mark.parametrize("lines", READ.values(), ids=READ)
def test_an_allocation_is_a_stop_if_something_may_read_it(lines: tuple[str, ...]) -> None:
    stop = stopped(lines)
    assert stop.reason == "exception"
    assert stop.node is not None
    assert stop.node.op == "aten.empty.memory_format"
