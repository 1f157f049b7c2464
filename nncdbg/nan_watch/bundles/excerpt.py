"""What a repro bundle of a finding needs: the statements that lead to it, as far as their data is small."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nncdbg.engine.graph import Program
from nncdbg.nan_watch.bundles.writing import write_bundle
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import Case, case_of_program
from nncdbg.nan_watch.reduction.sameness import Probe, Signature
from nncdbg.nan_watch.reduction.straight_line import Line, flat_line, outer_line

LARGEST = 16 << 20
"""Bytes of data up to which statements further away are taken in."""

LONGEST = 500
"""Statements that a bundle shows at most; what leads there is given as values."""


def bundle_finding(
    folder: Path,
    program: Program,
    inputs: Mapping[str, Any],
    finding: WatchFinding,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a finding that a watch of `program` has told, and give it as it is there.

    `inputs` are those of the watched run, arrays by name.  It holds the backward slice, calls and loops
    unrolled, cut where the data would grow beyond `LARGEST`: there the values as they were are inputs.
    Where only the program as it is shows the finding, it holds that.

    Raises RunError if the finding does not come again, and what `write_bundle` raises.
    """
    probe = Probe(Signature.of(finding), configuration)
    return write_bundle(
        folder, excerpt(program, inputs, finding, probe), probe.signature, configuration, model=model
    )


def excerpt(program: Program, inputs: Mapping[str, Any], finding: WatchFinding, probe: Probe) -> Case:
    """The largest part around a finding that is small enough and shows it; the whole program if none does."""
    traced = probe.trace(program, inputs, finding)
    for view in (flat_line, outer_line):
        line = view(traced)
        if line is None:
            continue
        for case in _outwards(line):
            if probe(case):
                return case
    return case_of_program(program, inputs)


def _outwards(line: Line) -> list[Case]:
    """Parts of a line that are small enough, the largest first, and the smallest there is."""
    distances = line.distances()
    reach = 0
    fitting: list[Case] = []
    while True:
        case = line.case([at for at, distance in distances.items() if distance <= reach])
        small = case.bytes <= LARGEST and case.statements <= LONGEST
        if small or not fitting:
            fitting.append(case)
        if reach >= max(distances.values()):
            return fitting[::-1]
        reach = min(2 * reach or 1, max(distances.values()))
