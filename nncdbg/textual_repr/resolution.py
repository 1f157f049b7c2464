"""Blocks that are being parsed, and errors that are only known after a whole graph or text is parsed.

Undefined names: defined later, part of a cycle, out of scope in another block, or missing. Calls: of
missing graphs, or with the wrong number of operands or results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from nncdbg.errors import ExpressionError
from nncdbg.expression.tracked import parse_tracked
from nncdbg.ir.records import BackwardLine, Constant, Graph, Node, Path, Placement, Value
from nncdbg.ir.walk import blocks, walk_nodes
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import ELLIPSIS, Flaw, Prefixes, name_text, nearest, quote
from nncdbg.textual_repr.groups import Members
from nncdbg.textual_repr.passed_values import ALL_LISTED, Listed
from nncdbg.textual_repr.statements import NameSpan

ENDS = {"graph": "return", "then": "yield", "else": "yield", "body": "next"}
"""Maps the kind of a block to the keyword of its last line."""

CALLED = {"graph": "a graph", "then": "a branch", "else": "a branch", "body": "a loop's body"}


@dataclass(slots=True)
class BlockHeader:
    """The first line of an ``if`` or ``while``: its Node without results and blocks, until these close."""

    node: Node
    line: int
    branch: Block | None = None
    """The first branch, after it has closed."""


@dataclass(slots=True, eq=False)
class Block:
    """A block of statements.

    `kind` is graph, then, else, body, or broken (the line that opened it does not parse).

    `results` are the values of its last line, and `end` is the number of that line (0 while the block is
    open). `results` is None if that line is missing or does not parse. `before` and `after` are the margins
    of its first and last line.
    """

    kind: str
    line: int
    path: Path = ()
    parent: Block | None = None
    header: BlockHeader | None = None
    name: str = ""
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    comment: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    groups: dict[str, Members] = field(default_factory=dict)
    """The groups that its statements define."""
    results: tuple[Value, ...] | None = None
    end: int = 0
    listed: Listed | None = None
    """The listed values of a graph whose inputs or outputs end in ``...``."""
    open_names: bool = False
    """Values may be passed, so an undefined name is no error before the end of the text."""
    before: Placement | None = None
    after: Placement | None = None
    astray: bool = False
    """A wrong keyword ended the block, or seemed to; the error has been reported."""

    def outwards(self) -> Iterator[Block]:
        """Yield this block, then the enclosing blocks from the inside out."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def sees(self, name: str) -> bool:
        """Return True if `name` is in scope, or if an enclosing block is broken and may define it."""
        return any(name in block.names or block.kind == "broken" for block in self.outwards())

    def line_of(self, name: str) -> int | None:
        """Return the line that defines the visible `name`."""
        return next((block.names[name] for block in self.outwards() if name in block.names), None)

    def graph(self) -> Graph:
        """Return the block as a graph."""
        outputs = self.outputs if self.kind == "graph" else self.results or ()
        nodes, constants, comment = tuple(self.nodes), tuple(self.constants), "\n".join(self.comment)
        return Graph(self.name, self.inputs, outputs, nodes, constants, comment, self.before, self.after)

    def end_line(self, prefixes: Prefixes) -> str:
        """Return a last line of this block, with the values that it needs."""
        spell = prefixes.spell
        names = [f"%{spell(value.name)}" for value in self.outputs]
        if self.listed is not None and self.listed.outputs is not None:
            names.append(ELLIPSIS)
        if self.kind == "body":
            names = [f"%{spell(value.name)} = %{spell(value.name)}" for value in self.inputs[1:]]
        elif self.header is not None and self.header.branch is not None:
            names = [f"%{name_text(value.name)}" for value in self.header.branch.results or ()]
        return f"{ENDS[self.kind]} {', '.join(names)}".rstrip()

    def site_lines(self) -> tuple[int, ...]:
        """Return the lines of the statements and of the last line."""
        return (*self.lines, self.end)


SUGGESTIONS = 20
"""Maximum number of unknown names with a suggestion: each look-up takes about 1 ms."""

_LONGEST_CYCLE = 20
"""Maximum number of names of a cycle in an error."""

_NEAR_LIMIT = 500
"""Maximum number of names compared for a suggestion; beyond it, only names of similar length."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A use of a name that is not visible in statement `pc` of `block`."""

    mark: NameSpan
    line: int
    block: Block
    pc: int


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as written in the text."""

    mark: NameSpan
    line: int
    inputs: int | None
    """The number of operands; None if the line names none."""
    outputs: int | None
    rest: frozenset[str] = frozenset()
    """Which of its lists end in ``...``: ``inputs``, ``outputs``."""
    nested: bool = False
    """Whether the call is in a nested block, where no list ends in ``...``."""


@dataclass(frozen=True, slots=True)
class WrittenTrack:
    """The expression of a ``track`` line as written, from character `start` of its line."""

    line: int
    start: int
    expression: str


def wrong_tracks(
    tracks: Iterable[WrittenTrack], values: Callable[[], Collection[str]], prefixes: Prefixes
) -> Iterator[tuple[int, Flaw]]:
    """Yield a line and a flaw for each track that does not parse; `values` returns all names of values."""
    known = cache(values)
    for track in tracks:
        try:
            parse_tracked(track.expression, known(), prefixes)
        except ExpressionError as error:
            inside = error.excerpt
            assert inside is not None  # Errors of the parser have a place.
            fits = inside.text == track.expression
            start, width = (inside.column - 1, inside.width) if fits else (0, len(track.expression))
            yield track.line, Flaw(error.message, track.start + start, width, error.hint)


def shown(name: str) -> str:
    """Return the name of a value as the text spells it."""
    return "%" + name_text(name)


def explain_all(unresolved: Iterable[Unresolved], blocks: Sequence[Block]) -> Iterator[tuple[int, Flaw]]:
    """Yield a line and an explanation per unresolved name, after the graph with `blocks` is parsed."""
    needs = cache(partial(_needs, blocks))
    defined = {name: line for block in reversed(blocks) for name, line in block.names.items()}
    for count, use in enumerate(unresolved):
        yield use.line, _explain(use, defined, needs, suggest=count < SUGGESTIONS)


def _explain(
    use: Unresolved,
    defined: Mapping[str, int],
    needs: Callable[[], Mapping[str, set[str]]],
    *,
    suggest: bool,
) -> Flaw:
    """Explain an undefined name; with `suggest`, search for the nearest name or a dependency cycle."""
    mark = use.mark
    name = shown(mark.name)
    flaw = partial(Flaw, start=mark.start, width=mark.width, code="undefined")
    later = next((b.names[mark.name] for b in use.block.outwards() if mark.name in b.names), None)
    if later is not None:
        message = f"{name} is used before it is defined at line {later}"
        circle = _cycle(use, needs()) if suggest else []
        if circle:
            names = [*map(shown, circle)]
            if len(names) > _LONGEST_CYCLE:
                names[_LONGEST_CYCLE - 2 : -1] = [f"({len(names) - _LONGEST_CYCLE + 1:,} more)"]
            hint = f"{' needs '.join(names)}; write loops with while and next"
            return flaw(f"cycle: {message}", hint=hint, related=later)
        return flaw(message, hint="statements run from top to bottom: move its definition up", related=later)
    inside = defined.get(mark.name)
    if inside is not None:
        hint = f"it is defined at line {inside}, inside a block: pass it out by yield, next or collect"
        return flaw(f"{name} is not visible here", hint=hint, related=inside)
    visible = [known for block in use.block.outwards() for known in block.names] if suggest else []
    if len(visible) > _NEAR_LIMIT:
        visible = [other for other in visible if abs(len(other) - len(mark.name)) <= 1][-_NEAR_LIMIT:]
    hint = nearest(mark.name, visible, "%") or "define it above, or make it an input of the graph"
    return flaw(f"{name} is not defined", hint=hint)


def _needs(blocks: Sequence[Block]) -> dict[str, set[str]]:
    """Map each value to the names that its statement uses."""
    needs: dict[str, set[str]] = {}
    for block in blocks:
        for node in block.nodes:
            used = _used(node)
            for output in node.outputs:
                needs.setdefault(output.name, set()).update(used)
    return needs


def _cycle(use: Unresolved, needs: Mapping[str, set[str]]) -> list[str]:
    """Return the cycle through which a statement needs its own outputs, its first name repeated; or []."""
    targets = _outputs_around(use)
    came_from: dict[str, str] = {}
    queue = [use.mark.name]
    for name in queue:
        if name in targets:
            names = [name]
            while names[-1] != use.mark.name:
                names.append(came_from[names[-1]])
            return [name, *reversed(names)]
        for needed in sorted(needs.get(name, ())):
            if needed not in came_from and needed != use.mark.name:
                came_from[needed] = name
                queue.append(needed)
    return []


def _outputs_around(use: Unresolved) -> set[str]:
    """Return the outputs of the statement with the use, and of the enclosing if and while statements."""
    pc = use.pc
    found: set[str] = set()
    for block in use.block.outwards():
        if pc < len(block.nodes):
            found.update(value.name for value in block.nodes[pc].outputs if value.name)
        if block.parent is not None:
            pc = int(block.path[-2])
    return found


def _used(node: Node) -> set[str]:
    """Return all names that `node` uses, nested graphs included."""
    read = {name for each in walk_nodes(node) for name in each.inputs if isinstance(name, str)}
    return read | {value.name for _, block in blocks(Graph("", nodes=(node,))) for value in block.outputs}


class Suggestions:
    """Hints for the first unknown names of a text."""

    def __init__(self) -> None:
        self._left = SUGGESTIONS

    def nearest(self, word: str, words: Iterable[str], sigil: str = "") -> str | None:
        """Return ``did you mean ...?``; None if no name is similar, or the maximum is reached."""
        if self._left == 0:
            return None
        self._left -= 1
        return nearest(word, words, sigil)


def backward_signatures(lines: Iterable[BackwardLine], graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """Return the graphs of ``backward`` lines by name, without statements."""
    return {line.name: line.signature(graphs[line.of], {}) for line in lines if line.of in graphs}


def wrong_calls(
    calls: Iterable[WrittenCall],
    graphs: Mapping[str, Graph],
    broken: Container[str],
    suggestions: Suggestions,
    listed: Mapping[str, Listed] = ALL_LISTED,
) -> Iterable[tuple[int, Flaw]]:
    """Yield the invalid calls with their lines; graphs in `broken` had errors themselves."""
    for call in calls:
        mark = call.mark
        graph = graphs.get(mark.name)
        name = f"@{name_text(mark.name)}"
        if graph is None and mark.name not in broken:
            hint = suggestions.nearest(mark.name, graphs, "@") or f"define it: graph {name}() -> () {{"
            message = f"no graph {name}"
            yield call.line, Flaw(message, mark.start, mark.width, hint, code="unknown-graph")
        if graph is None:
            continue
        own = listed.get(mark.name, Listed())
        for number, what in ((own.inputs, "inputs"), (own.outputs, "outputs")):
            if message := _wrong_passing(call, name, number, what):
                yield call.line, Flaw(message, mark.start, mark.width, _PASSED_HINT, code="arity")
        for count, wanted, what in (
            (call.inputs, len(graph.inputs), "input"),
            (call.outputs, len(graph.outputs), "output"),
        ):
            if count is not None and count != wanted:
                message = f"{name} has {counted(wanted, what)}, not {count}"
                hint = _call_hint(call, graph, what)
                yield call.line, Flaw(message, mark.start, mark.width, hint, code="arity")


_PASSED_HINT = "write ... at the end of the list in the call and in the graph, or list all values in both"


def _wrong_passing(call: WrittenCall, name: str, listed: int | None, what: str) -> str:
    """Return what is wrong with the ``...`` of a call; empty if nothing is."""
    ends = what in call.rest
    if listed is None:
        return f"the {what} of {name} do not end in ..." if ends else ""
    if call.outputs is None:
        return f"{name} has ... in its {what}, and this line passes no values under their own names"
    if call.nested:
        return f"{name} has ... in its {what}, and this call is in a nested block"
    return "" if ends else f"the {what} of {name} end in ..."


def _call_hint(call: WrittenCall, graph: Graph, what: str) -> str:
    """Return the hint for a call with another number of operands or results than its graph."""
    name = "@" + name_text(call.mark.name)
    values = ", ".join(shown(value.name) for value in (graph.inputs if what == "input" else graph.outputs))
    if call.outputs is None:
        if not values:
            return f"write {name} steps 1"
        data = ", ".join(f"data({quote(value.name)})" for value in graph.inputs)
        return f"write data for each input: {name} for {values} in {data}"
    if what == "input":
        return f"write one operand for each input: {name}({values})"
    if call.outputs == len(graph.outputs) + 1:
        saved = ", ".join(filter(None, (values, "saved %s")))
        return f"write {values}, _ for an unused output, or {saved} for a backward graph"
    return f"write one name for each output: {values}; _ for an unused output"
