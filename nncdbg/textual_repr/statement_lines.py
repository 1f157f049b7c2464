"""Readers of the lines of graphs: blocks, statements, and the results of a block."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.text.lexemes import Flaw
from nncdbg.engine.text.types import print_type
from nncdbg.ir.records import Constant, Inline, Node, TensorType, Value
from nncdbg.textual_repr import statements as read
from nncdbg.textual_repr.blocks import CALLED, ENDS, Block, BlockHeader
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.reading import Reading
from nncdbg.textual_repr.repairs import SAVED, statement_repair, value_repair
from nncdbg.textual_repr.resolution import WrittenCall, shown
from nncdbg.textual_repr.statements import Names, NameSpan


class StatementLines(Reading):
    """Reads the lines of graphs."""

    # -- blocks --------------------------------------------------------------------------------

    def graph(self, cursor: Cursor, number: int) -> None:
        if self.block is not None:
            self.close_unclosed(number - 1)
        start = cursor.blank()
        name = cursor.name("@")
        width = cursor.position - start
        names = Names()
        cursor.expect("(")
        inputs = read.definitions(cursor, names, ")")
        cursor.expect("->")
        cursor.expect("(")
        outputs = read.definitions(cursor, Names(), ")")
        margin = cursor.placement()
        cursor.expect("{")
        cursor.end()
        comment = self.comment.copy()
        self.comment.clear()
        first = self.graph_lines.setdefault(name, number)
        block = Block("graph", number, (name,), None, None, name, inputs, outputs, comment, before=margin)
        self.open(block, names)
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
        margin = cursor.placement()
        cursor.expect("{")
        cursor.end()
        self.resolve(names, number)
        header = BlockHeader("if", (condition,), number, location, self.take_comment(), placement=margin)
        self.open(Block("then", number, self.nested_path(outer), outer, header, name), Names())

    def loop(self, cursor: Cursor, number: int) -> None:
        outer = self.inside(cursor)
        uses, defined = Names(), Names()
        loop = read.while_header(cursor, uses, defined)
        location = cursor.location()
        margin = cursor.placement()
        cursor.expect("{")
        cursor.end()
        self.resolve(uses, number)
        initial = (loop.times, *loop.initial)
        header = BlockHeader("while", initial, number, location, self.take_comment(), placement=margin)
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
            hint = f"{CALLED[block.kind]} ends in {ENDS[block.kind]}: write {block.end_line()}"
            self.report(number, Flaw(f"the block has no {ENDS[block.kind]}", cursor.position, 1, hint))
        cursor.expect("}")
        if cursor.accept_word("else"):
            self.close_branch(block, cursor, number)
        elif block.kind == "graph":
            cursor.end()
            self.leave_block(block)
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
        at = header.location, header.comment, header.placement
        outer.nodes.append(Node(header.op, header.inputs, outputs, {}, bodies, *at))
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
        if not read.at_call(cursor):
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
            raise cursor.flaw("not a statement", statement_repair(cursor.rest()))
        value = _only(values, cursor, start)
        if cursor.flaws:
            return None
        if not cursor.at_literal():
            raise cursor.flaw("expected an op, a call or a literal", value_repair(cursor.rest()))
        if value.type is None:
            known = cursor.untyped_array()
            hint = f"write its type after its name: {shown(value.name)}: {print_type(known)}"
            raise Flaw("an inline constant needs its type", start, cursor.position - start, hint)
        if not isinstance(value.type, TensorType):
            hint = f"write a tensor type: {shown(value.name)}: f32[]"
            raise Flaw(
                "only a tensor can be a constant", start, max(1, len(cursor.line.rstrip()) - start), hint
            )
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
        margin = cursor.placement()
        cursor.end()
        if names.saved is not None:
            if not op.startswith("@"):
                raise Flaw("only a call saves values", start, width, SAVED)
            attributes["saved"] = names.saved
        mark = NameSpan(op.removeprefix("@"), start, width)
        node = Node(op, operands, values, attributes, (), location, placement=margin)
        self.enter(block, node, names, mark, number)

    def update(self, cursor: Cursor, number: int) -> None:
        """Parse ``update %w = %w.1, %m = %m.1``."""
        block = self.inside(cursor)
        names = Names()
        states, values = read.updates(cursor, names, self.state_lines)
        location = cursor.location()
        margin = cursor.placement()
        cursor.end()
        node = Node("update", values, states, {}, (), location, placement=margin)
        self.enter(block, node, names, NameSpan("update", cursor.line.index("update"), 6), number)

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
            raise cursor.flaw("expected `unless`")
        condition = read.operand(cursor, names)
        location = cursor.location()
        margin = cursor.placement()
        cursor.end()
        if block.kind not in ("body", "broken"):
            hint = "move it to the top level of a loop's body"
            raise cursor.whole(f"break is not allowed in {CALLED[block.kind]}", hint)
        self.resolve(names, number)
        block.nodes.append(Node("break", (condition,), (), {}, (), location, self.take_comment(), margin))
        block.lines.append(number)

    def last(self, word: str, cursor: Cursor, number: int) -> None:
        """Parse ``return``, ``yield`` or ``next``."""
        block = self.inside(cursor)
        self.comment.clear()
        if block.kind == "broken":
            return
        if word != ENDS[block.kind]:
            block.astray = True
            hint = f"it ends in {ENDS[block.kind]}: write {block.end_line()}"
            raise cursor.whole(f"{word} in {CALLED[block.kind]}", hint)
        block.end = number
        names = Names()
        if word == "next":
            results = read.next_values(cursor, names, block.inputs[1:])
        else:
            results = read.value_list(cursor, names)
        block.after = cursor.placement()
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
                hint = f"its outputs are declared at line {block.line}: write {block.end_line()}"
                raise cursor.whole(message, hint)
            for name, value in zip(named, given, strict=True):
                if name != value:
                    message = f"return has {shown(value)} where the graph's output is {shown(name)}"
                    hint = f"use the names declared at line {block.line}: write {block.end_line()}"
                    raise cursor.whole(message, hint)
        elif block.kind == "else" and block.header is not None and block.header.branch is not None:
            first = block.header.branch
            if first.results is not None and len(first.results) != len(results):
                counts = f"{len(first.results)} in the first branch, {len(results)} in this one"
                message = f"the number of results differs: {counts}"
                raise cursor.whole(
                    message, f"both branches must yield the same number of values; see line {first.end}"
                )


def _only(values: tuple[Value, ...], cursor: Cursor, start: int) -> Value:
    if len(values) > 1:
        raise Flaw(
            "a constant has one name",
            start,
            max(1, len(cursor.line) - start),
            "write one statement for each constant",
        )
    return values[0]
