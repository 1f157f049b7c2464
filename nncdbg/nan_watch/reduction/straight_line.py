"""Convert a trace to a straight line of statements, from which any part can be extracted."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.ir.names import claimed_name, reads
from nncdbg.ir.records import Array, Graph, Node, Type
from nncdbg.nan_watch.reduction.case import ReducedCase, called_graphs, unsized
from nncdbg.nan_watch.reduction.tracing import Executed, StatementTrace
from nncdbg.opening.self_contained import stored_blocks


@dataclass(slots=True, eq=False)
class Line:
    """Statements in execution order, with every name defined once; the last one is the finding's.

    `contents` holds the values of the names read, on the host; `constants` the data of parameters.
    """

    nodes: list[Node] = field(default_factory=list)
    contents: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Type | None] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    name: str = "main"
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def distances(self) -> dict[int, int]:
        """Map each statement that the last one depends on to its distance in statements."""
        maker = {value.name: at for at, node in enumerate(self.nodes) for value in node.outputs if value.name}
        last = len(self.nodes) - 1
        found, waiting = {last: 0}, deque([last])
        while waiting:
            at = waiting.popleft()
            for name in reads(self.nodes[at]):
                before = maker.get(name)
                if before is not None and before not in found:
                    found[before] = found[at] + 1
                    waiting.append(before)
        return found

    def case(self, kept: Sequence[int]) -> ReducedCase:
        """Return these statements, as far as the last one depends on them; other reads become inputs."""
        chosen, needed = self._needed(kept)
        made = {value.name for at in chosen for value in self.nodes[at].outputs}
        given = [name for name in needed if name not in made]
        calls = {node.op[1:] for at in chosen for node in (self.nodes[at],) if node.op.startswith("@")}
        return ReducedCase(
            tuple(self.nodes[at] for at in chosen),
            self.outputs,
            {name: self.contents[name] for name in given if name not in self.constants},
            {name: self.constants[name] for name in given if name in self.constants},
            self.opsets,
            self.name,
            self.graphs if calls or any(self.nodes[at].subgraphs for at in chosen) else {},
            self.weights if calls or any(self.nodes[at].subgraphs for at in chosen) else {},
            {name: self.types.get(name) for name in given},
        )

    def _needed(self, kept: Sequence[int]) -> tuple[list[int], list[str]]:
        """Return the statements among `kept` that the last one needs, in order, and all names read."""
        last = len(self.nodes) - 1
        needed: dict[str, None] = {}
        chosen = []
        for at in sorted({*kept, last}, reverse=True):
            if at == last or any(value.name in needed for value in self.nodes[at].outputs):
                chosen.append(at)
                needed.update(dict.fromkeys(sorted(reads(self.nodes[at]))))
        return chosen[::-1], list(needed)


def flat_line(trace: StatementTrace) -> Line | None:
    """Return every executed statement; None if the finding is at a statement of control flow."""
    code, pc = trace.statement.code, trace.statement.pc
    if not trace.flat or trace.flat[-1].node is not code.nodes[pc]:
        return None
    return _Naming(trace, trace.flat, own=False).line()


def outer_line(trace: StatementTrace) -> Line | None:
    """Return the statements of the entry graph with their blocks and calls; None if none was started."""
    return _Naming(trace, trace.outer, own=True).line() if trace.outer else None


class _Naming:
    """Names every object of a trace; the names at the finding are unchanged.

    With `own`, all names are unchanged: each is already defined once, and blocks read them too.
    """

    def __init__(self, trace: StatementTrace, executed: Sequence[Executed], *, own: bool) -> None:
        self.trace = trace
        self.own = own
        self.executed = list(executed)
        self.to_host = trace.debugger.backend.to_host
        self.names: ByIdentity[str] = ByIdentity()
        self.taken: set[str] = set()
        self.made_last = frozenset(value.name for value in self.executed[-1].node.outputs)
        self.parameters = _parameters(trace.debugger)
        self.inputs = _inputs(trace.debugger)
        program = trace.debugger.program
        self.built = Line(opsets=program.opsets, name=program.entry)

    def line(self) -> Line:
        line, program = self.built, self.trace.debugger.program
        self.taken |= {name for name in self.made_last if name}
        for number, one in enumerate(self.executed):
            ends = number == len(self.executed) - 1
            if one.node.op == "update" and not self.own and not ends:
                # The line has no states: later statements read the new values.
                for name, result in zip(one.node.inputs, one.results, strict=True):
                    if isinstance(name, str):
                        self.names.set(result, self._name_of(name, one.read[name], one.code))
            else:
                line.nodes.append(self._statement(one, ends))
        value = self.trace.value
        last = [each.name for each in line.nodes[-1].outputs if each.name]
        line.outputs = (value,) if value in last else tuple(last)
        line.graphs = called_graphs(program, line.nodes, line.weights)
        return line

    def _statement(self, one: Executed, last: bool) -> Node:
        renamed = {name: self._name_of(name, content, one.code) for name, content in one.read.items()}
        inputs = tuple(renamed[name] if isinstance(name, str) else name for name in one.node.inputs)
        outputs = []
        for index, value in enumerate(one.node.outputs):
            name = value.name
            if name and not last and not self.own:
                name = claimed_name(name, self.taken, first=2)
            if name and index < len(one.results):
                self.names.set(one.results[index], name)
                self.built.contents[name] = self._content(one.results[index])
                self.built.types[name] = one.code.types.get(value.name)
            outputs.append(replace(value, name=name))
        node = replace(one.node, inputs=inputs, outputs=tuple(outputs))
        if node.subgraphs:
            node = stored_blocks(node, self.trace.debugger.program, self.built.weights)
        return unsized(node)

    def _name_of(self, name: str, content: Any, code: Code) -> str:
        found = name
        if not self.own:
            known = self.names.get(content)
            if known is not None:
                return known
            name = self.inputs.get(content) or self.parameters.get(content) or name
            found = claimed_name(name, self.taken, first=2)
        self.names.set(content, found)
        if content in self.parameters:
            self.built.constants[found] = self.to_host(content)
        self.built.contents[found] = self._content(content)
        self.built.types[found] = code.types.get(name)
        return found

    def _content(self, content: Any) -> Any:
        known = self.trace.contents.get(content)
        return self.to_host(content if known is None else known)


def _inputs(debugger: Debugger) -> ByIdentity[str]:
    """Return the inputs' names by their values; layers use other names for them."""
    found: ByIdentity[str] = ByIdentity()
    inputs = debugger.loaded.program.graph.inputs
    for content, value in zip(debugger.control.stack[0].slots[1:], inputs, strict=False):
        found.set(content, value.name)
    return found


def _parameters(debugger: Debugger) -> ByIdentity[str]:
    """Return the names of constants by their arrays."""
    found: ByIdentity[str] = ByIdentity()
    for code in debugger.loaded.codes:
        for constant in code.graph.constants:
            content = code.template[code.slot_of[constant.value.name]]
            if isinstance(content, np.ndarray):
                found.set(content, constant.value.name)
    return found
