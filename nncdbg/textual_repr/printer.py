"""Print programs as text in canonical form, with the listing of their lines.

`print_program` and the parser are exact inverses. Hiding the locations never moves a line.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from os.path import commonprefix
from typing import Any

from nncdbg.dtypes import COMPLEX, FLOATS, name_of
from nncdbg.escaping import printable
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import defined
from nncdbg.ir.records import (
    Array,
    BackwardLine,
    Constant,
    Graph,
    GroupLine,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Path,
    Placement,
    Program,
    Reference,
    RunLine,
    StateLine,
    Value,
    zeros,
    zeros_like,
)
from nncdbg.ir.walk import blocks
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import ELLIPSIS, NO_PREFIXES, STRING, Prefixes, key_text, name_text, op_text, quote
from nncdbg.text.listing import Line, Lines, Listing, driver_lines
from nncdbg.text.short_names import LONG, folder, folders
from nncdbg.text.torch_names import with_overload, without_overload
from nncdbg.text.types import print_type, value_text
from nncdbg.textual_repr.groups import FoldedGroups, Members, MomentLine
from nncdbg.textual_repr.literals import array_text, attribute_text, literal_text
from nncdbg.textual_repr.passed_values import ALL_LISTED, Listed, listed_values

# -- chosen prefixes -------------------------------------------------------------------------------

_FEW_STATES = 24
"""Maximum number of states before the first graph; more are printed after the graphs, by module."""

_MOST = 64
"""Maximum number of prefixes of a program."""

_LEAST = 100
"""Minimum number of columns that a prefix saves in total."""

_LEAST_EACH = 5
"""Minimum number of columns that a prefix saves in each counted name."""

_LONGEST_LABEL = 16

_WORD = 6
"""Columns of a label for the word that distinguishes equal last components."""


def chosen_prefixes(program: Program) -> dict[str, str]:
    """Return prefixes of long names by their labels, in alphabetical order of the prefixes; often none.

    They depend on the names alone, so a model has the same text in every run.
    """
    uses = Counter(name for name in _used_names(program) if len(name) > LONG)
    prefixes = _best(uses, {f"{state.value.name}." for state in program.states})
    last = {prefix: _last(prefix) for prefix in prefixes}
    words = {prefix: _label_candidates(prefix) for prefix in prefixes}
    labels: dict[str, str] = {}
    for prefix in prefixes:
        label = _wanted(prefix, last, words)
        if label in labels and any(prefix.startswith(other) for other in labels.values()):
            continue  # A shorter prefix says more than a number behind the label.
        numbered = (f"{label}{number}" for number in itertools.count(2))
        labels[next(free for free in itertools.chain([label], numbered) if free not in labels)] = prefix
    return dict(sorted(labels.items(), key=lambda pair: pair[1]))


def _used_names(program: Program) -> Iterator[str]:
    """Yield each name about as often as it occurs in the text, except below the module of its graph."""
    for path, graph in blocks(program.graphs):
        module = NO_PREFIXES.within(str(path[0])).module
        inside = (f"{module}.", f"{module}/")
        for value in defined(graph):
            if not value.name.startswith(inside):
                yield value.name
        for node in graph.nodes:
            for operand in node.inputs:
                if isinstance(operand, str) and not operand.startswith(inside):
                    yield operand


def _best(uses: Counter[str], states: Container[str]) -> list[str]:
    """Return the prefixes, chosen greedily by the additional columns that each saves.

    `states` are the prefixes of the attributes of one state, whose names are better read in full.
    """
    inside: Counter[str] = Counter()
    for name, count in uses.items():
        inside[folder(name)] += count
    below: defaultdict[str, list[str]] = defaultdict(list)
    for innermost in inside:
        for prefix in folders(innermost + "x"):
            if prefix not in states:
                below[prefix].append(innermost)
    for prefix in list(below):
        if len(prefix) * sum(inside[each] for each in below[prefix]) < _LEAST:
            del below[prefix]  # It saves too little in the best case.
    for prefix in sorted(below):
        shorter = prefix.rstrip("/:|.")
        if shorter != prefix and shorter in below:
            # One of `a__` and `a__/` is enough.
            below[shorter].extend(below.pop(prefix))
    saved = dict.fromkeys(inside, 0)
    last = {prefix: _last(prefix) for prefix in below}
    shared = Counter(last.values())
    unlike = {
        (last[prefix], tuple(_label_candidates(prefix))) for prefix in below if shared[last[prefix]] > 1
    }
    same = Counter(name for name, _ in unlike)
    columns = {p: len(p) - len(last[p]) - len("::") - _WORD * (same[last[p]] > 1) for p in below}

    def gain(prefix: str) -> int:
        more = ((inside[each], columns[prefix] - saved[each]) for each in below[prefix])
        return sum(count * each for count, each in more if each >= _LEAST_EACH)

    # The gain of a prefix only decreases as others are chosen, so only the top needs an update.
    waiting = [(-gain(prefix), prefix) for prefix in below]
    heapq.heapify(waiting)
    chosen: list[str] = []
    while waiting and len(chosen) < _MOST:
        prefix = heapq.heappop(waiting)[1]
        now = gain(prefix)
        if waiting and now < -waiting[0][0]:
            heapq.heappush(waiting, (-now, prefix))
            continue
        if now < _LEAST:
            break
        chosen.append(prefix)
        for each in below[prefix]:
            saved[each] = max(saved[each], columns[prefix])
    return chosen


# -- labels ----------------------------------------------------------------------------------------


def _wanted(prefix: str, last: Mapping[str, str], words: Mapping[str, list[str]]) -> str:
    """Return the preferred label of a prefix; `last` and `words` are those of all prefixes."""
    others = [words[other] for other in last if other != prefix and last[other] == last[prefix]]
    if not others:
        return last[prefix]
    shared, word = min((sum(word in other for other in others), word) for word in words[prefix])
    if shared == len(others):
        return last[prefix]
    having = [other for other in words if word in words[other]]
    is_folder = len(having) > 1 and all(other.startswith(prefix) for other in having)
    return word if is_folder else f"{word}.{last[prefix]}"


def _last(prefix: str) -> str:
    """Return the last component of a prefix as a label."""
    return _as_label(prefix[len(folder(prefix.rstrip("/:|._"))) :])


_word = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[^A-Za-z0-9]+[0-9][A-Za-z0-9]*)*")


def _label_candidates(prefix: str) -> list[str]:
    """Return the words of a prefix that are valid labels, each with the number after it."""
    return [_as_label(word) for word in _word.findall(prefix)] or ["p"]


@lru_cache(maxsize=4096)
def _as_label(text: str) -> str:
    """Reduce a text to ASCII words and dots of limited length."""
    words = re.sub(r"[^A-Za-z0-9_]+", ".", text[:_LONGEST_LABEL]).strip("._").lstrip("0123456789._")
    return words or "p"


# -- long lines ------------------------------------------------------------------------------------

COLUMNS = 160
"""Maximum number of columns of a line, unless a single name or literal is longer."""

_FIRST = 40
"""Columns before which the op of a statement begins: longer outputs have a line of their own."""

_INDENT = "    "
"""Additional indentation of the further lines of a statement."""

_before_op = re.compile(rf'(?:[^"=]|{STRING})*? = (?!data\()(?=[@"A-Za-z_][^ ]*\()').match
_ONE_LINE = (Kind.OP, Kind.CALL)

_FLOAT_COLUMNS = 17
"""Maximum number of columns of an f32 with its separator."""

_PER_LINE = 8
"""Number of elements on each line of a long list."""

_WIDE = frozenset(("f64", "str", *COMPLEX))
"""Types with elements of more than 20 columns."""

_piece = re.compile(rf'(?:{STRING}|\[[^\[\]"\s]{{1,60}}\]|[^\s",]|")+,?|,')
_clause = (":", "loc(", "|", "->")


def wrapped(text: str, indent: str = "", located: str = "") -> list[str]:
    """Return the lines of a statement: several, of which all but the first are indented, if it is long.

    `located` is the text with its location, which is not counted, so that it moves no line.
    """
    head = None if " = " in text[: _FIRST - 1 - len(indent)] else _before_op(text)
    apart = head is not None and len(indent) + head.end() >= _FIRST
    if not apart and len(indent) + len(text) <= COLUMNS:
        return [indent + (located or text)]
    place = len(commonprefix((text, located))) if located else -1
    where = located[place : place + len(located) - len(text)] if located else ""
    lines: list[str] = []
    width = 0
    for start, end in itertools.pairwise((0, *_breaks(text), len(text))):
        part = text[start:end].rstrip()
        columns = len(part)
        if start < place <= end:
            part = f"{text[start:place]}{where}{text[place:end]}".rstrip()
        gap = " " if start and text[start - 1].isspace() else ""
        if not lines or width + len(gap) + columns > COLUMNS or (apart and head and start == head.end()):
            lines.append(f"{indent}{_INDENT if lines else ''}{part}")
            width = len(indent) + (len(_INDENT) if len(lines) > 1 else 0) + columns
        else:
            lines[-1] += gap + part
            width += len(gap) + columns
    return lines


def _breaks(text: str) -> Iterator[int]:
    """Yield the positions at which the text may continue on another line."""
    for match in _piece.finditer(text):
        start = match.start()
        before = text[:start].rstrip()
        if before and (before[-1] in ",(=[" or match[0].startswith(_clause)):
            yield start


def _most_columns(node: Node) -> int:
    """Return a number of columns that the op, its arguments and its types surely do not exceed."""
    columns = len(node.op) + 8
    for value in node.outputs:
        columns += 3 if value.type is None else len(print_type(value.type)) + 2
    for operand in node.inputs:
        columns += len(operand) + 5 if isinstance(operand, str) else 24
    for key, attribute in node.attributes.items():
        if isinstance(attribute, str):
            columns += len(key) + 4 * len(attribute) + 5
        elif isinstance(attribute, (bool, int, float)) or (
            isinstance(attribute, tuple) and len(attribute) <= 4
        ):
            columns += len(key) + len(repr(attribute)) + 5
        else:
            return COLUMNS + 1
    return columns


# -- printer ---------------------------------------------------------------------------------------


def print_program(program: Program, *, locations: bool = True) -> str:
    """Return the text of `program`, ending in a newline, without ``loc`` clauses if `locations` is false.

    Names are shortened by the program's prefixes, or by chosen ones if `program.prefixes` is None.
    """
    return _print(program, locations).text()


def brief(program: Program) -> str:
    """Summarize a program in one line: file, signature, number of statements and graphs."""
    entry = program.graphs[program.entry]
    results = _few(map(value_text, entry.outputs))
    signature = f"@{name_text(entry.name)}({_few(map(value_text, entry.inputs))}) -> ({results})"
    title = f"{program.source.replace(chr(92), '/').rpartition('/')[2]}: " if program.source else ""
    count = sum(len(graph.nodes) for _, graph in blocks(program))
    statements = f"{counted(count, 'statement')} in {counted(len(program.graphs), 'graph')}"
    return printable(f"{title}{signature}, {statements}")


_MOST_VALUES = 4
"""Maximum number of inputs, and of outputs, in `brief`."""


def _few(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = [f"{len(listed) - _MOST_VALUES} more"] if len(listed) > _MOST_VALUES else []
    return ", ".join([*listed[:_MOST_VALUES], *more])


def listing(program: Program, *, locations: bool = True) -> Listing:
    """Return the lines of the printed `program`, and the lines of each statement."""
    out = _print(program, locations)
    return Listing(Lines(out.lines), out.statements, out.headers, program.source, out.prefixes, out.wrapped)


def with_graphs(shown: Listing, graphs: Iterable[Graph], title: str) -> Listing:
    """Return a listing with more graphs after its last line, below a comment."""
    out = _Output(False, shown.prefixes)
    out.lines = [*shown.lines, "", f"# {title}"]
    out.statements, out.headers = dict(shown.statements), dict(shown.headers)
    out.wrapped = dict(shown.wrapped)
    for graph in graphs:
        out.lines.append("")
        out.graph(graph)
    return Listing(Lines(out.lines), out.statements, out.headers, shown.file, shown.prefixes, out.wrapped)


NO_INLINE: Mapping[str, Node] = {}


def print_statement(
    node: Node,
    locations: bool = True,
    prefixes: Prefixes = NO_PREFIXES,
    listed: Listed | None = None,
    inline: Mapping[str, Node] = NO_INLINE,
) -> str:
    """Return the line of `node` in the text; for ``if`` and ``while``, the line that opens it.

    `listed` is what the graph that it calls lists: ``...`` stands for the other operands and outputs.
    `inline` are the statements that the line has in the place of operands, by their results.
    """
    where = f" {location_text(node.location, prefixes)}" if locations and node.location is not None else ""
    where += margin_text(node.placement, prefixes)
    kind = node.kind
    if kind is Kind.IF:
        label = _label(node.subgraphs[0])
        return f"if {operand_text(node.inputs[0], prefixes)}{label}{where} {{"
    if kind is Kind.WHILE:
        return f"{_while_text(node, prefixes)}{where} {{"
    if kind is Kind.BREAK:
        return f"break unless {operand_text(node.inputs[0], prefixes)}{where}"
    if kind is Kind.UPDATE:
        states = [operand_text(state.name, prefixes) for state in node.outputs]
        return f"update {_pairs(states, node.inputs, prefixes, inline)}{where}"
    inputs, outputs = (None, None) if listed is None else (listed.inputs, listed.outputs)
    results = _results(node.outputs[:outputs], prefixes)
    if outputs is not None:
        results += f"{', ' if results else ''}{ELLIPSIS}"
    if kind is Kind.CALL and (saved := node.attributes.get("saved")) is not None:
        node = replace(node, attributes={})
        results += f"{', ' if results else ''}saved {operand_text(str(saved), prefixes)}"
    text = _application(node, prefixes, inline, inputs)
    types = _types_behind(node.outputs[:outputs])
    return f"{results} = {text}{types}{where}" if results else f"{text}{where}"


def _results(values: Sequence[Value], prefixes: Prefixes) -> str:
    return ", ".join([f"%{prefixes.spell(value.name)}" if value.name else "_" for value in values])


def _outputs_line(node: Node, prefixes: Prefixes) -> str:
    """Return the first line of a statement that has its outputs on a line of their own."""
    return f"{_results(node.outputs, prefixes)} ="


def _call_line(node: Node, locations: bool, prefixes: Prefixes) -> str:
    """Return the second line of a statement that has its outputs on a line of their own."""
    return print_statement(replace(node, outputs=()), False, prefixes) + (
        _types_behind(node.outputs)
        + (f" {location_text(node.location, prefixes)}" if locations and node.location is not None else "")
    )


def _types_behind(values: Sequence[Value]) -> str:
    """Return `` : f32[2], _``, with ``_`` for an unknown type; empty if all are unknown."""
    if all(value.type is None for value in values):
        return ""
    return f" : {', '.join('_' if value.type is None else print_type(value.type) for value in values)}"


def _application(
    node: Node, prefixes: Prefixes, inline: Mapping[str, Node] = NO_INLINE, count: int | None = None
) -> str:
    """Return the op with its operands, those in `inline` as statements, and its attributes.

    With `count`, only so many operands are written, and ``...`` after them.
    """
    arguments = [_inline_text(operand, prefixes, inline) for operand in node.inputs[:count]]
    if count is not None:
        arguments.append(ELLIPSIS)
    arguments += [
        f"{key_text(key)}={attribute_text(node.attributes[key])}" for key in sorted(node.attributes)
    ]
    op = quote(node.op) if with_overload(node.op) != node.op else op_text(without_overload(node.op))
    return f"{op}({', '.join(arguments)})"


def _inline_text(operand: Operand, prefixes: Prefixes, inline: Mapping[str, Node]) -> str:
    """Return an operand, or the statement in its place."""
    if isinstance(operand, str) and operand in inline:
        return _application(inline[operand], prefixes, inline)
    return operand_text(operand, prefixes)


def _pairs(
    targets: Sequence[str],
    operands: Iterable[Operand],
    prefixes: Prefixes,
    inline: Mapping[str, Node] = NO_INLINE,
) -> str:
    """Return ``%w = %w.1, %m = %m.1``."""
    pairs = zip(targets, operands, strict=True)
    return ", ".join(f"{target} = {_inline_text(operand, prefixes, inline)}" for target, operand in pairs)


def _state_text(state: StateLine, locations: bool, prefixes: Prefixes) -> str:
    first, where = state.first, ""
    if isinstance(first, Node):
        text = _application(first, prefixes, {})
        if locations and first.location is not None:
            where = f" {location_text(first.location, prefixes)}"
        zero = zeros(state.value) if state.of is None else zeros_like(state.value, state.of)
        if first == zero:
            text = "zeros"
    else:
        text = _data_text(first, prefixes, state.value.name)
    belongs = f" for {operand_text(state.of, prefixes)}" if state.of is not None else ""
    return f"{value_text(state.value, prefixes.spell)} = {text}{belongs}{where}"


def _module_of_state(state: StateLine) -> str:
    """Return the module of a state, or of the one that it belongs to."""
    return (state.of or state.value.name).rpartition(".")[0]


def _group_text(line: GroupLine, prefixes: Prefixes) -> str:
    members = ", ".join(operand_text(name, prefixes) for name in line.members)
    return f"group {operand_text(line.name, prefixes)} = {members or f'%{name_text(line.prefix)}*'}"


def _moments_text(line: MomentLine, prefixes: Prefixes) -> str:
    names = ", ".join(operand_text(group.name, prefixes) for group in line.groups)
    return f"states {names} = zeros for {operand_text(line.of, prefixes)}"


def _statement_text(node: Node, grads: str | None, locations: bool, prefixes: Prefixes) -> str:
    """Return the line of a statement; with `grads`, of a call with all of its results as this group."""
    if grads is None:
        return print_statement(node, locations, prefixes)
    call = print_statement(replace(node, outputs=()), locations, prefixes)
    return f"grads {operand_text(grads, prefixes)} = {call}"


def _backward_text(line: BackwardLine, prefixes: Prefixes, names: Sequence[str]) -> str:
    by = ", ".join(operand_text(name, prefixes) for name in names)
    kept = f" checkpoints {line.checkpoints}" if line.checkpoints is not None else ""
    return f"backward @{name_text(line.name)} of @{name_text(line.of)} by ({by}){kept}"


def run_text(run: RunLine, prefixes: Prefixes, word: str = "run") -> str:
    """Return a ``run`` line, without its evaluations; with `word`, an ``evaluate`` line."""
    text = f"{word} @{name_text(run.graph)}"
    if run.values:
        text += f" for {', '.join(operand_text(name, prefixes) for name in run.values)}"
    if run.sources:
        text += f" in {', '.join(_data_text(each, prefixes) for each in run.sources)}"
    numbers = {"batch": run.batch, "epochs": run.epochs if run.epochs > 1 else None}
    numbers |= {"shuffle": run.shuffle, "steps": run.steps}
    text += "".join(f" {word} {number}" for word, number in numbers.items() if number is not None)
    return f"{text} drop_last" if run.drop_last else text


def operand_text(operand: Operand, prefixes: Prefixes = NO_PREFIXES) -> str:
    """Return ``%name``, a literal, or ``_``."""
    if operand is None:
        return "_"
    if isinstance(operand, Literal):
        return literal_text(operand.data)
    return "%" + prefixes.spell(operand)


def location_text(location: Location, prefixes: Prefixes = NO_PREFIXES) -> str:
    """Return ``loc("net.py":12, node "conv1", from "main.py":3)``; any part may be missing."""
    parts = []
    if location.file is not None or location.line is not None:
        file = "" if location.file is None else quote(location.file)
        parts.append(file if location.line is None else f"{file}:{location.line}")
    if location.name is not None:
        parts.append(f"node {prefixes.spell_string(location.name)}")
    parts += [f"from {quote(file)}:{line}" for file, line in location.stack]
    return f"loc({', '.join(parts)})"


def margin_text(placement: Placement | None, prefixes: Prefixes = NO_PREFIXES) -> str:
    """Return the margin `` | s2 wait e5 record e9``, empty without a placement."""
    if placement is None:
        return ""
    logical = placement.logical or (None,) * (1 + len(placement.begins))
    parts = ["host" if placement.stream is None else _stream(placement.stream, logical[0])]
    parts += _numbers("wait", "e", placement.waits)
    if placement.begins:
        parts.append(" ".join(["begin", *map(_stream, placement.begins, logical[1:])]))
    parts += [] if placement.workspace is None else [f"workspace {placement.workspace}"]
    parts += _numbers("record", "e", placement.records)
    if placement.frees:
        parts.append(" ".join(["free", *(operand_text(name, prefixes) for name in placement.frees)]))
    return f" | {' '.join(parts)}"


def _stream(number: int, logical: int | None) -> str:
    """Return ``s4``, or ``s3->4`` for one with a logical number."""
    return f"s{number}" if logical is None else f"s{logical}->{number}"


def _numbers(word: str, letter: str, numbers: tuple[int, ...]) -> list[str]:
    return [" ".join([word, *(f"{letter}{number}" for number in numbers)])] if numbers else []


def _label(graph: Graph) -> str:
    return f" @{name_text(graph.name)}" if graph.name else ""


def _values_text(values: Sequence[Value], prefixes: Prefixes, count: int | None = None) -> str:
    texts = [value_text(value, prefixes.spell) for value in values[:count]]
    return ", ".join(texts if count is None else [*texts, ELLIPSIS])


def _while_text(node: Node, prefixes: Prefixes) -> str:
    body = node.subgraphs[0]
    times, *initial = node.inputs
    counter, *carried = body.inputs
    targets = [value_text(value, prefixes.spell) for value in carried]
    text = f"while{_label(body)} ({_pairs(targets, initial, prefixes)})"
    if counter != Value(""):
        text += f" count {value_text(counter, prefixes.spell)}"
    return text if times is None else f"{text} times {operand_text(times, prefixes)}"


def _results_text(node: Node, prefixes: Prefixes) -> str:
    """Return the text after ``} ->``."""
    if node.kind is Kind.IF:
        return _values_text(node.outputs, prefixes)
    carried = node.subgraphs[0].inputs[1:]
    sources = [operand_text(value.name, prefixes) for value in carried]
    sources += [f"collect[{index}]" for index in range(len(node.outputs) - len(carried))]
    pairs = zip(node.outputs, sources, strict=True)
    return ", ".join(
        f"{value_text(value, prefixes.spell)} = {source}" for value, source in pairs if value != Value("")
    )


def _names(values: tuple[Value, ...], prefixes: Prefixes, count: int | None = None) -> str:
    names = [operand_text(value.name, prefixes) for value in values[:count]]
    return ", ".join(names if count is None else [*names, ELLIPSIS])


def _terminator_text(graph: Graph, node: Node | None, prefixes: Prefixes, count: int | None) -> str:
    """Return the last line of a block; `node` is the statement that contains the block.

    `count` is the number of outputs of a graph before its ``...``.
    """
    margin = margin_text(graph.end, prefixes)
    if node is None:
        return f"return {_names(graph.outputs, prefixes, count)}".rstrip() + margin
    if node.kind is Kind.IF:
        return f"yield {_names(graph.outputs, prefixes)}".rstrip() + margin
    carried = graph.inputs[1:]
    after, collected = graph.outputs[: len(carried)], graph.outputs[len(carried) :]
    targets = [operand_text(value.name, prefixes) for value in carried]
    text = f"next {_pairs(targets, [value.name for value in after], prefixes)}".rstrip()
    return (f"{text} collect {_names(collected, prefixes)}" if collected else text) + margin


def _constant_text(constant: Constant, prefixes: Prefixes) -> str:
    text = _data_text(constant.data, prefixes, constant.value.name)
    return f"{value_text(constant.value, prefixes.spell)} = {text}"


def _array_head(constant: Constant, prefixes: Prefixes) -> str:
    """Return the first line of an array that has lines of its own."""
    return f"{value_text(constant.value, prefixes.spell)} ="


def _array_line(array: Array, first: int) -> str:
    """Return the line with the elements from number `first` on, with the brackets around them."""
    sizes = list(itertools.accumulate(reversed(array.shape), int.__mul__))
    texts = []
    for at in range(first, min(first + _PER_LINE, array.size)):
        opened = "[" * sum(at % size == 0 for size in sizes)
        closed = "]" * sum((at + 1) % size == 0 for size in sizes)
        texts.append(f"{opened}{array_text(array.reshape(-1)[at])}{closed}")
    return ", ".join(texts) + ("" if first + _PER_LINE >= array.size else ",")


def _data_text(data: Inline | Reference, prefixes: Prefixes, name: str | None = None) -> str:
    """Return a literal, ``data("key")``, or ``data`` for the key `name`."""
    if data == Reference(name or ""):
        return "data"
    if isinstance(data, Inline):
        return array_text(data.array)
    store = f", store={data.store}" if data.store else ""
    return f"data({prefixes.spell_string(data.key)}{store})"


def _print(program: Program, locations: bool) -> _Output:
    listed = listed_values(program)
    declared = chosen_prefixes(program) if program.prefixes is None else program.prefixes
    out = _Output(locations, Prefixes(declared), listed)
    out.head(program)
    others = (graph for name, graph in program.graphs.items() if name != program.entry)
    for graph in (program.graphs[program.entry], *others):
        out.lines.append("")
        out.graph(graph)
    out.runs(program)
    return out


@dataclass
class _Open:
    """A graph that is being printed: the position in it, and the statement that contains it."""

    graph: Graph
    path: Path
    node: Node | None
    pc: int = 0
    lines: list[int] = field(default_factory=list)
    groups: ChainMap[str, Members] = field(default_factory=ChainMap)
    """The groups that the statements so far define."""


class _Output:
    """The lines so far. Nested graphs are kept on an explicit stack, so depth is unlimited."""

    def __init__(
        self, locations: bool, prefixes: Prefixes, listed: Mapping[str, Listed] = ALL_LISTED
    ) -> None:
        self.locations = locations
        self.listed = listed
        self.prefixes = prefixes
        self.lines: list[Line] = []
        self.statements: dict[Path, tuple[int, ...]] = {}
        self.headers: dict[Path, int] = {}
        self.state_lines: dict[str, int] = {}
        self.stack: list[_Open] = []
        self.wrapped: dict[int, int] = {}
        self.indent = ""
        self.own = prefixes
        """The prefixes with the module of the graph that is being printed."""
        self.groups = FoldedGroups(Program({}, ""))

    def text(self) -> str:
        return "\n".join(Lines(self.lines)) + "\n"

    def head(self, program: Program) -> None:
        self.lines.append("#nncdbg 1")
        for domain, version in sorted(program.opsets.items()):
            self.lines.append(f"opset {f'{key_text(domain)} ' if domain else ''}{version}")
        self.lines.extend(f"store {quote(store)}" for store in program.stores)
        self.lines.extend(f"stream s{stream} {quote(program.streams[stream])}" for stream in program.streams)
        self.lines.extend(f"prefix {label} {quote(text)}" for label, text in self.prefixes.declared.items())
        self.groups = FoldedGroups(program)
        if not self.states_behind(program):
            self.lines += [""] * bool(program.states)
            self.states(self.groups.head(), "state ")

    def states(self, lines: Iterable[StateLine | GroupLine | MomentLine], word: str = "") -> None:
        """Print states and groups; `word` is the first word of a state."""
        for line in lines:
            if isinstance(line, MomentLine):
                self.comment(line.groups[0].comment, "##")
                number = self.put_wrapped(_moments_text(line, self.own))
                self.state_lines.update({state.value.name: number for state in line.states})
                continue
            self.comment(line.comment, "##")
            if isinstance(line, GroupLine):
                self.put_wrapped(_group_text(line, self.own))
                continue
            text = word + _state_text(line, False, self.own)
            located = word + _state_text(line, True, self.own) if self.locations else ""
            self.state_lines[line.value.name] = self.put_wrapped(text, located)

    def states_behind(self, program: Program) -> bool:
        """Return whether the states are printed after the graphs: groups of states are before them."""
        return len(program.states) > _FEW_STATES and not program.groups

    def state_blocks(self, states: Sequence[StateLine]) -> None:
        """Print the states in one block per module and stretch of states."""
        for module, own in itertools.groupby(states, _module_of_state):
            self.lines += ["", f"states {name_text(module)} {{" if module else "states {"]
            self.own = self.prefixes.within(module)
            self.indent = "  "
            self.states(own)
            self.indent = ""
            self.lines.append("}")
        self.own = self.prefixes

    def runs(self, program: Program) -> None:
        """Print the ``backward`` lines, the runs and many states, and add the lines of the driver."""
        if program.backwards:
            self.lines.append("")
        for line in program.backwards:
            self.comment(line.comment, "##")
            self.put(_backward_text(line, self.prefixes, self.groups.names(line.by)))
        if program.runs:
            self.lines.append("")
        lines = []
        for run in program.runs:
            lines.append([self.run(run, "run"), *(self.run(line, "evaluate") for line in run.evaluations)])
        if self.states_behind(program):
            self.state_blocks(program.states)
        statements, headers = driver_lines(program, self.state_lines, lines, self.headers)
        self.statements.update(statements)
        self.headers.update(headers)

    def run(self, line: RunLine, word: str) -> int:
        """Print a ``run`` or ``evaluate`` line with its tracks; return its number."""
        self.comment(line.comment, "##")
        number = self.put_later(run_text, line, self.prefixes, word)
        for track in line.tracks:
            self.comment(track.comment, "##")
            self.put(f"track {name_text(track.name)} = {track.expression}")
        return number

    def graph(self, graph: Graph) -> None:
        self.own = self.prefixes.within(graph.name)
        listed = self.listed.get(graph.name, Listed())
        inputs = _values_text(graph.inputs, self.own, listed.inputs)
        outputs = _values_text(graph.outputs, self.own, listed.outputs)
        self.comment(graph.comment, "##")
        margin = margin_text(graph.begin, self.own)
        line = self.put_wrapped(f"graph @{name_text(graph.name)}({inputs}) -> ({outputs}){margin} {{")
        self.groups.enter(graph)
        self.open(graph, (graph.name,), None, line)
        while self.stack:
            self.advance(self.stack[-1])

    def put(self, text: str) -> int:
        """Add a line, indented by the depth of the stack; return its number."""
        return self.put_later(str, text)

    def put_wrapped(self, text: str, located: str = "") -> int:
        """Add a statement on as many lines as it needs; return the number of the first.

        `located` is its text with its location.
        """
        lines = wrapped(text, self.indent or "  " * len(self.stack), located)
        self.lines.extend(lines)
        first = len(self.lines) - len(lines) + 1
        self.wrapped.update(dict.fromkeys(range(first + 1, first + len(lines)), first))
        return first

    def put_statement(self, node: Node) -> int:
        """Add a statement; if it surely fits one line, or two, they are written on first access."""
        listed = self.listed.get(node.called or "")
        indent = 2 * len(self.stack)
        if (
            listed is None
            and node.kind in _ONE_LINE
            and node.placement is None
            and "saved" not in node.attributes
        ):
            call = _most_columns(node)
            front = indent + sum(len(value.name) + 5 for value in node.outputs) + 1
            if front >= _FIRST:
                front = indent + len(_results(node.outputs, self.own)) + 3
            if front < _FIRST and front + call <= COLUMNS:
                return self.put_later(print_statement, node, self.locations, self.own)
            if _FIRST <= front <= COLUMNS and indent + len(_INDENT) + call <= COLUMNS:
                first = self.put_later(_outputs_line, node, self.own)
                self.lines.append((" " * indent + _INDENT, _call_line, (node, self.locations, self.own)))
                self.wrapped[first + 1] = first
                return first
        return self.put_located(node, lambda locations: print_statement(node, locations, self.own, listed))

    def put_located(self, node: Node, write: Callable[[bool], str]) -> int:
        """Add a statement that `write` makes with or without its location."""
        shown = self.locations and node.location is not None
        return self.put_wrapped(write(False), write(True) if shown else "")

    def put_constant(self, constant: Constant) -> None:
        """Add a constant; a long list of numbers has lines of eight."""
        data = constant.data
        if not isinstance(data, Inline):
            self.put_later(_constant_text, constant, self.own)
            return
        array = data.array
        is_float = name_of(array.dtype) in FLOATS and array.itemsize <= 4
        columns = len(constant.value.name) + 30 + _FLOAT_COLUMNS * array.size
        if array.size == 1 or (is_float and columns <= COLUMNS):
            self.put_later(_constant_text, constant, self.own)
        elif (
            array.size
            and array.ndim
            and name_of(array.dtype) not in _WIDE
            and (is_float or array.size > _PER_LINE)
        ):
            first = self.put_later(_array_head, constant, self.own)
            for at in range(0, array.size, _PER_LINE):
                self.lines.append(("  " * len(self.stack) + _INDENT, _array_line, (array, at)))
                self.wrapped[len(self.lines)] = first
        else:
            self.put_wrapped(_constant_text(constant, self.own))

    def put_later(self, write: Callable[..., str], *arguments: Any) -> int:
        """Add a line that `write` makes from the arguments on first access; return its number."""
        self.lines.append((self.indent or "  " * len(self.stack), write, arguments))
        return len(self.lines)

    def comment(self, text: str, prefix: str) -> None:
        """Add ``##`` lines; text with control characters, which could break the line, is quoted."""
        for line in text.split("\n") if text else ():
            plain = all(char.isprintable() or char == "\t" for char in line)
            self.put(f"{prefix} {line}" if line and plain else prefix + (quote(line) if line else ""))

    def open(self, graph: Graph, path: Path, node: Node | None, line: int) -> None:
        self.headers[path] = line
        groups = self.stack[-1].groups.new_child() if self.stack else ChainMap[str, Members]()
        self.stack.append(_Open(graph, path, node, groups=groups))
        if node is not None:
            self.comment(graph.comment, "##!")
        for constant in graph.constants:
            self.put_constant(constant)

    def advance(self, block: _Open) -> None:
        """Print the next statement of the innermost block, or close the block."""
        if block.pc == len(block.graph.nodes):
            count = self.listed.get(block.graph.name, Listed()).outputs
            arguments = (block.graph, block.node, self.own, count)
            names = sum(len(value.name) + 5 for value in block.graph.outputs)
            if block.node is None and block.graph.end is None and names + 9 <= COLUMNS:
                block.lines.append(self.put_later(_terminator_text, *arguments))
            else:
                block.lines.append(self.put_wrapped(_terminator_text(*arguments)))
            self.close(block)
            return
        node = block.graph.nodes[block.pc]
        self.comment(node.comment, "##")
        if node.kind in (Kind.IF, Kind.WHILE):
            line = self.put_statement(node)
            block.lines.append(line)
            self.open(node.subgraphs[0], (*block.path, block.pc, 0), node, line)
        elif node.inline and (inline := self.groups.inline_run(block.graph.nodes, block.pc)):
            host = block.graph.nodes[block.pc + len(inline)]
            if host.kind is Kind.UPDATE:
                host = self.groups.update(host, block.groups)
            number = self.put_located(
                host, lambda locations: print_statement(host, locations, self.own, None, inline)
            )
            block.lines += [number] * (len(inline) + 1)
            block.pc += len(inline) + 1
        elif self.groups.active:
            folded, count, grads = self.groups.folded(block.graph.nodes, block.pc, block.groups)
            number = self.put_located(
                folded, lambda locations: _statement_text(folded, grads, locations, self.own)
            )
            block.lines += [number] * count
            block.pc += count
        else:
            block.lines.append(self.put_statement(node))
            block.pc += 1

    def close(self, block: _Open) -> None:
        self.statements[block.path] = tuple(block.lines)
        self.stack.pop()
        node = block.node
        if node is None:
            self.put("}")
            return
        *outer, index = block.path
        if node.kind is Kind.IF and index == 0:
            line = self.put(f"}} else{_label(node.subgraphs[1])} {{")
            self.open(node.subgraphs[1], (*outer, 1), node, line)
            return
        self.put_wrapped(f"}} -> ({_results_text(node, self.own)})")
        self.stack[-1].pc += 1
