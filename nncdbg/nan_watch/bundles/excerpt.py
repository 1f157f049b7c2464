"""Extract the part of a program for a repro bundle: statements before a finding, with bounded data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nncdbg.ir.records import Program
from nncdbg.nan_watch.bundles.writing import write_bundle
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.sameness import FindingSignature, Probe
from nncdbg.nan_watch.reduction.straight_line import Line, flat_line, outer_line

LARGEST = 16 << 20
"""Most bytes of data in an excerpt; the values at its edge become inputs."""

LONGEST = 500
"""Most statements in an excerpt; results of earlier ones become inputs."""


def bundle_finding(
    folder: Path,
    program: Program,
    inputs: Mapping[str, Any],
    finding: WatchFinding,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a finding that a watch of `program` reported; return the bundle's finding.

    `inputs` are those of the watched run, arrays by name.  The bundle holds the backward slice with calls and
    loops unrolled, cut where the data would exceed `LARGEST`: the values at the cut become inputs.
    If only the complete program shows the finding, the bundle holds that.

    Raises RunError if the finding does not recur, and the errors of `write_bundle`.
    """
    probe = Probe(FindingSignature.of(finding), configuration)
    return write_bundle(
        folder, excerpt(program, inputs, finding, probe), probe.signature, configuration, model=model
    )


def excerpt(program: Program, inputs: Mapping[str, Any], finding: WatchFinding, probe: Probe) -> ReducedCase:
    """Return the largest part within the limits that shows the finding, else the whole program."""
    traced = probe.trace(program, inputs, finding)
    for view in (flat_line, outer_line):
        line = view(traced)
        if line is None:
            continue
        for case in _outwards(line):
            if probe(case):
                return case
    return case_of_program(program, inputs)


def _outwards(line: Line) -> list[ReducedCase]:
    """Return parts of a line within the limits, largest first; the smallest part is always included."""
    distances = line.distances()
    reach = 0
    fitting: list[ReducedCase] = []
    while True:
        case = line.case([at for at, distance in distances.items() if distance <= reach])
        small = case.bytes <= LARGEST and case.statements <= LONGEST
        if small or not fitting:
            fitting.append(case)
        if reach >= max(distances.values()):
            return fitting[::-1]
        reach = min(2 * reach or 1, max(distances.values()))
