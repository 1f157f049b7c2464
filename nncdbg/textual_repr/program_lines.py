"""Readers of the lines outside graphs: opsets, stores, prefixes, states, runs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nncdbg.engine.text.lexemes import Flaw, name_text, quote
from nncdbg.engine.text.prefixes import NO_PREFIXES, Prefixes
from nncdbg.ir.records import (
    Inline,
    Node,
    Reference,
    RunLine,
    StateLine,
    TensorType,
    Value,
    zeros_like,
)
from nncdbg.textual_repr import statements as read
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.literals import filled
from nncdbg.textual_repr.repairs import form_of
from nncdbg.textual_repr.resolution import WrittenCall, WrittenTrack
from nncdbg.textual_repr.statement_lines import StatementLines
from nncdbg.textual_repr.statements import Names, NameSpan


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
            raise Flaw("this domain has two opset lines", start, cursor.position - start, "remove one")
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
            raise Flaw(
                f"the stream s{stream} is declared twice", start, width, "remove one", code="redefined"
            )
        self.streams[stream] = device

    # -- states and runs -----------------------------------------------------------------------

    def state(self, cursor: Cursor, number: int) -> None:
        """Parse ``state %w: f32[4] = Op(...)``, or with a literal, ``data("key")`` or ``zeros for %v``."""
        self.before_graphs("state")
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
            raise cursor.flaw("expected `for`", self.zeros_hint(value.type))
        location = cursor.location()
        cursor.end()
        if isinstance(first, Node):
            first = replace(first, location=location)
        self.resolve(names, number)
        self.states.append(StateLine(value, first, of, self.take_comment()))
        self.define(names, number)

    def zeros_hint(self, type: TensorType) -> str:
        """Return the hint for ``zeros`` without ``for``: a state of the same type, or an op."""
        like = [state.value.name for state in self.states if state.value.type == type]
        if like:
            return f"write the state it belongs to: zeros for %{name_text(like[-1])}"
        return f"zeros belongs to a state, as in zeros for %w; without one, write {filled(type, 0)}"

    def first_value(self, cursor: Cursor, value: Value, names: Names) -> Node | Inline | Reference | None:
        """Parse the first value of a state; None for ``zeros``, which needs the state after ``for``."""
        start = cursor.blank()
        if cursor.accept_word("zeros"):
            return None
        if not read.at_call(cursor):
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
        tracks = [each for other in self.runs for own in _part(other, last is run) for each in own.tracks]
        if any(each.name == line.name for each in tracks):
            where = "`run`" if last is run else "`evaluate`"
            message = f"two tracks of {where} lines are named {name_text(line.name)}"
            raise Flaw(message, start, len(name_text(line.name)), "choose another name", code="redefined")
        last = replace(last, tracks=(*last.tracks, replace(line, comment=self.take_comment())))
        self.runs[-1] = replace(run, evaluations=(*before[1:], last)) if before else last

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
                f"two graphs are named @{name_text(line.name)}",
                mark.start,
                mark.width,
                "choose another name",
                code="redefined",
            )
        self.calls.append(WrittenCall(mark, number, None, None))
        self.backwards.append(replace(line, comment=self.take_comment()))


def _part(run: RunLine, training: bool) -> tuple[RunLine, ...]:
    """Return the ``run`` line itself, or its ``evaluate`` lines."""
    return (run,) if training else run.evaluations
