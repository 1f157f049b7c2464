"""Readers of the lines of graphs: blocks, statements, and the results of a block."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nncdbg.errors import Excerpt, GraphError
from nncdbg.ir.kinds import called_graph
from nncdbg.ir.records import (
    BackwardLine,
    Constant,
    Graph,
    GroupLine,
    Inline,
    Node,
    Operand,
    Path,
    RunLine,
    StateLine,
    TensorType,
    Value,
)
from nncdbg.text.lexemes import BARE, LOCAL, NO_PREFIXES, PREFIXED, STRING, Flaw, Prefixes, nearest, unquote
from nncdbg.text.types import print_type
from nncdbg.textual_repr import statements as read
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.groups import (
    GROUP,
    Members,
    check_members,
    differentiated_by,
    group_operands,
    key_of,
    member_names,
    not_one_value,
    spread,
)
from nncdbg.textual_repr.passed_values import Listed
from nncdbg.textual_repr.repairs import SAVED, outside_repair, statement_repair, value_repair
from nncdbg.textual_repr.resolution import (
    CALLED,
    ENDS,
    Block,
    BlockHeader,
    Unresolved,
    WrittenCall,
    WrittenTrack,
    explain_all,
    shown,
)
from nncdbg.textual_repr.statements import Names, NameSpan

# Parser state, and recovery after a line that failed.
#
# Names that a failed line seems to define count as defined, and the parser continues inside a block with an
# invalid first line. A mistake is therefore not reported again at every line that depends on it.

DEEPEST = 1000
"""Maximum nesting depth of blocks."""

_LONGEST_HINT = 600

_graph_name = re.compile(rf"@({BARE}|{STRING})")
_value_name = re.compile(rf"%({PREFIXED}|{LOCAL}|{BARE}|{STRING})")


def salvaged(spelled: str) -> str:
    """Return the name or quoted comment without quotes; unchanged if its escapes are invalid."""
    try:
        return unquote(spelled) if spelled.startswith('"') else spelled
    except Flaw:
        return spelled


class StatementLines:
    """Reads the lines of graphs: the errors, the complete graphs and the open block so far."""

    def __init__(
        self,
        lines: Sequence[str],
        file: str | None,
        before: int = 0,
        prefixes: Prefixes = NO_PREFIXES,
    ) -> None:
        self.file = file
        self.lines = lines
        self.before = before
        """Number of lines of the text before these; messages count from the start of the text."""
        self.errors: list[GraphError] = []
        self.block: Block | None = None
        self.comment: list[str] = []
        self.graphs: dict[str, Graph] = {}
        self.broken: set[str] = set()
        self.graph_blocks: list[Block] = []
        self.unresolved: list[Unresolved] = []
        self.statements: dict[Path, tuple[int, ...]] = {}
        self.headers: dict[Path, int] = {}
        self.prefixes = prefixes
        self.state_lines: dict[str, int] = {}
        """The lines of the states, by name."""
        self.graph_lines: dict[str, int] = {}
        self.calls: list[WrittenCall] = []
        self.stores: list[str] = []
        self.notes: list[str] = []
        self.opsets: dict[str, int] = {}
        self.streams: dict[int, str] = {}
        self.states: list[StateLine] = []
        self.runs: list[RunLine] = []
        self.run_lines: list[list[int]] = []
        self.tracks: list[WrittenTrack] = []
        self.backwards: list[BackwardLine] = []
        self.groups: dict[str, Members] = {}
        """The groups of states, by name."""
        self.group_lines: list[GroupLine] = []
        self.grouped = False
        """A statement of this graph defines a group: its lines need the full parser."""
        self.salvaged: set[str] = set()
        """The names that failed lines seem to define."""
        self.broken_groups = False
        """A line that declares a group failed: what statements do with groups is not reported."""
        self.hiding: list[tuple[str, NameSpan, int]] = []
        """The inputs of graphs that hide a state: the graph, the name and the line."""
        self.too_deep = False
        """A block of this graph is nested too deeply; the rest of the graph is skipped."""
        self.in_states = 0
        """The line of the open block of states; 0 outside of one."""
        self.behind: dict[int, int] = {}
        """Stretches of lines that are parsed before their turn: the first index, and that after the last."""
        self.listed: dict[str, Listed] = {}
        self.deferred: list[Unresolved] = []
        """Uses of names that may be passed values."""
        self.wrapped: dict[int, str] = {}
        """The statements of several lines by their first line, with the line ends."""

    def text_of(self, number: int) -> str:
        """Return the line with this 1-based number."""
        return self.lines[number - 1 - self.before]

    def report(self, line: int, flaw: Flaw) -> None:
        """Add an error of the statement whose first line is `line`."""
        if flaw.code == GROUP and self.broken_groups:
            return
        start, width = flaw.start, max(1, flaw.width)
        if line in self.wrapped:
            above = self.wrapped[line][:start]
            line += above.count("\n")
            start -= above.rfind("\n") + 1
            width = max(1, min(width, len(self.text_of(line)) - start))
        excerpt = Excerpt(self.text_of(line), line, start + 1, width, self.file)
        hint = flaw.hint
        if hint is not None and len(hint) > _LONGEST_HINT:
            hint = hint[:_LONGEST_HINT] + "..."
        self.errors.append(GraphError(flaw.message, excerpt=excerpt, hint=hint))

    def take_comment(self) -> str:
        """Return the ``##`` lines before this statement."""
        text = "\n".join(self.comment)
        self.comment.clear()
        return text

    def open(self, block: Block, names: Names) -> None:
        if len(block.path) // 2 >= DEEPEST:
            raise self.nested_too_deeply(block.line)
        self.block = block
        self.graph_blocks.append(block)
        self.headers[block.path] = block.line
        self.define(names, block.line)

    def nested_too_deeply(self, line: int) -> Flaw:
        """Return the error of a block at the line; the rest of the graph is skipped."""
        self.too_deep = True
        hint = f"use at most {DEEPEST} levels"
        return Flaw("blocks are nested too deeply", 0, len(self.text_of(line)), hint)

    def inside(self, cursor: Cursor) -> Block:
        """Return the block of the statement at `cursor`."""
        block = self.block
        if block is None:
            raise cursor.whole("a statement outside a graph", outside_repair(cursor.line))
        if block.end and block.kind != "broken":
            raise cursor.whole("this line is never reached", f"line {block.end} ends the block")
        return block

    def nested_path(self, outer: Block) -> Path:
        return (*outer.path, len(outer.nodes), 0)

    def leave_block(self, block: Block, *, broken: bool = False) -> None:
        """Close `block`; at the end of a graph, report its unresolved names."""
        self.block = block.parent
        if block.kind != "broken":
            self.statements[block.path] = block.site_lines()
        if block.parent is not None:
            return
        if broken:
            self.broken.add(block.name)
        elif block.name not in self.graphs:
            self.graphs[block.name] = block.graph()
        for line, flaw in explain_all(self.unresolved, self.graph_blocks):
            self.report(line, flaw)
        self.unresolved.clear()
        self.graph_blocks.clear()

    def close_unclosed(self, number: int) -> None:
        """Report unclosed blocks at the end of the text or the next graph, at line `number` + 1."""
        while self.block is not None:
            block = self.block
            if block.kind != "broken" and not self.too_deep:
                text = self.text_of(block.line)
                hint = f"add }} before line {number + 1}"
                self.report(block.line, Flaw("this block is not closed", len(text.rstrip()) - 1, 1, hint))
            self.leave_block(block, broken=True)
        self.too_deep = False

    def resolve(self, names: Names, number: int) -> None:
        """Record the used names that are not defined so far."""
        block = self.block
        for mark in names.uses:
            if mark.name in self.state_lines:
                continue
            members = self.members(mark.name)
            if members is not None:
                if mark.name not in names.groups:
                    self.report(number, not_one_value(mark, members))
                continue
            if block is None:
                hint = "a state can use only the states above it"
                flaw = Flaw(f"{shown(mark.name)} is not a state", mark.start, mark.width, hint)
                self.report(number, flaw)
            elif not block.sees(mark.name):
                use = Unresolved(mark, number, block, len(block.nodes))
                around = [*block.outwards()][-1]
                (self.deferred if around.open_names else self.unresolved).append(use)

    def define(self, names: Names, number: int) -> None:
        """Define names in the block; report duplicates and names that hide others."""
        block = self.block
        own = self.state_lines if block is None else block.names
        for mark in names.defines:
            line = self.state_lines.get(mark.name)
            if line is not None and block is not None and block.kind == "graph" and number == block.line:
                # An input of a graph hides the state.
                self.hiding.append((block.name, mark, number))
                line = None
            if line is None and block is not None:
                line = block.line_of(mark.name)
            if line is None and mark.name in self.groups:
                message, hint = f"{shown(mark.name)} is a group of states", "choose another name"
                self.report(number, Flaw(message, mark.start, mark.width, hint, code="redefined"))
            if line is not None:
                fault = "is defined twice" if mark.name in own else "hides a value of the same name"
                why = f"it is defined at line {line}); a loop rebinds with next"
                if mark.name in self.state_lines:
                    why = f"it is a state, line {line}); update gives a state a new value"
                message, hint = f"{shown(mark.name)} {fault}", f"choose another name ({why}"
                self.report(
                    number, Flaw(message, mark.start, mark.width, hint, code="redefined", related=line)
                )
            own.setdefault(mark.name, number)

    def salvage(self, text: str, number: int) -> None:
        """Recover from a failed line: keep blocks balanced and define the names that it seems to define."""
        self.comment.clear()
        if self.too_deep:
            return
        opens = text.split("#")[0].rstrip().endswith("{")
        word = Cursor(text).peek_word()
        block = self.block
        if text.lstrip().startswith("}"):
            if block is None:
                return
            self.leave_block(block, broken=True)
            if opens and block.parent is not None:
                self.open_broken(block.parent, text, number)
            else:
                self.take_names(text, number)
        elif word == "graph" or (block is not None and (opens or word in ("if", "while"))):
            self.open_broken(None if word == "graph" else block, text, number)
        elif word in ENDS.values():
            return
        elif word in ("state", "states", "group") or self.in_states:
            self.broken_groups = self.broken_groups or word in ("states", "group")
            for spelled in _value_name.findall(text.split("=")[0]):
                self.state_lines.setdefault(self.salvaged_name(spelled), number)
        elif "=" in text:
            self.take_names(text.split("=")[0], number)

    def open_broken(self, outer: Block | None, text: str, number: int) -> None:
        """Open a block with an invalid first line; errors that depend on that line are suppressed."""
        name = _graph_name.search(text)
        if outer is None:
            self.close_unclosed(number - 1)
        graph = "" if name is None else salvaged(name[1])
        path = (graph,) if outer is None else self.nested_path(outer)
        if len(path) // 2 >= DEEPEST:
            self.report(number, self.nested_too_deeply(number))
            return
        self.block = Block("broken", number, path, outer, None, graph)
        self.graph_blocks.append(self.block)
        self.take_names(text, number)

    def take_names(self, text: str, number: int) -> None:
        if self.block is None:
            return
        for spelled in _value_name.findall(text):
            name = self.salvaged_name(spelled)
            if not self.block.sees(name):
                self.block.names[name] = number
                self.salvaged.add(name)

    def salvaged_name(self, spelled: str) -> str:
        """Return the name that a line seems to have, with its prefix expanded if it is declared."""
        found = self.prefixes.find(spelled)
        return salvaged(spelled) if found is None else found

    # -- groups --------------------------------------------------------------------------------

    def members(self, name: str) -> Members | None:
        """Return the members of a group that this block sees; None for another name."""
        if self.grouped and self.block is not None:
            for block in self.block.outwards():
                if name in block.names:
                    return block.groups.get(name)
        return self.groups.get(name)

    def owners(self) -> Mapping[str, str | None]:
        """Map each state to the state that it belongs to."""
        return {state.value.name: state.of for state in self.states}

    def gradients(self) -> Mapping[str, tuple[str, ...]]:
        """Return what each ``backward`` line of the text differentiates by; the lines may come later."""
        return differentiated_by(self.lines, self.prefixes, self.groups)

    def enter_gradients(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        """Add ``grads %g = @loss.backward(1.0, %s)``: a call with a member of the group for each result."""
        assert names.grads is not None
        check_no_inline(names)
        by = self.gradients().get(mark.name) if node.called is not None else None
        if by is None:
            hint = f"add the line: backward {node.op}.backward of {node.op} by (%w), and call its graph"
            hint = nearest(mark.name, self.gradients(), "@") or hint
            raise Flaw(f"{node.op} is not the graph of a `backward` line", mark.start, mark.width, hint)
        owners = self.owners()
        keys = [key_of(name, owners) for name in by]
        (place,) = names.defines
        outputs = tuple(map(Value, member_names(names.grads, keys).values()))
        self.enter_all(block, [(replace(node, outputs=outputs), mark)], names, number)
        self.define_group(block, place, keys, number)

    def enter_spread(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        """Add the statements of a statement over groups, one for each member of its first group."""
        check_no_inline(names)
        if node.placement is not None or names.saved is not None:
            what = "has no margin" if names.saved is None else "saves no values"
            hint = "write a statement for each member"
            raise Flaw(f"a statement over groups {what}", mark.start, mark.width, hint)
        groups = {
            place.name: found for place in names.uses if (found := self.members(place.name)) is not None
        }
        first = group_operands(node, groups)[0]
        for place in names.uses:
            if place.name in groups:
                check_members(place, groups[place.name], first, groups[first], self.backward_of(place.name))
        for place, value in zip(names.defines, [v for v in node.outputs if v.name], strict=True):
            if value.type is not None:
                hint = f"write {shown(place.name)} = ..."
                raise Flaw(
                    f"{shown(place.name)} is a group, which has no type", place.start, place.width, hint
                )
        keys = [*groups[first]]
        names = replace(names, groups=frozenset(groups))
        self.enter_all(block, [(each, mark) for each in spread(node, groups)], names, number)
        for place in names.defines:
            self.define_group(block, place, keys, number)

    def updated_members(
        self, targets: Sequence[Value], places: Sequence[NameSpan]
    ) -> tuple[tuple[Value, ...], tuple[Operand, ...], frozenset[str]]:
        """Return the states and new values of an update, with the members of groups, and the used names."""
        pairs: dict[str, str] = {}
        for target, place in zip(targets, places, strict=True):
            if place.name in self.salvaged:
                continue
            new, own = self.members(place.name), self.groups.get(target.name)
            if own is not None and new is None:
                message = (
                    f"{shown(target.name)} is a group of {len(own)} states, {shown(place.name)} one value"
                )
                hint = "write a group with a value for each state"
                raise Flaw(message, place.start, place.width, hint, code=GROUP)
            if own is None and new is not None:
                raise not_one_value(place, new)
            if own is not None and new is not None:
                check_members(place, new, target.name, own)
                check_members(place, own, place.name, new)
            added = {target.name: place.name} if own is None or new is None else {own[k]: new[k] for k in own}
            for state in added:
                if state in pairs:
                    hint = "write each state once"
                    raise Flaw(f"{shown(state)} is updated twice", place.start, place.width, hint)
            pairs |= added
        used = frozenset(place.name for place in places)
        return tuple(map(Value, pairs)), tuple(pairs.values()), used

    def enter_all(
        self, block: Block, nodes: Sequence[tuple[Node, NameSpan]], names: Names, number: int
    ) -> None:
        """Add the statements of one line, with the places of their ops."""
        self.resolve(names, number)
        self.define(names, number)
        for node, mark in nodes:
            self.enter(block, node, Names(), mark, number)

    def enter_inline(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        """Add a statement after those in the place of its operands."""
        if node.placement is not None:
            check_no_inline(names)
        inner = [(replace(each, location=node.location), place) for each, place in names.inline]
        defines = [NameSpan(each.outputs[0].name, place.start, place.width) for each, place in inner]
        names.defines = [*defines, *names.defines]
        self.enter_all(block, [*inner, (node, mark)], names, number)

    def backward_of(self, group: str) -> str:
        """Return the call that ``grads %group = ...`` takes its gradients from; empty for another group."""
        blocks = self.block.outwards() if self.block is not None else ()
        outputs = (
            (node.op, value.name)
            for each in blocks
            for node in each.nodes
            if node.called
            for value in node.outputs
        )
        return next((op for op, name in outputs if name.startswith(f"{group}.")), "")

    def define_group(self, block: Block, place: NameSpan, keys: Sequence[str], number: int) -> None:
        """Define a group of this block, and its members."""
        members = member_names(place.name, keys)
        for name in members.values():
            line = self.state_lines.get(name) or block.line_of(name)
            if line is not None:
                message = f"the group {shown(place.name)} defines {shown(name)} again"
                hint = f"choose another name (it is defined at line {line})"
                flaw = Flaw(message, place.start, place.width, hint, code="redefined", related=line)
                self.report(number, flaw)
        block.names.update(dict.fromkeys(members.values(), number))
        block.groups[place.name] = members
        self.grouped = True

    # -- blocks --------------------------------------------------------------------------------

    def graph(self, cursor: Cursor, number: int) -> None:
        if self.block is not None:
            self.close_unclosed(number - 1)
        start = cursor.blank()
        name = cursor.name("@")
        width = cursor.position - start
        self.grouped = False
        names = Names()
        cursor.expect("(")
        self.prefixes = cursor.prefixes = self.prefixes.within(name)
        inputs = read.definitions(cursor, names, ")", "inputs")
        cursor.expect("->")
        cursor.expect("(")
        outputs = read.definitions(cursor, names_out := Names(), ")", "outputs")
        margin = cursor.placement()
        cursor.expect("{")
        cursor.end()
        comment = self.comment.copy()
        self.comment.clear()
        first = self.graph_lines.setdefault(name, number)
        block = Block("graph", number, (name,), None, None, name, inputs, outputs, comment, before=margin)
        if rest := names.rest | names_out.rest:
            block.listed = Listed(
                len(inputs) if "inputs" in rest else None, len(outputs) if "outputs" in rest else None
            )
            block.open_names = "inputs" in rest
            if first == number:
                self.listed[name] = block.listed
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
        location, margin = cursor.suffix("{")
        self.resolve(names, number)
        node = Node("if", (condition,), (), {}, (), location, self.take_comment(), margin)
        header = BlockHeader(node, number)
        self.open(Block("then", number, self.nested_path(outer), outer, header, name), Names())

    def loop(self, cursor: Cursor, number: int) -> None:
        outer = self.inside(cursor)
        uses, defined = Names(), Names()
        name, initial, inputs = read.while_header(cursor, uses, defined)
        location, margin = cursor.suffix("{")
        self.resolve(uses, number)
        node = Node("while", initial, (), {}, (), location, self.take_comment(), margin)
        header = BlockHeader(node, number)
        self.open(Block("body", number, self.nested_path(outer), outer, header, name, inputs), defined)

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
            hint = f"{CALLED[block.kind]} ends in {ENDS[block.kind]}: write {block.end_line(self.prefixes)}"
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
            hint = f"the block is {CALLED[block.kind]}, opened at line {block.line}"
            raise cursor.whole("`else` without `if`", hint)
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
        outer.nodes.append(replace(header.node, outputs=outputs, subgraphs=bodies))
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
        if values and cursor.peek_word() == "data":
            value = _only(values, cursor, start)
            constant = Constant(value, read.reference(cursor, value.name))
            cursor.end()
            self.enter_constant(block, constant, names, number)
        elif not read.at_call(cursor):
            literal = self.constant(cursor, values, start)
            if literal is None:
                self.comment.clear()
                self.define(names, number)
            else:
                self.enter_constant(block, literal, names, number)
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
            raise cursor.flaw_from(start, "an inline constant needs its type", hint)
        if not isinstance(value.type, TensorType):
            hint = f"write a tensor type: {shown(value.name)}: f32[]"
            width = max(1, len(cursor.line.rstrip()) - start)
            raise Flaw("only a tensor can be a constant", start, width, hint)
        array = cursor.array(value.type)
        cursor.end()
        return Constant(value, Inline(array))

    def op(self, block: Block, cursor: Cursor, values: tuple[Value, ...], names: Names, number: int) -> None:
        start = cursor.position
        op = read.op_name(cursor)
        width = cursor.position - start
        cursor.expect("(")
        names.results = tuple(value.name for value in values)
        operands, attributes = read.arguments(cursor, names)
        values = read.typed(cursor, values)
        location, margin = cursor.suffix()
        called = called_graph(op)
        if names.rest and called is None:
            raise Flaw("only a call has ...", start, width, "list the operands and outputs of an op")
        if names.saved is not None:
            if called is None:
                raise Flaw("only a call saves values", start, width, SAVED)
            attributes["saved"] = names.saved
        mark = NameSpan(op if called is None else called, start, width)
        node = Node(op, operands, values, attributes, (), location, placement=margin)
        if names.grads is not None:
            self.enter_gradients(block, node, names, mark, number)
        elif (self.groups or self.grouped) and any(self.members(use.name) for use in names.uses):
            self.enter_spread(block, node, names, mark, number)
        elif names.inline:
            self.enter_inline(block, node, names, mark, number)
        else:
            self.enter(block, node, names, mark, number)

    def update(self, cursor: Cursor, number: int) -> None:
        """Parse ``update %w = %w.1, %m = %m.1``."""
        block = self.inside(cursor)
        names = Names()
        states, places = read.updates(cursor, names, {*self.state_lines, *self.groups})
        values: tuple[Operand, ...] = tuple(place.name for place in places)
        location, margin = cursor.suffix()
        own = next((each for each in block.outwards() if each.parent is None), block)
        if hidden := next((each.name for each in states if each.name in own.names), None):
            hint = f"rename the input of @{own.name}"
            raise cursor.whole(f"{shown(hidden)} is an input here, and hides the state", hint)
        if self.groups or self.grouped:
            states, values, names.groups = self.updated_members(states, places)
        node = Node("update", values, states, {}, (), location, placement=margin)
        mark = NameSpan("update", cursor.line.index("update"), 6)
        enter = self.enter_inline if names.inline else self.enter
        enter(block, node, names, mark, number)

    def enter(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        """Add a parsed op or call to its block; its name is at `mark`."""
        self.resolve(names, number)
        self.define(names, number)
        if node.called is not None:
            rest, nested = frozenset(names.rest), block.parent is not None
            self.calls.append(WrittenCall(mark, number, len(node.inputs), len(node.outputs), rest, nested))
            block.open_names |= "outputs" in rest
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
        location, margin = cursor.suffix()
        if block.kind not in ("body", "broken"):
            hint = "move it to the top level of a loop's body"
            raise cursor.whole(f"break is not allowed in {CALLED[block.kind]}", hint)
        self.resolve(names, number)
        block.nodes.append(Node("break", (condition,), (), {}, (), location, self.take_comment(), margin))
        block.lines.append(number)

    def last(self, cursor: Cursor, number: int) -> None:
        """Parse ``return``, ``yield`` or ``next``."""
        word = Cursor(cursor.line).peek_word()
        block = self.inside(cursor)
        self.comment.clear()
        if block.kind == "broken":
            return
        if word != ENDS[block.kind]:
            block.astray = True
            hint = f"it ends in {ENDS[block.kind]}: write {block.end_line(self.prefixes)}"
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
        self.check_results(block, results, cursor, names)
        block.results = results

    def check_results(self, block: Block, results: tuple[Value, ...], cursor: Cursor, names: Names) -> None:
        """Check that a graph returns its declared outputs, and that branches yield equally many values."""
        passes = block.listed is not None and block.listed.outputs is not None
        if passes != ("outputs" in names.rest):
            message = f"the outputs of the block {'end' if passes else 'do not end'} in ..."
            raise cursor.whole(message, f"write {block.end_line(self.prefixes)}")
        if block.kind == "graph":
            named, given = [v.name for v in block.outputs], [v.name for v in results]
            if len(named) != len(given):
                count = f"{len(named)} output{'' if len(named) == 1 else 's'}"
                message = f"the graph has {count}, but return has {len(given)}"
                hint = f"its outputs are declared at line {block.line}: write {block.end_line(self.prefixes)}"
                raise cursor.whole(message, hint)
            for name, value in zip(named, given, strict=True):
                if name != value:
                    message = f"return has {shown(value)} where the graph's output is {shown(name)}"
                    right = block.end_line(self.prefixes)
                    hint = f"use the names declared at line {block.line}: write {right}"
                    raise cursor.whole(message, hint)
        elif block.kind == "else" and block.header is not None and block.header.branch is not None:
            first = block.header.branch
            if first.results is not None and len(first.results) != len(results):
                counts = f"{len(first.results)} in the first branch, {len(results)} in this one"
                hint = f"both branches must yield the same number of values; see line {first.end}"
                raise cursor.whole(f"the number of results differs: {counts}", hint)


def check_no_inline(names: Names) -> None:
    """Raise Flaw for an inline operand in a line that cannot have one."""
    if names.inline:
        _, place = names.inline[0]
        message = "a statement over groups or with a margin has no inline operand"
        raise Flaw(message, place.start, place.width, "compute it in a line of its own")


def _only(values: tuple[Value, ...], cursor: Cursor, start: int) -> Value:
    if len(values) > 1:
        width = max(1, len(cursor.line) - start)
        raise Flaw("a constant has one name", start, width, "write one statement for each constant")
    return values[0]
