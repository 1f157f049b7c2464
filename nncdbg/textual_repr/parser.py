"""Parse program text to a Program; all errors of a file are found in one pass and raised together.

A line is a statement, so a line that fails is reported and skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from nncdbg.engine.errors import GraphError, ParseError, UsageError
from nncdbg.engine.graph import (
    BackwardLine,
    Constant,
    Inline,
    Node,
    Program,
    Reference,
    RunLine,
    StateLine,
    TensorType,
    Value,
    zeros_like,
)
from nncdbg.engine.process.collector import collector_paused
from nncdbg.engine.text.driver import driver_lines
from nncdbg.engine.text.lexemes import BARE, OP, STRING, Flaw, name_text, quote
from nncdbg.engine.text.listing import Listing
from nncdbg.engine.text.prefixes import NO_PREFIXES, Prefixes
from nncdbg.textual_repr import statements as read
from nncdbg.textual_repr.blocks import CALLED, ENDS, Block, BlockHeader
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.plain import read_plain
from nncdbg.textual_repr.reading import Reading, salvaged
from nncdbg.textual_repr.resolution import (
    Suggestions,
    WrittenCall,
    backward_signatures,
    shown,
    wrong_calls,
)
from nncdbg.textual_repr.statements import Names, NameSpan

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


class TextParser(Reading):
    """Readers of lines, selected by their first word."""

    def __init__(
        self,
        lines: Sequence[str],
        file: str | None,
        before: int = 0,
        prefixes: Prefixes = NO_PREFIXES,
    ) -> None:
        super().__init__(lines, file, before, prefixes)
        self.stores: list[str] = []
        self.opsets: dict[str, int] = {}
        self.graph_lines: dict[str, int] = {}
        self.calls: list[WrittenCall] = []
        self.states: list[StateLine] = []
        self.runs: list[RunLine] = []
        self.run_lines: list[list[int]] = []
        self.backwards: list[BackwardLine] = []
        self.readers: dict[str, Callable[[Cursor, int], None]] = {
            "opset": self.opset,
            "store": self.store,
            "prefix": self.prefix,
            "state": self.state,
            "run": self.run,
            "evaluate": self.evaluate,
            "backward": self.backward,
            "update": self.update,
            "graph": self.graph,
            "if": self.branches,
            "while": self.loop,
            "break": self.leave,
            "return": partial(self.last, "return"),
            "yield": partial(self.last, "yield"),
            "next": partial(self.last, "next"),
        }

    def program(self) -> tuple[Program, Listing]:
        lines = self.lines
        index = 0
        while index < len(lines):
            block = self.block
            if block is not None and not block.end and not self.comment:
                index = read_plain(lines, index, block, self.prefixes, self.state_lines)
            if index < len(lines):
                self.line(lines[index], index + 1)
                index += 1
        self.finish()
        program = Program(
            self.graphs,
            next(iter(self.graphs)),
            tuple(self.stores),
            self.opsets,
            tuple(self.states),
            tuple(self.runs),
            tuple(self.backwards),
            self.file,
            prefixes=self.prefixes.declared,
        )
        statements, headers = driver_lines(program, self.state_lines, self.run_lines, self.headers)
        statements, headers = {**self.statements, **statements}, {**self.headers, **headers}
        return program, Listing(tuple(lines), statements, headers, self.file, self.prefixes)

    def finish(self) -> None:
        """Finish the text: check open blocks and calls, and raise the errors found."""
        self.close_unclosed(len(self.lines))
        graphs = {**self.graphs, **backward_signatures(self.backwards, self.graphs)}
        for line, flaw in wrong_calls(self.calls, graphs, self.broken, Suggestions()):
            self.report(line, flaw)
        if not self.graphs and not self.errors:
            hint = "add a graph: graph @main() -> () {"
            self.report(len(self.lines), Flaw("the text has no graph", 0, 1, hint))
        if not self.errors:
            return
        errors = sorted(self.errors, key=_error_position)
        if len(errors) == 1:
            only = errors[0]
            raise ParseError(only.message, errors=errors, excerpt=only.excerpt, hint=only.hint)
        message = f"{len(errors)} errors in {self.file or 'the text'}"
        raise ParseError(message, errors=errors, excerpt=errors[0].excerpt, hint=errors[0].hint)

    def line(self, text: str, number: int) -> None:
        """Parse one line of any kind."""
        cursor = Cursor(text, prefixes=self.prefixes)
        try:
            start = cursor.blank()
            if text.startswith("#", start):
                self.remark(text, start, number)
            elif text.startswith("}", start):
                self.close(cursor, number)
            elif start < len(text):
                reader = self.readers.get(cursor.peek_word())
                if reader is None:
                    self.statement(cursor, number)
                else:
                    cursor.position += len(cursor.peek_word())
                    reader(cursor, number)
        except Flaw as flaw:
            self.report(number, flaw)
            self.salvage(text, number)
        for passed in cursor.flaws:
            self.report(number, passed)

    # -- lines outside graphs ------------------------------------------------------------------

    def remark(self, text: str, start: int, number: int) -> None:
        """Skip ``#``, keep ``##`` for the next statement, and ``##!`` for the enclosing block."""
        version = re.match(r"#nncdbg[ \t]+([0-9]+)", text) if number == 1 else None
        if version is not None and version[1] != str(VERSION):
            hint = f"use version {VERSION}"
            raise Flaw(
                f"version {version[1]} of the text is not supported", version.start(1), len(version[1]), hint
            )
        if text.startswith("##!", start) and self.block is not None:
            self.block.comment.append(_comment(text[start + 3 :]))
        elif text.startswith("##", start):
            self.comment.append(_comment(text[start + 2 :]))

    def before_graphs(self, word: str) -> None:
        if self.graph_lines or self.block is not None:
            raise Flaw(f"{word} must be before the first graph", 0, len(word), "move this line to the top")

    def opset(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("opset")
        start = cursor.blank()
        domain = "" if cursor.line[start : start + 1].isdecimal() else cursor.op()
        version = cursor.integer("an opset looks like opset 18, or opset com.microsoft 1")
        cursor.end()
        if domain in self.opsets:
            raise Flaw("this domain has two opset lines", start, cursor.position - start, "remove one")
        self.opsets[domain] = version

    def store(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("store")
        path = cursor.string('a store looks like store "weights.safetensors"')
        cursor.end()
        self.stores.append(path)

    def prefix(self, cursor: Cursor, number: int) -> None:
        self.before_graphs("prefix")
        start = cursor.blank()
        hint = 'a prefix looks like prefix encoder "/model/encoder/", and is used as %encoder::Add_1'
        label = cursor.label(hint)
        width = cursor.position - start
        if self.prefixes is NO_PREFIXES:
            self.prefixes = Prefixes({})
        declared = self.prefixes.declared
        if label in declared:
            hint = f"it is {quote(declared[label])}; choose another label"
            raise Flaw(f"the prefix {label} is declared twice", start, width, hint, code="redefined")
        # Declare the label even if the rest of the line is wrong, so that its uses are not reported too.
        declared[label] = label
        place = cursor.blank()
        text = cursor.string(hint)
        cursor.end()
        if not text:
            raise Flaw("the prefix is empty", place, 2, hint)
        declared[label] = text

    # -- states and runs -----------------------------------------------------------------------

    def state(self, cursor: Cursor, number: int) -> None:
        """Parse ``state %w: f32[4] = Op(...)``, or with a literal, ``data("key")`` or ``zeros for %v``."""
        self.before_graphs("state")
        names = Names()
        value = read.definition(cursor, names)
        if not value.name or not isinstance(value.type, TensorType):
            raise cursor.flaw("a state needs a name and a tensor type", _STATE)
        cursor.expect("=", _STATE)
        first = self.first_value(cursor, value, names)
        of = None
        if cursor.accept_word("for"):
            of = read.use(cursor, names)
            if first is None:
                first = zeros_like(value, of)
        if first is None:
            raise cursor.flaw("expected `for`", "zeros needs the state it belongs to: zeros for %w")
        location = cursor.location()
        cursor.end()
        if isinstance(first, Node):
            first = replace(first, location=location)
        self.resolve(names, number)
        self.states.append(StateLine(value, first, of, self.take_comment()))
        self.define(names, number)

    def first_value(self, cursor: Cursor, value: Value, names: Names) -> Node | Inline | Reference | None:
        """Parse the first value of a state; None for ``zeros``, which needs the state after ``for``."""
        start = cursor.blank()
        if cursor.accept_word("zeros"):
            return None
        if not _call(cursor.line, start):
            assert isinstance(value.type, TensorType)
            return Inline(cursor.array(value.type))
        if cursor.peek_word() == "data":
            cursor.position += len("data")
            cursor.expect("(")
            return read.reference(cursor)
        op = read.op_name(cursor)
        if op.startswith("@"):
            raise Flaw("a graph cannot compute a state", start, len(op), "write the op itself, or a literal")
        cursor.expect("(")
        operands, attributes = read.arguments(cursor, names)
        return Node(op, operands, (value,), attributes)

    def update(self, cursor: Cursor, number: int) -> None:
        """Parse ``update %w = %w.1, %m = %m.1``."""
        block = self.inside(cursor)
        names = Names()
        states, values = read.updates(cursor, names, self.state_lines)
        location = cursor.location()
        cursor.end()
        node = Node("update", values, states, {}, (), location)
        self.enter(block, node, names, NameSpan("update", cursor.line.index("update"), 6), number)

    def run(self, cursor: Cursor, number: int) -> None:
        """Parse ``run @train for %x, %t in data("x"), data("t") batch 32 epochs 10``."""
        if self.block is not None:
            raise cursor.whole("run inside a block", "write the line after the graphs")
        run = self.called(cursor, number, read.run_line)
        self.runs.append(run)
        self.run_lines.append([number])

    def evaluate(self, cursor: Cursor, number: int) -> None:
        """Parse ``evaluate @accuracy for %x, %t in data("test_x"), data("test_t") batch 100``."""
        if not self.runs or self.block is not None:
            raise cursor.whole(
                "evaluate without a run", "write the line after the `run` line that it evaluates"
            )
        line = self.called(cursor, number, read.evaluate_line)
        self.runs[-1] = replace(self.runs[-1], evaluations=(*self.runs[-1].evaluations, line))
        self.run_lines[-1].append(number)

    def called(self, cursor: Cursor, number: int, reader: Callable[[Cursor], RunLine]) -> RunLine:
        """Read the rest of a line that calls a graph for batches, and register the call."""
        start = cursor.blank()
        line = reader(cursor)
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
            raise Flaw(
                f"two graphs are named @{name_text(line.name)}", mark.start, mark.width, code="redefined"
            )
        self.calls.append(WrittenCall(mark, number, None, None))
        self.backwards.append(replace(line, comment=self.take_comment()))

    # -- blocks --------------------------------------------------------------------------------

    def graph(self, cursor: Cursor, number: int) -> None:
        if self.block is not None:
            self.close_unclosed(number - 1)
        start = cursor.blank()
        name = cursor.name("@")
        width = cursor.position - start
        hint = "a graph looks like graph @main(%x: f32[2]) -> (%y: f32[2]) {"
        names = Names()
        cursor.expect("(", hint)
        inputs = read.definitions(cursor, names, ")")
        cursor.expect("->", hint)
        cursor.expect("(", hint)
        outputs = read.definitions(cursor, Names(), ")")
        cursor.expect("{", hint)
        cursor.end()
        comment = self.comment.copy()
        self.comment.clear()
        first = self.graph_lines.setdefault(name, number)
        self.open(Block("graph", number, (name,), None, None, name, inputs, outputs, comment), names)
        if first != number:
            hint = f"the first is at line {first}"
            flaw = Flaw(f"two graphs are named @{name}", start, width, hint, code="redefined", related=first)
            self.report(number, flaw)

    def branches(self, cursor: Cursor, number: int) -> None:
        outer = self.inside(cursor)
        names = Names()
        condition = read.operand(cursor, names)
        name = read.label(cursor)
        location = cursor.location()
        cursor.expect("{", "a branch looks like if %c @then {")
        cursor.end()
        self.resolve(names, number)
        header = BlockHeader("if", (condition,), number, location, self.take_comment())
        self.open(Block("then", number, self.nested_path(outer), outer, header, name), Names())

    def loop(self, cursor: Cursor, number: int) -> None:
        outer = self.inside(cursor)
        uses, defined = Names(), Names()
        loop = read.while_header(cursor, uses, defined)
        location = cursor.location()
        cursor.expect("{", "a loop looks like while @body (%s: f32[2] = %x) count %i: i64[] times %n {")
        cursor.end()
        self.resolve(uses, number)
        header = BlockHeader("while", (loop.times, *loop.initial), number, location, self.take_comment())
        inputs = (loop.counter, *loop.carried)
        self.open(Block("body", number, self.nested_path(outer), outer, header, loop.name, inputs), defined)

    def close(self, cursor: Cursor, number: int) -> None:
        """Parse ``}``, ``} else @name {`` or ``} -> (...)``."""
        block = self.block
        if block is None:
            raise Flaw("unmatched closing brace", cursor.position, 1, "remove it")
        self.comment.clear()
        if block.kind == "broken":
            self.salvage(cursor.line, number)
            return
        if not block.end and not block.astray:
            hint = f"{CALLED[block.kind]} ends in {ENDS[block.kind]}, even without results"
            self.report(number, Flaw(f"the block has no {ENDS[block.kind]}", cursor.position, 1, hint))
        cursor.expect("}")
        if block.kind == "graph":
            cursor.end()
            self.leave_block(block)
        elif cursor.accept_word("else"):
            self.close_branch(block, cursor, number)
        else:
            self.close_nested(block, cursor, number)

    def close_branch(self, block: Block, cursor: Cursor, number: int) -> None:
        """Parse ``} else @name {`` and begin the second branch."""
        if block.kind != "then" or block.header is None:
            raise cursor.whole(
                "`else` without `if`",
                f"the block is {CALLED[block.kind]}, opened at line {block.line}",
            )
        name = read.label(cursor)
        cursor.expect("{", "the second branch looks like } else @other {")
        cursor.end()
        block.header.branch = block
        self.leave_block(block)
        self.open(Block("else", number, (*block.path[:-1], 1), block.parent, block.header, name), Names())

    def close_nested(self, block: Block, cursor: Cursor, number: int) -> None:
        """Parse ``} -> (...)`` and complete the ``if`` or ``while``."""
        header, outer = block.header, block.parent
        assert header is not None
        assert outer is not None
        if block.kind == "then":
            raise cursor.whole("`if` without `else`", "write } else { with yield as its last line")
        if block.results is None or (header.branch is not None and header.branch.results is None):
            self.salvage(cursor.line, number)
            return
        names = Names()
        outputs = self.results(block, cursor, names)
        cursor.end()
        self.leave_block(block)
        self.define(names, number)
        bodies = (block.graph(),) if header.branch is None else (header.branch.graph(), block.graph())
        outer.nodes.append(
            Node(header.op, header.inputs, outputs, {}, bodies, header.location, header.comment)
        )
        outer.lines.append(header.line)

    def results(self, block: Block, cursor: Cursor, names: Names) -> tuple[Value, ...]:
        """Parse the values after ``->``, one for each result of the block."""
        results = block.results or ()
        if not cursor.accept("->"):
            return (Value(""),) * len(results)
        cursor.expect("(", "write results in parentheses: } -> (%y: f32[2])")
        if block.kind == "body":
            carried = block.inputs[1:]
            return read.loop_results(cursor, names, carried, len(results) - len(carried))
        start = cursor.position
        outputs = read.definitions(cursor, names, ")")
        if len(outputs) != len(results):
            message = f"{len(outputs)} results where the branches yield {len(results)}"
            hint = "write _ for an unused result"
            raise Flaw(message, start, max(1, cursor.position - 1 - start), hint)
        return outputs

    # -- statements ----------------------------------------------------------------------------

    def statement(self, cursor: Cursor, number: int) -> None:
        """Parse an op, a call or a constant."""
        block = self.inside(cursor)
        names = Names()
        values = read.outputs(cursor, names)
        start = cursor.blank()
        if not _call(cursor.line, start):
            literal = self.constant(cursor, values, start)
            if literal is None:
                self.comment.clear()
                self.define(names, number)
            else:
                self.enter_constant(block, literal, names, number)
        elif values and cursor.peek_word() == "data":
            cursor.position += len("data")
            cursor.expect("(")
            constant = Constant(_only(values, cursor, start), read.reference(cursor))
            cursor.end()
            self.enter_constant(block, constant, names, number)
        else:
            self.op(block, cursor, values, names, number)

    def enter_constant(self, block: Block, constant: Constant, names: Names, number: int) -> None:
        """Add a parsed constant to its block."""
        block.constants.append(constant)
        self.comment.clear()
        self.define(names, number)

    def constant(self, cursor: Cursor, values: tuple[Value, ...], start: int) -> Constant | None:
        """Parse a typed literal; return None if the type itself is invalid (noted as a flaw)."""
        if not values:
            raise cursor.flaw("not a statement", "a statement looks like %y: f32[2] = Op(%x, name=value)")
        value = _only(values, cursor, start)
        if cursor.flaws:
            return None
        if value.type is None:
            if cursor.at("%"):
                raise cursor.flaw("expected an op, a call or a literal", "write a copy as Identity(%x)")
            width = len(cursor.line.rstrip()) - start
            hint = "write the type after the name, as in %c: i64[] = 5"
            raise Flaw("an inline constant needs its type", start, max(1, width), hint)
        if not isinstance(value.type, TensorType):
            raise Flaw("only a tensor can be a constant", start, max(1, len(cursor.line.rstrip()) - start))
        array = cursor.array(value.type)
        cursor.end()
        return Constant(value, Inline(array))

    def op(self, block: Block, cursor: Cursor, values: tuple[Value, ...], names: Names, number: int) -> None:
        start = cursor.position
        op = read.op_name(cursor)
        width = cursor.position - start
        cursor.expect("(")
        operands, attributes = read.arguments(cursor, names)
        location = cursor.location()
        cursor.end()
        if names.saved is not None:
            if not op.startswith("@"):
                raise Flaw("only a call saves values", start, width, "write %l, saved %s = @loss(...)")
            attributes["saved"] = names.saved
        mark = NameSpan(op.removeprefix("@"), start, width)
        self.enter(block, Node(op, operands, values, attributes, (), location), names, mark, number)

    def enter(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        """Add a parsed op or call to its block; its name is at `mark`."""
        self.resolve(names, number)
        self.define(names, number)
        if node.op.startswith("@"):
            self.calls.append(WrittenCall(mark, number, len(node.inputs), len(node.outputs)))
        comment = self.take_comment()
        block.nodes.append(replace(node, comment=comment) if comment else node)
        block.lines.append(number)

    def leave(self, cursor: Cursor, number: int) -> None:
        """Parse ``break unless %go``."""
        block = self.inside(cursor)
        names = Names()
        if not cursor.accept_word("unless"):
            raise cursor.flaw("expected `unless`", "leave a loop with: break unless %go")
        condition = read.operand(cursor, names)
        location = cursor.location()
        cursor.end()
        if block.kind not in ("body", "broken"):
            hint = "move it to the top level of a loop's body"
            raise cursor.whole(f"break is not allowed in {CALLED[block.kind]}", hint)
        self.resolve(names, number)
        block.nodes.append(Node("break", (condition,), (), {}, (), location, self.take_comment()))
        block.lines.append(number)

    def last(self, word: str, cursor: Cursor, number: int) -> None:
        """Parse ``return``, ``yield`` or ``next``."""
        block = self.inside(cursor)
        self.comment.clear()
        if block.kind == "broken":
            return
        if word != ENDS[block.kind]:
            block.astray = True
            raise cursor.whole(f"{word} in {CALLED[block.kind]}", f"it ends in {ENDS[block.kind]}")
        block.end = number
        names = Names()
        if word == "next":
            results = read.next_values(cursor, names, block.inputs[1:])
        else:
            results = read.value_list(cursor, names)
        cursor.end()
        self.resolve(names, number)
        self.check_results(block, results, cursor)
        block.results = results

    def check_results(self, block: Block, results: tuple[Value, ...], cursor: Cursor) -> None:
        """Check that a graph returns its declared outputs, and that branches yield equally many values."""
        if block.kind == "graph":
            named, given = [v.name for v in block.outputs], [v.name for v in results]
            if len(named) != len(given):
                count = f"{len(named)} output{'' if len(named) == 1 else 's'}"
                message = f"the graph has {count}, but return has {len(given)}"
                raise cursor.whole(message, f"its outputs are declared at line {block.line}")
            for name, value in zip(named, given, strict=True):
                if name != value:
                    message = f"return has {shown(value)} where the graph's output is {shown(name)}"
                    raise cursor.whole(
                        message,
                        f"use the name declared at line {block.line}",
                    )
        elif block.kind == "else" and block.header is not None and block.header.branch is not None:
            first = block.header.branch
            if first.results is not None and len(first.results) != len(results):
                counts = f"{len(first.results)} in the first branch, {len(results)} in this one"
                message = f"the number of results differs: {counts}"
                raise cursor.whole(
                    message, f"both branches must yield the same number of values; see line {first.end}"
                )


_STATE = "a state looks like state %w: f32[4,3] = RandomNormal(shape=[4,3]), or zeros for %w"

_call = re.compile(rf"(?:@(?:{BARE}|{STRING})|{OP}|{STRING})[ \t]*\(").match


def _error_position(error: GraphError) -> tuple[int, int]:
    assert error.excerpt is not None
    return error.excerpt.line, error.excerpt.column


def _only(values: tuple[Value, ...], cursor: Cursor, start: int) -> Value:
    if len(values) > 1:
        raise Flaw(
            "a constant has one name",
            start,
            max(1, len(cursor.line) - start),
            "write one statement for each constant",
        )
    return values[0]


def _comment(rest: str) -> str:
    """Return the text of a ``##`` line: after one space, or quoted."""
    return salvaged(rest) if re.fullmatch(STRING, rest) else rest.removeprefix(" ")
