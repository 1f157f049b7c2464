"""`nncdbg.watch`: a watch as one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.graph import Program
from nncdbg.engine.session import Debugger
from nncdbg.watch.gates import USUAL, Gates
from nncdbg.watch.records import Report
from nncdbg.watch.watching import MAX_FINDINGS, watch_run


def watch(
    program: Program,
    inputs: Mapping[str, Any] | None = None,
    *,
    fail_on: str | Iterable[str] = USUAL,
    strict: bool = False,
    max_findings: int = MAX_FINDINGS,
    backend: str | Backend = "numpy",
    **fields: Any,
) -> Report:
    """Run a program and tell which op gave birth to the first NaN, and why.

    `inputs` and `fields` (dims, seed, fallback, allocator, max_ops, history) are as for Debugger; `fail_on`
    names the gates, `strict` lets what never reaches an output trip them too.  A run that fails
    is told in `Report.error`.  Raises UsageError for a gate that there is not, and what Debugger
    raises.
    """
    gates = Gates.of(fail_on, strict=strict)
    debugger = Debugger(program, inputs, backend=backend, statistics=False, **fields)
    return watch_run(debugger, gates, max_findings=max_findings)
