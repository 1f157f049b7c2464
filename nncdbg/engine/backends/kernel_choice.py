"""The backends of single statements: `Conv=torch`, `%h=numpy`, `@layer.%h=torch` and `12=numpy`.

A choice replaces the kernels of the statements that it selects when they are linked, so the other statements
run as without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nncdbg.engine.backends import Backend, Call, Kernels, backend
from nncdbg.engine.backends.mixed_backends import kernels_for
from nncdbg.engine.compilation.code import Statement
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind, is_transfer
from nncdbg.ir.records import Node, Path, Program
from nncdbg.ir.search import candidates
from nncdbg.ir.walk import walk
from nncdbg.text.lexemes import Flaw, integer_of, name_text, nearest, unquote
from nncdbg.text.torch_names import stop_names

_SELECTOR = re.compile(
    r"""\s*(?:@(?P<graph>"(?:[^"\\]|\\.)*"|[^\s".%]\S*?)\.)?%(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]\S*)\s*""",
    re.DOTALL,
)

_FORMS = "write, for example, Conv=torch, %h=numpy, @layer.%h=torch or 12=numpy (a line)"


@dataclass(frozen=True, slots=True)
class Selector:
    """The statements that a text such as ``Conv`` selects: by `line`, by a value (in a graph), or by `op`."""

    text: str
    line: int | None = None
    """With a line, `op` is the op that the statement must have, "" for any."""
    value: str = ""
    graph: str = ""
    op: str = ""

    @property
    def rank(self) -> int:
        """Order selectors from the most to the least specific: line, value in a graph, value, op."""
        return 0 if self.line is not None else 1 if self.graph else 2 if self.value else 3

    def selects(self, path: Path, node: Node, line: int | None) -> bool:
        """Return whether this is the selector of a statement in the block at `path`."""
        if self.line is not None:
            return self.line == line and (not self.op or self.op in stop_names(node.op))
        if self.value:
            defines = any(each.name == self.value for each in node.outputs)
            return defines and self.graph in ("", path[0])
        return self.op in stop_names(node.op)


def parse_selector(text: str) -> Selector:
    """Parse ``Conv``, ``%h``, ``@layer.%h``, ``12`` or ``12 Conv``.  Raises UsageError for other texts."""
    stripped = text.strip()
    number, _, op = stripped.partition(" ")
    line = integer_of(number)
    if line is not None and line >= 0:
        return Selector(text, line=line, op=op.strip())
    match = _SELECTOR.fullmatch(text)
    if match is not None:
        return Selector(text, value=_name(match["value"]), graph=_name(match["graph"] or ""))
    if not stripped or stripped[0] in "%@":
        raise UsageError(f'"{text}" selects no statement', hint=_FORMS)
    return Selector(text, op=stripped)


def _name(text: str) -> str:
    try:
        return unquote(text) if text.startswith('"') else text
    except Flaw as flaw:
        raise UsageError(f"the name {text} is quoted incorrectly: {flaw.message}", hint=flaw.hint) from None


class ExactSelectors:
    """The shortest selector of each statement of a program."""

    def __init__(self, program: Program) -> None:
        self._homes: dict[str, list[Path]] = {}
        """The blocks that define each name, once per definition."""
        for path, node, _ in kernel_statements(program):
            for value in node.outputs:
                self._homes.setdefault(value.name, []).append(path)

    def selector(self, path: Path, node: Node, line: int) -> str:
        """Return a selector of this statement alone: its value if the name is unique, else its line."""
        for name in (value.name for value in node.outputs if value.name):
            homes = self._homes.get(name, ())
            if len(homes) == 1:
                return f"%{name_text(name)}"
            if [home[0] for home in homes].count(path[0]) == 1:
                return f"@{name_text(str(path[0]))}.%{name_text(name)}"
        return f"{line} {node.op}"


class KernelChoice:
    """The chosen backends of a run on `holding`.

    `kernels` maps selectors to names of backends; of several selectors of a statement, the most specific one
    decides.  Raises UsageError for a selector of no statement, and for an unknown or unavailable backend.
    """

    def __init__(self, kernels: Mapping[str, str], program: Program, holding: Backend) -> None:
        self._holding = holding
        chosen = {parse_selector(text): name for text, name in kernels.items()}
        self._ranked = sorted(chosen, key=lambda selector: selector.rank)
        self._backends = {selector: self._backend(selector, name) for selector, name in chosen.items()}
        statements = [*kernel_statements(program)]
        for selector in self._ranked:
            if not any(selector.selects(*each) for each in statements):
                raise _nothing_selected(selector, program, statements)

    def _backend(self, selector: Selector, name: str) -> Backend:
        if name == self._holding.name:
            return self._holding
        try:
            return backend(name)
        except UsageError as error:
            error.message = f"cannot choose the kernel of {selector.text}: {error.message}"
            raise

    def selector(self, path: Path, node: Node, line: int | None) -> Selector | None:
        """Return the selector that decides the kernel of a statement; None for the backend of the run."""
        return next((each for each in self._ranked if each.selects(path, node, line)), None)

    def backend_of(self, path: Path, node: Node, line: int | None) -> Backend:
        """Return the backend whose kernel a statement runs."""
        selector = self.selector(path, node, line)
        return self._holding if selector is None else self._backends[selector]

    def cover(self, kernels: Kernels, call: Call, statement: Statement, line: int | None) -> Kernels:
        """Return the kernels of the chosen backend, or the given ones.  Micro programs have no choice."""
        if statement.code.formula is not None or not has_choice(call.node):
            return kernels
        chosen = self.backend_of(statement.code.path, call.node, line)
        return kernels if chosen is self._holding else kernels_for(chosen, self._holding, call)


def kernel_statements(program: Program) -> Iterator[tuple[Path, Node, int | None]]:
    """Yield the block, node and line of each statement with a kernel that can be chosen.

    A graph and its forward graph for a gradient share their lines, and are one here.
    """
    listing = program.as_listing()
    seen: set[tuple[Path, int]] = set()
    for path, _, pc, node in walk(program):
        if has_choice(node) and (path, pc) not in seen:
            seen.add((path, pc))
            yield path, node, listing.line(path, pc)


def has_choice(node: Node) -> bool:
    """Return whether a statement runs a kernel of a backend: not control flow, a call or an update."""
    return not is_transfer(node.op) and node.kind is not Kind.UPDATE


def _nothing_selected(
    selector: Selector, program: Program, statements: list[tuple[Path, Node, int | None]]
) -> UsageError:
    message = f"no statement with a kernel matches {selector.text}"
    if selector.line is not None:
        there = next((node.op for _, node, line in statements if line == selector.line), None)
        number = "choose the line of a statement in `nncdbg print`"
        return UsageError(message, hint=f"line {selector.line} has {there}" if there else number)
    if selector.op:
        ops = {node.op for _, node, _ in statements}
        return UsageError(message, hint=nearest(selector.op, ops) or _FORMS)
    homes = [(value.name, str(path[0])) for path, node, _ in statements for value in node.outputs]
    graphs = [graph for name, graph in homes if name == selector.value]
    if graphs:
        return UsageError(message, hint=f"%{name_text(selector.value)} is in @{name_text(min(graphs))}")
    if selector.value in candidates(program, "value"):
        return UsageError(message, hint=f"%{name_text(selector.value)} is no result of a kernel")
    names = {name for name, _ in homes if name}
    return UsageError(message, hint=nearest(selector.value, names, "%") or _FORMS)
