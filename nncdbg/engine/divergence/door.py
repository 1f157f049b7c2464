"""`nncdbg.diff`: the comparison of two runs as one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.divergence.casting import cast_program, same_places
from nncdbg.engine.divergence.inputs import inputs_like
from nncdbg.engine.divergence.lockstep import Lockstep
from nncdbg.engine.divergence.report import Report
from nncdbg.engine.divergence.tolerance import Tolerance
from nncdbg.engine.graph import Program
from nncdbg.engine.linking import Allocation
from nncdbg.engine.session import Debugger


def counterpart(
    program: Program, given: Mapping[str, Any], dtype: str | None
) -> tuple[Program, dict[str, Any], list[str]]:
    """Side B's program, cast to `dtype` if there is one, its inputs out of side A's, and notes on these."""
    cast = program if dtype is None else cast_program(program, dtype)
    inputs, notes = inputs_like(cast.graphs[cast.entry], given)
    return cast, inputs, notes


def diff(
    a: Program,
    b: Program | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    backend: str | Backend = "numpy",
    backend_b: str | Backend | None = None,
    allocator: str | Allocation | None = None,
    allocator_b: str | Allocation | None = None,
    dtype_b: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: int | None = None,
    **fields: Any,
) -> Report:
    """Run `a` and `b` (default: `a` again, with what the `_b` arguments say) in lockstep and compare.

    `inputs` and `fields` (dims, seed, fallback, history, max_ops) are as for Debugger; side B gets
    the inputs of side A.  `dtype_b` casts B's float weights and inputs.  Tolerances that are None
    follow from the element types.  Raises what Debugger raises, and the error of a side that fails.
    """
    first = Debugger(a, inputs, backend=backend, allocator=allocator, statistics=False, **fields)
    program, given, _ = counterpart(b or a, first.inputs, dtype_b)
    # What the inputs bind needs no saying again.
    fields.pop("dims", None)
    second = Debugger(
        program,
        given,
        backend=backend_b or backend,
        allocator=allocator_b or allocator,
        statistics=False,
        **fields,
    )
    same = True if b is None and same_places(a, program) else None
    return Lockstep(first, second, Tolerance(rtol, atol, ulp), same_places=same).run()
