"""Repro bundles: the part of a program before a finding, with bounded data, as a program folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.errors import RunError
from nncdbg.ir.records import Graph, Program, TensorType, Value, type_of
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.finding_identity import FindingSignature, Probe
from nncdbg.nan_watch.reduction.straight_line import StatementTrace, lines_of
from nncdbg.opening.folder_writing import FolderFinding, check_folder, write_folder


def write_bundle(
    folder: Path,
    case: ReducedCase,
    signature: FindingSignature,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a case that shows a finding; return the finding as the bundle shows it.

    Raises RunError if the case does not show the finding, and the errors of `write_folder`.
    """
    check_folder(folder)
    probe, program = Probe(signature, configuration), case.program()
    traced = probe.trace(program, case.inputs, _finding_in(program, case, probe))
    typed = _typed(program, traced)
    finding = _finding_in(typed, case, probe)
    write_folder(
        folder,
        typed,
        case.inputs,
        backend=configuration.backend,
        settings=configuration.kept,
        finding=FolderFinding(finding.as_dict(), traced.ticks),
        model=model,
        readme=_readme(folder, signature, finding),
    )
    return finding


def _typed(program: Program, traced: StatementTrace) -> Program:
    """Return the program with the types that the values of its entry graph had."""
    types = {
        value.name: type_of(content)
        for one in traced.outer
        for value, content in zip(one.node.outputs, one.results, strict=False)
    }
    entry = program.graphs[program.entry]

    def typed(value: Value) -> Value:
        known = types.get(value.name)
        return replace(value, type=known) if isinstance(known, TensorType) else value

    nodes = tuple(replace(node, outputs=tuple(map(typed, node.outputs))) for node in entry.nodes)
    graph: Graph = replace(entry, nodes=nodes, outputs=tuple(map(typed, entry.outputs)))
    return replace(program, graphs={**program.graphs, program.entry: graph})


def _finding_in(program: Program, case: ReducedCase, probe: Probe) -> WatchFinding:
    """Return the finding that a watch of the program reports, with the lines of the program's text."""
    found = probe.finding_in(program, case.inputs)
    if found is None:
        raise RunError(
            "the finding did not occur again when nncdbg wrote the bundle",
            hint="check whether a kernel uses random numbers or the time",
        )
    return found


def _readme(folder: Path, signature: FindingSignature, finding: WatchFinding) -> str:
    name = folder.name
    return (
        f"{signature}\n{finding.evidence}\n\n"
        f"nncdbg {name}          stopped at the statement; `next` executes it\n"
        f"nncdbg watch {name}    reports it again\n"
    )


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
    for line in lines_of(probe.trace(program, inputs, finding)):
        fitting: list[ReducedCase] = []
        for kept in line.surroundings():
            case = line.case(kept)
            # The smallest part is always tried.
            if not fitting or (case.bytes <= LARGEST and case.statements <= LONGEST):
                fitting.append(case)
        for case in reversed(fitting):
            if probe(case):
                return case
    return case_of_program(program, inputs)
