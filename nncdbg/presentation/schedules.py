"""Words for the problems of a schedule: the cause, what happens at which lines, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.comparison.schedule_problems import Party, Repair, ScheduleProblem
from nncdbg.expression import spelled
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.streams import HOST, THE_HOST, Site, stream_name
from nncdbg.ir.walk import block_at

_RACES = {
    "value": "unordered accesses",
    "reuse": "unordered reuse",
    "free": "unordered free",
    "workspace": "shared workspace",
}
OVERWRITTEN = "overwritten value"

_FAULTS = {
    "no-record": "wait without record",
    "dead-lock": "dead-lock",
    "lost-record": "lost record",
    "unsynchronized-start": "unsynchronized start",
    "unsynchronized-end": "unsynchronized end",
    "freed": "use after free",
    "double-free": "double free",
    "devices": "operands of two devices",
    "overwritten": OVERWRITTEN,
    "depth": "too many launches",
    "unbound-stream": "unbound stream",
}

ORDER, HIDDEN, REPLICA = "order-dependent value", "hidden state", "replicas differ"

CAUSES = (*_RACES.values(), "read by the host", *_FAULTS.values(), ORDER, HIDDEN, REPLICA)
"""Every cause of a problem of a schedule."""


@dataclass(frozen=True, slots=True)
class ProblemWords:
    """The cause of a problem as one of `CAUSES`, one sentence of evidence, and a hint."""

    cause: str
    evidence: str
    hint: str


class ScheduleWording:
    """Writes about the schedule of a program, with the lines of its text."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.listing = program.as_listing()

    def explanation(self, problem: ScheduleProblem) -> ProblemWords:
        """Return the cause, evidence and hint of a problem."""
        return self._race(problem) if problem.kind == "race" else self._fault(problem)

    def pair(self, pair: tuple[Site, Site]) -> str:
        """Return `line 11 runs before line 10` for two statements in the order in which they run."""
        return f"line {self.line(pair[0])} runs before line {self.line(pair[1])}"

    def line(self, site: Site) -> int:
        """Return the line of a statement, or of the first or last line of a graph."""
        path, pc = site
        return self.listing.headers[path] if pc < 0 else self.listing.line(path, pc)

    def block(self, site: Site) -> tuple[Graph, int]:
        """Return the block of a statement, and its number in it."""
        path, pc = site
        return block_at(self.program, path), pc

    def _race(self, problem: ScheduleProblem) -> ProblemWords:
        first, second, repair = problem.first, problem.second, problem.repair
        assert first is not None
        assert repair is not None
        one, other = problem.access.split("-")
        evidence = f"{self._doing(first, one)}, and {self._doing(second, other)}; no event orders them"
        if problem.cause == "reuse" and problem.bytes is not None:
            begin, end = problem.bytes
            evidence += f"; both are at bytes {begin}..{end}"
        cause = "read by the host" if second.stream == HOST else _RACES[problem.cause]
        return ProblemWords(cause, evidence, self._edge(repair))

    def _doing(self, party: Party, access: str) -> str:
        """Return `s1 writes %a at line 7`; `frees` for memory that is given back."""
        block, pc = self.block(party.site)
        margin = block.nodes[pc].placement if 0 <= pc < len(block.nodes) else None
        what = f"{'writes' if access == 'write' else 'reads'} {spelled(party.name)}"
        if margin is not None and access == "write" and party.name in margin.frees:
            what = f"frees {spelled(party.name)}"
        elif margin is not None and access == "write" and party.name == margin.workspace:
            what = f"uses workspace {party.name}"
        return f"{stream_name(party.stream, THE_HOST)} {what} at line {self.line(party.site)}"

    def _edge(self, repair: Repair) -> str:
        first, second = self.line(repair.recorder.site), self.line(repair.waiter.site)
        if repair.event is not None:
            return f"wait for e{repair.event} at line {second}: line {first} records it"
        return f"record an event at line {first}, and wait for it at line {second}"

    def _device(self, party: Party | None) -> str:
        return "" if party is None else self.program.streams.get(party.stream, "")

    def _fault(self, problem: ScheduleProblem) -> ProblemWords:
        number, name = problem.number, spelled(problem.second.name)
        line = self.line(problem.second.site)
        other = "" if problem.first is None else f"line {self.line(problem.first.site)}"
        bound = "" if problem.first is None else f"s{problem.first.stream}"
        by = f"which only {other} records, later" if other else "which nothing records"
        evidence, hint = {
            "no-record": (f"line {line} waits for e{number}, {by}", f"record e{number} before line {line}"),
            "dead-lock": (
                f"line {line} waits for e{number}, which only {other} records, and {other} runs after line "
                f"{line}: a wait that blocks never ends",
                f"move the record of e{number} before line {line}",
            ),
            "lost-record": (
                f"line {line} records e{number} again before any wait for the record of {other}",
                f"use another event at line {line}, or wait for e{number} before it",
            ),
            "unsynchronized-start": (
                f"stream s{number} does not wait for the beginning of its graph, {other}",
                f"add s{number} to `begin` at {other}",
            ),
            "unsynchronized-end": (
                f"the end of the graph, {other}, does not wait for stream s{number}",
                f"record an event at line {line}, and wait for it at {other}",
            ),
            "freed": (f"{name} was freed at {other}", f"free {name} after line {line}"),
            "double-free": (
                f"line {line} frees {name}, which {other} has freed already",
                f"free {name} only once, after its last reader",
            ),
            "devices": (
                f"{other} computes {name} on {self._device(problem.first)}, and line {line} reads it with "
                f"other operands on {self._device(problem.second)}",
                f"copy {name} first, with Identity on a stream of {self._device(problem.second)}",
            ),
            "overwritten": (
                f"{other} has written other data to the bytes of {name}",
                "place the two values at different bytes",
            ),
            "unbound-stream": (
                f"line {line} uses s{problem.second.stream} for the logical stream {number}, "
                f"which {other} binds to {bound}",
                f"write s{number}->{bound.removeprefix('s')} at line {line}",
            ),
            "depth": (
                f"more than {problem.limit} launches of stream s{number} are in flight",
                f"let the host wait for an event of this stream before line {line}",
            ),
        }[problem.kind]
        return ProblemWords(_FAULTS[problem.kind], evidence, hint)
