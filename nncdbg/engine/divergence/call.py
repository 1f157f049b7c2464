"""`nncdbg.diff`: compare two runs, or a run and golden values, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.comparison.report import DiffReport
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.states import given_states, lowered
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.casting import cast_program, inputs_like
from nncdbg.engine.divergence.golden import GoldenRun, golden_inputs, load_golden, load_names
from nncdbg.engine.divergence.lockstep import BUDGET, compared
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.errors import InputError, UsageError
from nncdbg.ir.records import Program


@contextmanager
def inputs_of_side(side: str) -> Iterator[None]:
    """Name the side, `A` or `B`, in an InputError from the body."""
    try:
        yield
    except InputError as error:
        error.message = f"side {side}: {error.message}"
        raise


def counterpart(
    program: Program, first: Debugger, dtype: str | None, given: Iterable[str] = ()
) -> tuple[Program, dict[str, Any], list[str]]:
    """Return side B's program (cast to `dtype` if given), its inputs, and notes on them.

    The inputs are those of side A, the debugger `first`.  Another program folder keeps its own inputs, except
    those in `given`, which the user gave for both sides.
    """
    cast = program if dtype is None else cast_program(program, dtype)
    saved = program.saved
    entry = lowered(cast, given=given_states(cast, first.inputs)).graph
    if saved.origin in ("", first.program.saved.origin):
        return cast, *inputs_like(entry, first.inputs)
    names = {str(name).removeprefix("%") for name in given}
    shared = {name: data for name, data in first.inputs.items() if name in names}
    inputs, notes = inputs_like(entry, {**saved.inputs, **shared})
    return cast, inputs, [*notes, f"side B has the inputs saved in {saved.origin}"]


def diff(
    a: ProgramSource,
    b: ProgramSource | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    backend: str | Backend | None = None,
    backend_b: str | Backend | None = None,
    allocator: str | Allocation | None = None,
    allocator_b: str | Allocation | None = None,
    dtype_b: str | None = None,
    golden: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    names: str | os.PathLike[str] | Mapping[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: int | None = None,
    **fields: Any,
) -> DiffReport:
    """Run `a` and `b` (default: `a` again, with the `_b` arguments) and compare every value.

    Both are programs or arguments of `nncdbg.load`, such as paths.  `inputs` and `fields` (dims, seed,
    fallback, history, max_ops) are as for Debugger; side B gets the inputs of side A, unless it is another
    program folder, which has its own inputs and supplies arguments that are not given.  `dtype_b` casts
    B's float weights and inputs.  `golden` replaces side B: a `.npz` file, or arrays by name; arrays
    with names of `a`'s inputs are used as inputs.  `names` maps golden names to value names, as a
    mapping or a file.  Tolerances that are None follow from the element types.

    Raises what `nncdbg.load` and Debugger raise, and the error of a side that fails.
    """
    a = load(a)
    tolerance = Tolerance(rtol, atol, ulp)
    if golden is not None:
        if b is not None or backend_b or allocator_b or dtype_b:
            raise UsageError(
                "golden values and side B cannot be combined", hint="omit side B or the golden values"
            )
        arrays = golden if isinstance(golden, Mapping) else load_golden(Path(golden))
        mapped = names if isinstance(names, Mapping) else load_names(Path(names)) if names else {}
        given = {**golden_inputs(a.graphs[a.entry], arrays, mapped), **(inputs or {})}
        run = Debugger(a, given, backend=backend, allocator=allocator, statistics=False, **fields)
        return GoldenRun(run, arrays, mapped, tolerance, BUDGET).run()
    with inputs_of_side("A"):
        first = Debugger(a, inputs, backend=backend, allocator=allocator, statistics=False, **fields)
    program, given, _ = counterpart(a if b is None else load(b), first, dtype_b, inputs or {})
    # Side B runs on the backend of its own program, unless the caller gave one.
    saved = program.saved if program.saved.origin else replace(a.saved, backend=program.saved.backend)
    # Symbolic sizes follow from the inputs.
    fields.pop("dims", None)
    with inputs_of_side("B"):
        machine = {name: fields.pop(name, None) for name in ("fallback", "seed", "max_ops")}
        arguments = saved.completed(
            backend=backend_b or backend, allocator=allocator_b or allocator, **machine
        )
        second = Debugger(program, given, statistics=False, **arguments, **fields)
    return compared(first, second, tolerance, same_places=True if b is None else None).run()
