"""Compare a run with recorded values: the arrays of a `.npz` file, mapped to the program's values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.comparison.measure import agree, measure
from nncdbg.comparison.report import DifferenceCause, DiffReport, Match, ValueSite
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.blame import PROPAGATED, StatementVerdict
from nncdbg.engine.divergence.pairing import Unit, common_subsequence, form_of
from nncdbg.engine.divergence.recomputation import MISSING, Recomputation, Substitution
from nncdbg.engine.divergence.report_builder import ReportBuilder
from nncdbg.engine.divergence.sides import FREED, RunTrace, Side, TracedValues, WrittenResult, site_of
from nncdbg.engine.inputs.npy import archive_names, load_from_archive
from nncdbg.errors import LoadError, UsageError
from nncdbg.expression import spelled
from nncdbg.ir.records import Array, Graph, type_of
from nncdbg.process.files import read_regular


def load_golden(path: Path) -> dict[str, Array]:
    """Return the arrays of a `.npz` file by name.  Raises LoadError if the file cannot be read."""
    names = archive_names(path)
    if not names:
        raise LoadError(f"{path} contains no arrays", hint="save arrays with numpy.savez(path, name=array)")
    return {name: load_from_archive(path, name) for name in names}


def load_names(path: Path) -> dict[str, str]:
    """Read a map from golden names to value names: a JSON object, or lines of `GOLDEN VALUE`.

    `#` begins a comment.  Raises LoadError for other files.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LoadError(f"{path} is not JSON: {error}") from error
        if not all(isinstance(value, str) for value in found.values()):
            raise LoadError(
                f"{path}: each golden name must map to one value name",
                hint='write {"golden name": "value name"}',
            )
        return {name: value.removeprefix("%") for name, value in found.items()}
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and len(words) != 2:
            raise LoadError(
                f"{path}, line {number}: expected 2 names, got {len(words)}",
                hint="write each line as: GOLDEN VALUE",
            )
        if words:
            names[words[0]] = words[1].removeprefix("%")
    return names


def golden_inputs(
    graph: Graph, golden: Mapping[str, Array], names: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return the arrays that are inputs of the graph, by input name."""
    inputs = {value.name for value in graph.inputs}
    mapped = {(names or {}).get(name, name): array for name, array in golden.items()}
    return {name: array for name, array in mapped.items() if name in inputs}


class GoldenRun:
    """Compares a debugger at its entry with golden values; `names` maps golden names to value names."""

    def __init__(
        self,
        a: Debugger,
        golden: Mapping[str, Array],
        names: Mapping[str, str],
        tolerance: Tolerance,
        budget: int,
    ) -> None:
        self.a = Side(a, "the model", origins=True)
        self.golden, self.names, self.tolerance = golden, names, tolerance
        self.report = DiffReport()
        self._budget = budget
        unknown = names.keys() - golden.keys()
        if unknown:
            raise UsageError(
                f'the golden file has no array "{min(unknown)}"', hint=f"use one of: {', '.join(golden)}"
            )

    def pause(self) -> None:
        """Interrupt the run before the next statement; `run` raises KeyboardInterrupt."""
        self.a.debugger.pause()

    def run(self) -> DiffReport:
        """Run to the end and compare.  Raises the run's error, and UsageError for an unknown name."""
        with TracedValues(self._budget) as values:
            trace = RunTrace(self.a, values).record()
            mapping = self._mapping(trace)
            builder = ReportBuilder(self.a, self.a, self.tolerance)
            self.report = builder.report
            _Comparison(trace, mapping, self.golden, builder, self.tolerance).run()
            self.report.spilled = values.spilled
            used = {name for name, _ in mapping.values()}
            left = [name for name in self.golden if name not in used and not self._is_input(name)]
            self.report.only_b, self.report.unmatched_b = left, len(left)
        return self.report

    def _is_input(self, name: str) -> bool:
        return self.names.get(name, name) in self.a.debugger.inputs

    def _mapping(self, trace: RunTrace) -> dict[WrittenResult, tuple[str, str]]:
        """Return per value the name of its golden array, and how they were paired."""
        places = _values_of(trace)
        mapping: dict[WrittenResult, tuple[str, str]] = {}
        for name, value in self.names.items():
            if value in places:
                mapping[places[value]] = name, "name"
            elif value not in self.a.debugger.inputs:
                raise UsageError(
                    f"no statement computes {spelled(value)}",
                    hint=f'correct the mapping of the golden array "{name}"',
                )
        left = [name for name in self.golden if name not in self.names and not self._is_input(name)]
        for name in left:
            if name in places:
                mapping.setdefault(places[name], (name, "name"))
        used = {name for name, _ in mapping.values()}
        free = {value: result for value, result in places.items() if result not in mapping}
        mine = [_unit(number, value, trace.value(free[value])) for number, value in enumerate(free)]
        rest = [name for name in left if name not in used]
        other = [_unit(number, name, self.golden[name]) for number, name in enumerate(rest)]
        for one, counterpart in common_subsequence(mine, other):
            mapping[free[one.names[0]]] = counterpart.names[0], "position"
        return mapping


def _values_of(trace: RunTrace) -> dict[str, WrittenResult]:
    """Return results by name, in order of execution; in a loop, those of the last iteration."""
    found: dict[str, WrittenResult] = {}
    for key in trace.keys:
        for index, name in enumerate(trace.at(key).names):
            found.pop(name, None)
            found[name] = trace.side.origin_of(WrittenResult(key, index))
    return found


def _unit(number: int, name: str, content: Any) -> Unit:
    """Return a unit for pairing by shape and order."""
    return Unit(number, (), "", (name,), ("", form_of(content)), None, (), kernel=True, commutative=False)


class _Comparison:
    """Compares every value with its golden one, then finds the statements that differ by themselves."""

    def __init__(
        self,
        trace: RunTrace,
        mapping: Mapping[WrittenResult, tuple[str, str]],
        golden: Mapping[str, Array],
        builder: ReportBuilder,
        tolerance: Tolerance,
    ) -> None:
        self._trace, self._mapping, self._golden = trace, mapping, golden
        self._builder, self._tolerance = builder, tolerance
        self._recomputation = Recomputation(trace.side.debugger, tolerance)
        self._substitution = Substitution(trace, self._wanted, lambda name: MISSING, self._recomputation)

    def run(self) -> None:
        matches = dict(self._matches())
        for result, match in matches.items():
            if match.diverges:
                self._builder.judged([match], self._verdict(result, match))
        # Without golden outputs, all golden values are compared.
        outputs = [source for source in self._trace.outputs if source in matches]
        self._builder.report.outputs = [matches[each] for each in outputs] or list(matches.values())
        self._builder.finish()

    def _matches(self) -> Iterable[tuple[WrittenResult, Match]]:
        ticks = {result: self._trace.at(result.key).tick for result in self._mapping}
        for result, (name, way) in sorted(self._mapping.items(), key=lambda item: ticks[item[0]]):
            written = self._trace.at(result.key)
            content = written.contents[result.index]
            if content is FREED:
                self._builder.report.gone += 1
                continue
            site = site_of(self._trace.side.debugger, written, result.index)
            there = replace(_NOT_RUN, value=name, type=str(type_of(self._golden[name])))
            match = measure(site, there, way, (content, self._golden[name]), self._tolerance)
            self._builder.add(written, match)
            yield result, match

    def _wanted(self, result: WrittenResult) -> Any:
        """Return the golden value of a result; MISSING without one."""
        found = self._mapping.get(result)
        return MISSING if found is None else self._golden[found[0]]

    def _verdict(self, result: WrittenResult, match: Match) -> StatementVerdict:
        """Judge the statement on golden operands, or on operands computed from the nearest golden values."""
        written = self._trace.at(result.key)
        if written.operands is None:
            return PROPAGATED
        operands, like = self._substitution.operands(written), self._trace.operands(written)
        found = self._recomputation.results(written.code, written.pc, operands, like)
        if found is not None and agree(found[result.index], self._wanted(result), self._tolerance):
            return PROPAGATED
        before = [key for source in written.sources for key in self._substitution.between(source)]
        text = f"{written.node.op} computes a different result from the golden operands"
        if before:
            first = self._trace.at(min(before, key=lambda key: self._trace.at(key).tick))
            text = (
                f"one of the {len(set(before)) + 1} statements between the golden values and this one"
                f" differs, from {spelled(first.names[0])} = {first.node.op} on"
            )
        return StatementVerdict(
            DifferenceCause("between" if before else "kernel", match.a, match.b, text, match)
        )


_NOT_RUN = ValueSite("", "", "", None, "golden file", (), "", 0)
"""The site of a golden value, which no statement computes."""
