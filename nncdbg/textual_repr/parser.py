"""Parse program text to a Program; all errors of a file are found in one pass and raised together.

A line is a statement, so a line that fails is reported and skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from nncdbg.errors import ParseError, UsageError
from nncdbg.ir.kinds import called_graph
from nncdbg.ir.names import all_defined, defined
from nncdbg.ir.records import (
    Graph,
    GroupLine,
    Inline,
    Location,
    Node,
    Program,
    Reference,
    RunLine,
    StateLine,
    TensorType,
    Value,
    zeros,
    zeros_like,
)
from nncdbg.process.collector import collector_paused
from nncdbg.text.lexemes import (
    BARE,
    LOCAL,
    NO_PREFIXES,
    OP,
    PREFIX_END,
    RESERVED,
    REST,
    STRING,
    Flaw,
    Prefixes,
    UndeclaredPrefix,
    name_text,
    nearest,
    quote,
)
from nncdbg.text.listing import Listing, driver_lines
from nncdbg.text.torch_names import with_overload
from nncdbg.text.types import parse_type
from nncdbg.textual_repr import statements as read
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.groups import GROUP, each_member, key_of, moment_name, states_of
from nncdbg.textual_repr.passed_values import PassedValues
from nncdbg.textual_repr.repairs import form_of
from nncdbg.textual_repr.resolution import (
    Block,
    Suggestions,
    WrittenCall,
    WrittenTrack,
    backward_signatures,
    shown,
    wrong_calls,
    wrong_tracks,
)
from nncdbg.textual_repr.statement_lines import StatementLines, salvaged
from nncdbg.textual_repr.statements import Names, NameSpan, attributes_of

# -- plain lines -----------------------------------------------------------------------------------
# Fast path for the most common line, ``%y = Op(%x, %w, name=value) : f32[2] loc("net.py":12)``: one regular
# expression matches the whole line. Lines that do not match, or contain an error, are left to the full
# parser, which produces the same nodes for the same lines.

SEPARATOR = ", %"
"""The separator of operand names."""

_NAME = rf"(?:{BARE}(?:{PREFIX_END}{REST})?|{LOCAL})"
_NODE = rf'"[^"\\]*"|{BARE}{PREFIX_END}{REST}'
_TYPE = r"[a-z][a-z0-9]*\[[^\]\"]*\]"
_match_plain = re.compile(
    rf"[ \t]*%({_NAME})(?:: ({_TYPE}))? = ({OP})\("
    rf"%({_NAME}(?:, %{_NAME})*)(?:, ({OP}=[^\"()#%]+))?\)(?: : ({_TYPE}))?"
    rf'(?: loc\((?:"([^"\\]*)":([0-9]{{1,9}})(?:, node ({_NODE}))?|node ({_NODE}))\))?'
).fullmatch


def plain_statement(
    line: str, prefixes: Prefixes = NO_PREFIXES
) -> tuple[Node, tuple[str, ...], re.Match[str]] | None:
    """Return the statement of a plain line, its operands and its match; None for the full parser.

    Group 1 of the match is the output, group 3 the op, group 4 the operands from the first name to the
    last.
    """
    match = _match_plain(line)
    if match is None:
        return None
    name, front, op, operand_text, attribute_text, behind, file, number, node, only_node = match.groups()
    if op in RESERVED or (front and behind):
        return None
    type_text = front or behind
    operands = tuple(operand_text.split(SEPARATOR))
    try:
        if PREFIX_END in line or "%." in line:
            name = prefixes.full(name)
            operands = tuple(map(prefixes.full, operands))
        type = parse_type(type_text) if type_text else None
        attributes = attributes_of(attribute_text).copy() if attribute_text else {}
        location = (
            Location(file, int(number), _node_name(node, prefixes))
            if number
            else Location(None, None, _node_name(only_node, prefixes))
            if only_node
            else None
        )
    except (Flaw, UndeclaredPrefix):
        return None
    op = with_overload(op) if "." in op else op
    return Node(op, operands, (Value(name, type),), attributes, (), location), operands, match


_open_end = re.compile(r"[,(\[=][ \t\r]*\Z").search
_wrapped_start = re.compile(r"[ \t]*(?::|loc\(|\||\)|->|\{)").match


def last_line(lines: Sequence[str], first: int) -> int:
    """Return the index of the last line of the statement that begins at `first`.

    The next line continues a statement if it is indented deeper, and the statement is incomplete: a line
    ends with a comma, an equals sign or an open bracket, or the next begins with a clause, as ``: f32[2]``.
    """
    last, indent = first, -1
    while last + 1 < len(lines):
        line, after = lines[last], lines[last + 1]
        if _open_end(line) is None and _wrapped_start(after) is None:
            break
        if indent < 0:
            if line.lstrip().startswith("#"):
                break
            indent = len(line) - len(line.lstrip())
        if len(after) - len(after.lstrip()) <= indent or after.lstrip().startswith("#"):
            break
        last += 1
    return last


def _node_name(spelled: str | None, prefixes: Prefixes) -> str | None:
    return spelled if spelled is None else spelled[1:-1] if spelled[0] == '"' else prefixes.full(spelled)


def read_plain(
    lines: Sequence[str],
    index: int,
    block: Block,
    prefixes: Prefixes = NO_PREFIXES,
    states: Container[str] = (),
) -> int:
    """Append to `block` the plain statements from ``lines[index]`` on; return the index of the next line.

    Stops before a line of any other form, and before a line with names that are not in order.  `states` are
    the names of the states, which every statement may read.
    """
    names = block.names
    add_node = block.nodes.append
    add_line = block.lines.append
    nested = block.parent is not None
    for at in range(index, len(lines)):
        found = plain_statement(lines[at], prefixes)
        if found is None or (at + 1 < len(lines) and _wrapped_start(lines[at + 1]) is not None):
            return at
        node, operands, _ = found
        name = node.outputs[0].name
        if name in names or name in states or (nested and block.sees(name)):
            return at
        for operand in operands:
            if operand not in names and operand not in states and not (nested and block.sees(operand)):
                return at
        names[name] = at + 1
        add_node(node)
        add_line(at + 1)
    return len(lines)


# -- lines outside graphs --------------------------------------------------------------------------


class ProgramLines(StatementLines):
    """Reads the lines outside graphs."""

    def before_graphs(self, word: str) -> None:
        if self.graph_lines or self.block is not None:
            raise Flaw(f"{word} must be before the first graph", 0, len(word), "move this line to the top")

    def opset(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("opset")
        start = cursor.blank()
        domain = "" if cursor.line[start : start + 1].isdecimal() else cursor.op()
        version = cursor.integer()
        cursor.end()
        if domain in self.opsets:
            raise cursor.flaw_from(start, "this domain has two opset lines", "remove one")
        self.opsets[domain] = version

    def store(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("store")
        path = cursor.string()
        cursor.end()
        self.stores.append(path)

    def prefix(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("prefix")
        start = cursor.blank()
        label = cursor.label()
        if self.prefixes is NO_PREFIXES:
            self.prefixes = Prefixes({})
        declared = self.prefixes.declared
        if label in declared:
            hint = f"it is {quote(declared[label])}; choose another label"
            raise cursor.flaw_from(start, f"the prefix {label} is declared twice", hint, code="redefined")
        # Declare the label even if the rest of the line is wrong, so that its uses are not reported too.
        declared[label] = label
        place = cursor.blank()
        text = cursor.string()
        cursor.end()
        if not text:
            raise Flaw("the prefix is empty", place, 2, form_of(cursor.line))
        declared[label] = text

    def stream(self, cursor: Cursor, number: int) -> None:
        """Parse ``stream s2 "cuda:0"``."""
        self.before_graphs("stream")
        start = cursor.blank()
        stream = cursor.numbered("s")
        width = cursor.position - start
        device = cursor.string()
        cursor.end()
        if stream in self.streams:
            message = f"the stream s{stream} is declared twice"
            raise Flaw(message, start, width, "remove one", code="redefined")
        self.streams[stream] = device

    # -- states and runs -----------------------------------------------------------------------

    def state(self, cursor: Cursor, number: int) -> None:
        """Parse ``state %w: f32[4] = Op(...)``, or with a literal, ``data("key")`` or ``zeros for %v``."""
        if self.block is not None:
            raise cursor.whole("state inside a block", "move the line before the first graph")
        names = Names()
        value = read.definition(cursor, names)
        if cursor.flaws:
            self.define(names, number)
            return
        if not value.name or not isinstance(value.type, TensorType):
            raise cursor.flaw("a state needs a name and a tensor type")
        cursor.expect("=")
        first = self.first_value(cursor, value, names)
        of = None
        if cursor.accept_word("for"):
            of = read.use(cursor, names)
            if first is None:
                first = zeros_like(value, of)
        if first is None:
            first = zeros(value)
        if first is None:
            hint = "write a tensor of numbers with its sizes, such as f32[4], or zeros for %w"
            raise cursor.flaw(f"zeros cannot make a {value.type}", hint)
        location = cursor.location()
        cursor.end()
        if isinstance(first, Node):
            first = replace(first, location=location)
        self.resolve(names, number)
        self.states.append(StateLine(value, first, of, self.take_comment()))
        self.define(names, number)

    def states_line(self, cursor: Cursor, number: int) -> None:
        """Parse ``states layers.0 {``, the begin of a module's states, or ``states %m = zeros for %w``."""
        if cursor.at("%"):
            self.moments(cursor, number)
            return
        if self.block is not None:
            raise cursor.whole("states inside a block", "move the block before or after the graphs")
        module = "" if cursor.at("{") else cursor.bare_or_quoted()
        self.in_states = number
        self.prefixes = self.prefixes.within(module)
        cursor.expect("{")
        cursor.end()

    def group(self, cursor: Cursor, number: int) -> None:
        """Parse ``group %params = %w, %b`` or ``group %params = %encoder.*``."""
        self.before_graphs("group")
        line, names = read.group_line(cursor)
        cursor.end()
        self.check_group(names, line.prefix)
        states = states_of(line, self.owners(), self.groups)
        self.add_group(replace(line, comment=self.take_comment()), states, names.defines[0])

    def check_group(self, names: Names, prefix: str = "") -> None:
        """Raise Flaw for a member that is no state, or a prefix of none."""
        for mark in names.uses:
            if prefix and not any(name.startswith(prefix) for name in self.state_lines):
                words = nearest(prefix.rstrip("."), {name.split(".")[0] for name in self.state_lines}, "%")
                message = f"no state above starts with {name_text(prefix)}"
                raise Flaw(message, mark.start, mark.width + 1, words or "declare the states above this line")
            if not prefix and mark.name not in self.state_lines and mark.name not in self.groups:
                words = nearest(mark.name, [*self.state_lines, *self.groups], "%")
                message = f"{shown(mark.name)} is neither a state nor a group"
                hint = words or "a group can use only the states and groups above it"
                raise Flaw(message, mark.start, mark.width, hint, code="undefined")

    def add_group(self, line: GroupLine, states: Sequence[str], mark: NameSpan) -> None:
        """Declare a group of these states."""
        owners = self.owners()
        members: dict[str, str] = {}
        for state in states:
            other = members.setdefault(key_of(state, owners), state)
            if other != state or len({*states}) < len(states):
                message = f"{shown(line.name)} has two states of {shown(key_of(state, owners))}"
                raise Flaw(message, mark.start, mark.width, f"remove {shown(state)} or {shown(other)}")
        if not members:
            raise Flaw(f"{shown(line.name)} has no member", mark.start, mark.width, form_of("group"))
        if mark.name in self.state_lines or mark.name in self.groups:
            message = f"{shown(mark.name)} is defined twice"
            raise Flaw(message, mark.start, mark.width, "choose another name", code="redefined")
        self.groups[line.name] = members
        self.group_lines.append(line)

    def moments(self, cursor: Cursor, number: int) -> None:
        """Parse ``states %m, %v = zeros for %params``: a state for each member of a group, for each name."""
        self.before_graphs("states")
        names, marks = Names(), []

        def name() -> None:
            start = cursor.blank()
            marks.append(NameSpan(cursor.name("%"), start, cursor.position - start))

        cursor.items(name)
        cursor.expect("=")
        if not cursor.accept_word("zeros"):
            raise cursor.flaw("expected `zeros`")
        if not cursor.accept_word("for"):
            raise cursor.flaw("expected `for`")
        of = read.use(cursor, names)
        cursor.end()
        self.check_group(names)
        if of not in self.groups:
            (place,) = names.uses
            hint = f"write state {shown(marks[0].name)}: ... = zeros for {shown(of)}, or name a group"
            raise Flaw(f"{shown(of)} is one state", place.start, place.width, hint, code=GROUP)
        types = {state.value.name: state.value.type for state in self.states}
        comment = self.take_comment()
        for mark in marks:
            made = {moment_name(state, mark.name): state for state in self.groups[of].values()}
            self.define(Names(defines=[NameSpan(each, mark.start, mark.width) for each in made]), number)
            for each, state in made.items():
                value = Value(each, types[state])
                self.states.append(StateLine(value, zeros_like(value, state), state))
            self.add_group(GroupLine(mark.name, tuple(made), comment=comment), [*made], mark)
            comment = ""

    def first_value(self, cursor: Cursor, value: Value, names: Names) -> Node | Inline | Reference | None:
        """Parse the first value of a state; None for ``zeros``, which needs the state after ``for``."""
        start = cursor.blank()
        if cursor.accept_word("zeros"):
            return None
        if cursor.peek_word() == "data":
            return read.reference(cursor, value.name)
        if not read.at_call(cursor):
            assert isinstance(value.type, TensorType)
            return Inline(cursor.array(value.type))
        op = read.op_name(cursor)
        if called_graph(op) is not None:
            raise Flaw("a graph cannot compute a state", start, len(op), "write the op itself, or a literal")
        cursor.expect("(")
        operands, attributes = read.arguments(cursor, names)
        return Node(op, operands, (value,), attributes)

    def run(self, cursor: Cursor, number: int) -> None:
        """Parse ``run @train for %x, %t in data("x"), data("t") batch 32 epochs 10``."""
        if self.block is not None:
            raise cursor.whole("run inside a block", "write the line after the graphs")
        self.runs.append(self.called(cursor, number, read.RUN_NUMBERS))
        self.run_lines.append([number])

    def evaluate(self, cursor: Cursor, number: int) -> None:
        """Parse ``evaluate @accuracy for %x, %t in data("test_x"), data("test_t") batch 100``."""
        if not self.runs or self.block is not None:
            hint = "write the line after the `run` line that it evaluates"
            raise cursor.whole("evaluate without a run", hint)
        line = self.called(cursor, number, read.EVALUATE_NUMBERS)
        self.runs[-1] = replace(self.runs[-1], evaluations=(*self.runs[-1].evaluations, line))
        self.run_lines[-1].append(number)

    def track(self, cursor: Cursor, number: int) -> None:
        """Parse ``track accuracy = mean(argmax(%y, 1) == %t)``, which belongs to the line before it."""
        if not self.runs or self.block is not None:
            raise cursor.whole("track without a run", "write the line after a `run` or `evaluate` line")
        start = cursor.blank()
        line, column = read.track_line(cursor)
        cursor.end()
        self.tracks.append(WrittenTrack(number, column, line.expression))
        run = self.runs[-1]
        *before, last = run, *run.evaluations
        where = "evaluate" if before else "run"
        lines = [own for other in self.runs for own in (other.evaluations if before else (other,))]
        if any(track.name == line.name for own in lines for track in own.tracks):
            message = f"two tracks of `{where}` lines are named {name_text(line.name)}"
            raise Flaw(message, start, len(name_text(line.name)), "choose another name", code="redefined")
        last = replace(last, tracks=(*last.tracks, replace(line, comment=self.take_comment())))
        self.runs[-1] = replace(run, evaluations=(*before[1:], last)) if before else last

    def called(self, cursor: Cursor, number: int, least: Mapping[str, int]) -> RunLine:
        """Read the rest of a line that calls a graph for batches, and register the call."""
        start = cursor.blank()
        line = read.run_line(cursor, least)
        cursor.end()
        mark = NameSpan(line.graph, start, len(cursor.line[start:].split(" ")[0]))
        self.calls.append(WrittenCall(mark, number, len(line.values), None))
        return replace(line, comment=self.take_comment())

    def backward(self, cursor: Cursor, number: int) -> None:
        """Parse ``backward @loss.backward of @loss by (%w, %x)``."""
        if self.block is not None:
            raise cursor.whole("backward inside a block", "write the line between the graphs")
        line, mark = read.backward_line(cursor)
        cursor.end()
        if line.name in self.graphs or any(line.name == other.name for other in self.backwards):
            message = f"two graphs are named @{name_text(line.name)}"
            raise Flaw(message, mark.start, mark.width, "choose another name", code="redefined")
        self.calls.append(WrittenCall(mark, number, None, None))
        self.backwards.append(
            replace(line, by=each_member(line.by, self.groups), comment=self.take_comment())
        )


# -- parser ----------------------------------------------------------------------------------------

VERSION = 1
"""The version of the text format that this package parses and prints."""


def parse(text: str, *, file: str | None = None) -> Program:
    """Parse `text` and return the Program with the listing of its lines; `file` is its path, for errors.

    Raises ParseError; its `errors` are all errors of the text in line order.
    """
    if not isinstance(text, str):
        message = f"graph text must be a string, not {type(text).__name__}"
        raise UsageError(message, hint='open a file with nncdbg.load("graph.nnc")')
    program, listing = parse_with_listing(text, file=file)
    return replace(program, listing=listing)


def parse_with_listing(text: str, *, file: str | None = None) -> tuple[Program, Listing]:
    """Return the program and the lines of its statements in `text` itself."""
    with collector_paused():
        return TextParser(split_lines(text), file).program()


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, without line ends and byte order mark."""
    return [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]


class TextParser(ProgramLines):
    """Selects the reader of each line by its first word."""

    def program(self) -> tuple[Program, Listing]:
        lines = self.lines
        index = 0
        self.states_behind()
        while index < len(lines):
            if index in self.behind:
                index = self.behind[index]
                continue
            block = self.block
            if block is not None and not (block.end or self.comment or self.too_deep or self.grouped):
                index = read_plain(lines, index, block, self.prefixes, self.state_lines)
            if index < len(lines):
                index = self.one(index, last_line(lines, index))
        self.finish()
        program = Program(
            self.complete_graphs(),
            next(iter(self.graphs)),
            tuple(self.stores),
            self.opsets,
            tuple(self.states),
            tuple(self.runs),
            tuple(self.backwards),
            self.streams,
            tuple(self.group_lines),
            self.file,
            prefixes=self.prefixes.declared,
            notes=tuple(self.notes),
        )
        statements, headers = driver_lines(program, self.state_lines, self.run_lines, self.headers)
        statements, headers = {**self.statements, **statements}, {**self.headers, **headers}
        wrapped = {
            first + further: first
            for first, text in self.wrapped.items()
            for further in range(1, text.count("\n") + 1)
        }
        prefixes = self.prefixes.within("")
        return program, Listing(tuple(lines), statements, headers, self.file, prefixes, wrapped)

    def one(self, index: int, last: int) -> int:
        """Parse the statement on the lines from `index` to `last`; return the index of the next line."""
        if last > index:
            self.wrapped[index + 1] = "\n".join(self.lines[index : last + 1])
        self.line(self.wrapped.get(index + 1, self.lines[index]), index + 1)
        return last + 1

    def states_behind(self) -> None:
        """Parse the blocks of states after the first graph, whose statements may read the states."""
        lines = self.lines
        first = next((index for index, line in enumerate(lines) if _word_of(line) == "graph"), len(lines))
        starts = [index for index in range(first, len(lines)) if _word_of(lines[index]) == "states"]
        for index in range(first if starts else 0):
            if _word_of(lines[index]) == "prefix":
                self.line(lines[index], index + 1)
                self.behind[index] = index + 1
        for start in starts:
            ends = (index for index in range(start + 1, len(lines)) if _ends_states(lines[index]))
            end = next(ends, len(lines))
            self.behind[start] = end = end + (end < len(lines) and lines[end].lstrip().startswith("}"))
            index = start
            while index < end:
                last = last_line(lines, index)
                index = self.one(index, last)
            self.close_states(end)

    def complete_graphs(self) -> dict[str, Graph]:
        """Return the graphs with the values that ``...`` stands for; raise the errors in them."""
        if not self.listed:
            return self.graphs
        expansion = PassedValues(self.graphs, self.listed, next(iter(self.graphs)), self.state_lines)
        for use in self.deferred:
            if use.mark.name in expansion.missing:
                message = f"{shown(use.mark.name)} is not defined, and no call above returns it"
                hint = "define it above, or in one graph that is called above with ... in its outputs"
                self.report(use.line, Flaw(message, use.mark.start, use.mark.width, hint, code="undefined"))
        graphs = expansion.graphs()
        for graph in graphs.values():
            twice = [name for name, count in Counter(v.name for v in defined(graph)).items() if count > 1]
            for name in filter(None, twice[: len(self.errors) == 0]):
                message = f"@{name_text(graph.name)} defines {shown(name)} and gets it from ..."
                line = self.graph_lines[graph.name]
                width = len(self.text_of(line).rstrip())
                self.report(line, Flaw(message, 0, width, "choose another name", code="redefined"))
        self.raise_errors()
        return graphs

    def finish(self) -> None:
        """Finish the text: check open blocks and calls, and raise the errors found."""
        self.close_unclosed(len(self.lines))
        self.close_states(len(self.lines))
        graphs = {**self.graphs, **backward_signatures(self.backwards, self.graphs)}
        for line, flaw in wrong_calls(self.calls, graphs, self.broken, Suggestions(), self.listed):
            self.report(line, flaw)
        called = {run.graph for run in self.runs} | {e.graph for run in self.runs for e in run.evaluations}
        for name, mark, number in self.hiding:
            if name in (called or [*graphs][:1]):
                hint = f"choose another name (it is a state, line {self.state_lines[mark.name]})"
                message = f"{shown(mark.name)} is an input of the program, and hides a state of the same name"
                self.report(number, Flaw(message, mark.start, mark.width, hint, code="redefined"))
        for line, flaw in wrong_tracks(self.tracks, self.value_names, self.prefixes):
            self.report(line, flaw)
        if not self.graphs and not self.errors:
            hint = "add a graph: graph @main() -> () {"
            self.report(len(self.lines), Flaw("the text has no graph", 0, 1, hint))
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raise the errors so far as one, in the order of their lines."""
        if not self.errors:
            return
        errors = sorted(self.errors, key=lambda error: (error.line or 0, error.column or 0))
        first = errors[0]
        message = first.message if len(errors) == 1 else f"{len(errors)} errors in {self.file or 'the text'}"
        raise ParseError(message, errors=errors, excerpt=first.excerpt, hint=first.hint)

    def value_names(self) -> set[str]:
        """Return the names of the states and of all values in the graphs."""
        states = (state.value for state in self.states)
        return {value.name for value in (*states, *all_defined(self.graphs))} - {""}

    def line(self, text: str, number: int) -> None:
        """Parse one line of any kind."""
        cursor = Cursor(text, prefixes=self.prefixes)
        if self.too_deep and cursor.peek_word() != "graph":
            return
        try:
            start = cursor.blank()
            if text.startswith("#", start):
                self.remark(text, start, number)
            elif self.in_states and start < len(text):
                self.in_state_block(cursor, number)
            elif text.startswith("}", start):
                self.close(cursor, number)
            elif start < len(text):
                reader = _READERS.get(cursor.peek_word())
                if reader is None:
                    self.statement(cursor, number)
                else:
                    cursor.position += len(cursor.peek_word())
                    reader(self, cursor, number)
        except Flaw as flaw:
            self.report(number, flaw)
            self.salvage(text, number)
        for passed in cursor.flaws:
            self.report(number, passed)
        self.notes += [f"line {number}: {words}" for words in cursor.notes]

    def in_state_block(self, cursor: Cursor, number: int) -> None:
        """Parse a state without its first word, or the end of the block."""
        if cursor.accept("}"):
            self.leave_states()
            cursor.end()
        elif _ends_states(cursor.line):
            self.close_states(number - 1)
            self.line(cursor.line, number)
        else:
            cursor.accept_word("state")
            self.state(cursor, number)

    def leave_states(self) -> None:
        self.in_states = 0
        self.prefixes = self.prefixes.within("")

    def close_states(self, number: int) -> None:
        """Report an open block of states before line `number` + 1."""
        if self.in_states:
            text = self.text_of(self.in_states)
            hint = f"add }} before line {number + 1}"
            self.report(self.in_states, Flaw("this block is not closed", len(text.rstrip()) - 1, 1, hint))
            self.leave_states()

    def remark(self, text: str, start: int, number: int) -> None:
        """Skip ``#``, keep ``##`` for the next statement, and ``##!`` for the enclosing block."""
        version = re.match(r"#nncdbg[ \t]+([0-9]+)", text) if number == 1 else None
        if version is not None and version[1] != str(VERSION):
            message = f"version {version[1]} of the text is not supported"
            raise Flaw(message, version.start(1), len(version[1]), f"use version {VERSION}")
        if text.startswith("##!", start) and self.block is not None:
            self.block.comment.append(_comment(text[start + 3 :]))
        elif text.startswith("##", start):
            self.comment.append(_comment(text[start + 2 :]))


_READERS: Mapping[str, Callable[[TextParser, Cursor, int], None]] = {
    "opset": TextParser.opset,
    "store": TextParser.store,
    "prefix": TextParser.prefix,
    "state": TextParser.state,
    "states": TextParser.states_line,
    "group": TextParser.group,
    "run": TextParser.run,
    "evaluate": TextParser.evaluate,
    "track": TextParser.track,
    "backward": TextParser.backward,
    "stream": TextParser.stream,
    "update": TextParser.update,
    "graph": TextParser.graph,
    "if": TextParser.branches,
    "while": TextParser.loop,
    "break": TextParser.leave,
    "return": TextParser.last,
    "yield": TextParser.last,
    "next": TextParser.last,
}
"""The reader of a line by its first word."""


_first_word = re.compile(r"[ \t]*([a-z]+)").match


def _word_of(line: str) -> str:
    match = _first_word(line)
    return match[1] if match is not None else ""


def _ends_states(line: str) -> bool:
    """Return whether a line is no state: a brace, or the first line of something else."""
    word = _word_of(line)
    return line.lstrip().startswith("}") or (word in _READERS and word != "state")


def _comment(rest: str) -> str:
    """Return the text of a ``##`` line: after one space, or quoted."""
    return salvaged(rest) if re.fullmatch(STRING, rest) else rest.removeprefix(" ")
