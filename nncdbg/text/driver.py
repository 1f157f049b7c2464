"""The driver of a program with states: the graph that gives states their first values and calls the others.

It is not written in the text: its statements are the lines ``state`` and ``run``.  Without a ``run`` line
it calls the entry graph once, and the header of that graph is the line of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nncdbg.ir.records import Node, Path, Program, RunLine, Value, tensor_only
from nncdbg.text.listing import Listing


def has_driver(program: Program) -> bool:
    """Return whether a program has states or runs."""
    return bool(program.states or program.runs)


def driver_name(program: Program) -> str:
    """Return the name of the driver's graph, which no graph of the program has."""
    number, name = 0, "program"
    while name in program.graphs:
        number += 1
        name = f"program.{number}"
    return name


def body_length(run: RunLine) -> int:
    """Return the number of statements in one step of a run: the batch, if it has data, and the call."""
    return 2 if run.values else 1


def scalars_of(values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the values that are declared as scalars, which a run collects."""
    return tuple(
        each for each in values if (known := tensor_only(each.type)) is not None and known.shape == ()
    )


def driver_lines(
    program: Program,
    state_lines: Mapping[str, int],
    run_lines: Sequence[Sequence[int]],
    headers: Mapping[Path, int],
) -> tuple[dict[Path, tuple[int, ...]], dict[Path, int]]:
    """Return the lines of the driver's statements, and the header lines of its blocks, as in a Listing.

    `run_lines` has the line of each run, then those of its evaluations; `headers` are those of the graphs.  A
    line of several statements stands for the first of the outermost block, so that a breakpoint at a run
    stops once, before its first step, and one at an evaluation stops once per epoch.
    """
    if not has_driver(program):
        return {}, {}
    name = driver_name(program)
    lines = [state_lines[state.value.name] for state in program.states if isinstance(state.first, Node)]
    calls = [] if run_lines else [headers[program.entry,]]
    statements: dict[Path, tuple[int, ...]] = {}
    for run, own in zip(program.runs, run_lines, strict=True):
        results = _evaluated(program, run)
        statements |= _run_lines(run, own, results, (name, len(lines) + len(calls), 0))
        # The loop, then a statement for each result of its evaluations.
        calls += [own[0]] * (1 + sum(results))
    blocks = {path: lines_[0] for path, lines_ in statements.items()}
    statements[name,] = (*lines, *calls, calls[-1])
    return statements, {(name,): min(state_lines.values(), default=calls[0]), **blocks}


def lines_of_runs(program: Program, listing: Listing) -> list[int]:
    """Return the line of each run in a listing."""
    name = driver_name(program)
    blocks = [path for path in listing.statements if path[0] == name and len(path) == 3]
    return [listing.statements[path][0] for path in sorted(blocks, key=lambda path: path[1])]


def _evaluated(program: Program, run: RunLine) -> list[int]:
    """Return the number of results of each evaluation of a run."""
    return [
        len(scalars_of(graph.outputs)) if (graph := program.graphs.get(each.graph)) else 0
        for each in run.evaluations
    ]


def _run_lines(
    run: RunLine, lines: Sequence[int], results: Sequence[int], path: Path
) -> dict[Path, tuple[int, ...]]:
    """Return the lines of the statements in the body of a run, at `path`, and in its blocks."""
    length = body_length(run)
    if not run.evaluations:
        return {path: (lines[0],) * (length + 1)}
    # The end of the epoch is decided by three statements and an `if`.
    found = {path: (lines[0],) * (length + 5), (*path, length + 3, 1): (lines[0],)}
    inside: list[int] = []
    for each, line, count in zip(run.evaluations, lines[1:], results, strict=True):
        found[*path, length + 3, 0, len(inside), 0] = (line,) * (body_length(each) + 1)
        inside += [line] * (1 + 2 * count)
    found[*path, length + 3, 0] = (*inside, inside[-1])
    return found
