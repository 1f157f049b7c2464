"""Groups: several states, or values that belong to them, under one name.

A statement over groups is short for one statement per member::

    group %params = %w, %b
    ...
    grads %g = @loss.backward(1.0, %s)                    # the results %g.w and %g.b
    %new, %new_m = nncdbg.SGD(%params, %g, %m, lr=0.1)    # two statements: %new.w, %new.b and their moments
    update %params = %new, %m = %new_m                    # one statement

The program has the statements of the members, on one line of the text.  Each member has a key, the name of
the parameter that it belongs to, and members with the same key belong together.  The printer writes such
statements as one line again wherever the parser reads the same statements from it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import all_defined
from nncdbg.ir.records import Graph, GroupLine, Node, Operand, Program, StateLine, Value, zeros_like
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import Flaw, Prefixes, name_text
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.statements import NameSpan, backward_line, inline_name

GROUP = "group"
"""The code of the errors of statements that use a group."""

SAVED = "saved"
"""The attribute of a call that saves values for its backward graph."""

Members: TypeAlias = "Mapping[str, str]"
"""The names of the members of a group by their keys."""

Groups: TypeAlias = "Mapping[str, Members]"
"""The groups that a statement can use, by name."""

Owners: TypeAlias = "Mapping[str, str | None]"
"""Maps each state to the state that it belongs to, in the order of the states."""


def key_of(state: str, owners: Owners) -> str:
    """Return the name of the parameter that a state belongs to: its own name for a parameter."""
    seen = {state}
    while (owner := owners.get(state)) is not None and owner not in seen:
        state = owner
        seen.add(state)
    return state


def states_of(line: GroupLine, owners: Owners, groups: Groups) -> list[str]:
    """Return the states that a ``group`` line names; `groups` are the groups above it."""
    if line.prefix:
        return [name for name, owner in owners.items() if owner is None and name.startswith(line.prefix)]
    return [*each_member(line.members, groups)]


def each_member(names: Iterable[str], groups: Groups) -> tuple[str, ...]:
    """Return the names, with the members of a group in its place."""
    parts = (groups[name].values() if name in groups else (name,) for name in names)
    return tuple(name for part in parts for name in part)


def differentiated_by(lines: Iterable[str], prefixes: Prefixes, groups: Groups) -> dict[str, tuple[str, ...]]:
    """Return what each ``backward`` line of a text differentiates by, without the lines that do not parse."""
    found = {}
    for text in lines:
        if text.lstrip().startswith("backward"):
            cursor = Cursor(text, prefixes=prefixes)
            with suppress(Flaw):
                cursor.accept_word("backward")
                line, _ = backward_line(cursor)
                found[line.name] = each_member(line.by, groups)
    return found


def moment_name(state: str, group: str) -> str:
    """Return the name of a state that ``states %group = zeros for ...`` declares for `state`."""
    return f"{state}.{group}"


def member_names(base: str, keys: Iterable[str]) -> dict[str, str]:
    """Return the values of a group that statements define, by key."""
    return {key: f"{base}.{key}" for key in keys}


def group_operands(node: Node, groups: Groups) -> list[str]:
    """Return the groups among the operands of a statement, in order."""
    return [name for name in node.inputs if isinstance(name, str) and name in groups]


def spread(node: Node, groups: Groups) -> list[Node]:
    """Return the statements of a statement over groups, one for each member of its first group.

    The other groups must have the keys of the first one.
    """

    def operand(operand: Operand, key: str) -> Operand:
        return groups[operand][key] if isinstance(operand, str) and operand in groups else operand

    return [
        replace(
            node,
            inputs=tuple(operand(each, key) for each in node.inputs),
            outputs=tuple(Value(f"{value.name}.{key}" if value.name else "") for value in node.outputs),
            comment="" if number else node.comment,
        )
        for number, key in enumerate(groups[group_operands(node, groups)[0]])
    ]


# -- errors ----------------------------------------------------------------------------------------


def check_members(place: NameSpan, members: Members, of: str, keys: Members, backward: str = "") -> None:
    """Raise Flaw if a group at a place has no member for some keys of the group `of`.

    `backward` is the call of the backward graph that has the members as results.
    """
    missing = [key for key in keys if key not in members]
    if not missing:
        return
    name = f"%{name_text(place.name)}"
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    message = f"{name} has no value for %{name_text(missing[0])}{more}"
    sizes = f"{name} has {counted(len(members), 'member')}, %{name_text(of)} has {len(keys)}"
    hint = f"{sizes}: use groups of the same parameters"
    if backward:
        hint = f"write %{name_text(missing[0])} in by (...) of the `backward` line of {backward}"
    raise Flaw(message, place.start, place.width, hint, code=GROUP)


def not_one_value(place: NameSpan, members: Members) -> Flaw:
    """Return the error of a group where one value is needed."""
    name, first = f"%{name_text(place.name)}", f"%{name_text(next(iter(members.values())))}"
    message = f"{name} is a group of {counted(len(members), 'value')}, but one is needed"
    hint = f"write one of its members, such as {first}"
    return Flaw(message, place.start, place.width, hint, code=GROUP)


# -- printing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MomentLine:
    """A line ``states %m, %v = zeros for %params``: the groups, the group `of`, and the new states."""

    groups: Sequence[GroupLine]
    of: str
    states: Sequence[StateLine]


class FoldedGroups:
    """Finds the statements of a program that its text can write as statements over groups."""

    def __init__(self, program: Program) -> None:
        self.states = program.states
        self.owners = {state.value.name: state.of for state in program.states}
        self.groups: dict[str, Members] = {}
        self.lines: list[GroupLine] = []
        for line in program.groups:
            names = states_of(line, self.owners, self.groups)
            members = {key_of(name, self.owners): name for name in names}
            if names and len(members) == len(names) and self.owners.keys() >= {*names}:
                self.groups[line.name] = members
                self.lines.append(line)
        self.gradients = {f"@{line.name}": line.by for line in program.backwards}
        self._taken: set[str] = set()

    def head(self) -> Iterator[StateLine | GroupLine | MomentLine]:
        """Yield the states and groups in the order of the text."""
        waiting = [*self.lines]
        above: set[str] = set()
        at = 0
        while at < len(self.states):
            moments = self._moments(at, waiting)
            if moments is None:
                above.add(self.states[at].value.name)
                yield self.states[at]
                at += 1
                continue
            before = waiting[: waiting.index(moments.groups[0])]
            if not all(above.issuperset(self.groups[line.name].values()) for line in before):
                above.add(self.states[at].value.name)
                yield self.states[at]
                at += 1
                continue
            yield from before
            waiting = waiting[len(before) :]
            while (
                more := self._moments(at + len(moments.states), waiting[len(moments.groups) :])
            ) is not None:
                if (
                    more.of != moments.of
                    or more.groups[0] != waiting[len(moments.groups)]
                    or more.groups[0].comment
                ):
                    break
                groups, states = (*moments.groups, *more.groups), (*moments.states, *more.states)
                moments = MomentLine(groups, moments.of, states)
            yield moments
            above.update(state.value.name for state in moments.states)
            waiting = waiting[len(moments.groups) :]
            at += len(moments.states)
        yield from waiting

    def _moments(self, at: int, waiting: Sequence[GroupLine]) -> MomentLine | None:
        """Return the line that declares the states from number `at` on, if one of these groups has them."""
        if at >= len(self.states):
            return None
        first = self.states[at]
        line = next((line for line in waiting if line.members[:1] == (first.value.name,)), None)
        if line is None:
            return None
        states = self.states[at : at + len(line.members)]
        if tuple(state.value.name for state in states) != line.members:
            return None
        owners = [state.of for state in states]
        for name, members in self.groups.items():
            if name == line.name:
                return None
            if [*members.values()] == owners and all(
                state.of is not None
                and state.value.name == moment_name(state.of, line.name)
                and state.first == zeros_like(state.value, state.of)
                and not state.comment
                for state in states
            ):
                return MomentLine((line,), name, states)
        return None

    def names(self, names: Sequence[str]) -> list[str]:
        """Return the names with the name of a group in place of all of its members."""
        folded: list[str] = []
        while names:
            fitting = [
                (len(members), name)
                for name, members in self.groups.items()
                if tuple(members.values()) == tuple(names[: len(members)])
            ]
            count, name = max(fitting, default=(1, names[0]))
            folded.append(name)
            names = names[count:]
        return folded

    def enter(self, graph: Graph) -> None:
        """Begin a graph: the names of its groups differ from all names in it."""
        if self.active:
            self._taken = {value.name for value in all_defined(graph)} | self.owners.keys()

    @property
    def active(self) -> bool:
        """Whether the text of the program can use groups."""
        return bool(self.groups or self.gradients)

    def inline_run(self, nodes: Sequence[Node], pc: int) -> dict[str, Node]:
        """Return the statements from `pc` on that the statement after them has in the place of operands.

        They are by their results, in the order of the text; empty if the text would say something else.
        """
        end = pc
        while end < len(nodes) and nodes[end].inline:
            end += 1
        run, host = nodes[pc:end], nodes[end] if end < len(nodes) else None
        if (
            host is None
            or host.kind not in (Kind.OP, Kind.CALL, Kind.UPDATE)
            or host.placement
            or host.comment
        ):
            return {}
        by_name = {node.outputs[0].name: node for node in run if len(node.outputs) == 1}
        order: list[Node] = []
        bases: dict[int, list[str]] = {}
        # In order of execution: each statement after its own operands.
        waiting: list[tuple[Node, bool]] = [(host, False)]
        while waiting:
            node, read = waiting.pop()
            if read:
                order.append(node)
                continue
            inner = [
                (at, by_name[x]) for at, x in enumerate(node.inputs) if isinstance(x, str) and x in by_name
            ]
            for at, each in inner:
                own = host.outputs[at : at + 1] if host.kind is Kind.UPDATE else host.outputs
                bases[id(each)] = [value.name for value in own] if node is host else bases[id(node)]
            waiting += [(node, True), *((each, False) for _, each in reversed(inner))]
            if len(waiting) > 2 * len(nodes):
                return {}
        fits = [*map(id, order)] == [*map(id, (*run, host))] and all(
            node.outputs == (Value(inline_name(node.op, bases[id(node)], run[:number])),)
            and (node.location, node.placement) == (host.location, None)
            and not (node.comment and number)
            and SAVED not in node.attributes
            for number, node in enumerate(run)
        )
        return by_name if fits else {}

    def folded(
        self, nodes: Sequence[Node], pc: int, own: ChainMap[str, Members]
    ) -> tuple[Node, int, str | None]:
        """Return statement `pc` as its line, the number of statements there, and the name after `grads`.

        `own` are the groups that the statements before define; those of the line are added.
        """
        node = nodes[pc]
        if node.kind is Kind.UPDATE:
            return self.update(node, own), 1, None
        if node.op in self.gradients:
            return node, 1, self._gradients(node, own)
        if node.kind in (Kind.OP, Kind.CALL) and node.placement is None and SAVED not in node.attributes:
            groups = ChainMap(*own.maps, {**self.groups})
            for name in node.inputs:
                for members in [*groups.values()] if isinstance(name, str) else ():
                    if next(iter(members.values())) == name:
                        made = self._statement(nodes[pc : pc + len(members)], [*members], groups)
                        if made is not None:
                            self._add(made.outputs, members, own)
                            return made, len(members), None
        return node, 1, None

    def _statement(self, run: Sequence[Node], keys: Sequence[str], groups: Groups) -> Node | None:
        """Return the statement over groups with these statements; None if there is none."""
        first = run[0]
        if len(run) < len(keys) or any(len(node.inputs) != len(first.inputs) for node in run):
            return None
        inputs: list[Operand] = []
        exact = False
        for operands in zip(*(node.inputs for node in run), strict=True):
            fitting = [
                name
                for name, members in groups.items()
                if (exact or [*members] == keys) and [members.get(key, "") for key in keys] == [*operands]
            ]
            inputs.append(fitting[0] if fitting else operands[0])
            exact = exact or bool(fitting)
        end = f".{keys[0]}"
        names = [value.name.removesuffix(end) if value.name else "" for value in first.outputs]
        bases = [name for name in names if name]
        free = all(self._is_free(name, groups) for name in bases)
        if not bases or not exact or len({*bases}) < len(bases) or not free:
            return None
        made = replace(first, inputs=tuple(inputs), outputs=tuple(map(Value, names)))
        return made if spread(made, groups) == [*run] else None

    def _is_free(self, name: str, own: Groups) -> bool:
        return name not in self._taken and name not in self.groups and name not in own

    def _add(self, outputs: Iterable[Value], keys: Iterable[str], own: MutableMapping[str, Members]) -> None:
        own.update({value.name: member_names(value.name, keys) for value in outputs if value.name})

    def _gradients(self, node: Node, own: MutableMapping[str, Members]) -> str | None:
        """Return the name of the group of all gradients of a call of a backward graph."""
        keys = [key_of(name, self.owners) for name in self.gradients[node.op]]
        base = node.outputs[0].name.removesuffix(f".{keys[0]}") if node.outputs else ""
        if not base or not self._is_free(base, own) or len({*keys}) < len(keys):
            return None
        if node.outputs != tuple(Value(f"{base}.{key}") for key in keys):
            return None
        self._add((Value(base),), keys, own)
        return base

    def update(self, node: Node, own: Groups) -> Node:
        """Return an ``update`` with groups in place of all of their members."""
        states, values = [value.name for value in node.outputs], [*node.inputs]
        groups = {**self.groups, **own}
        pairs: list[tuple[str, Operand]] = []
        at = 0
        while at < len(states):
            fitting = [
                (len(members), target, source)
                for target, members in self.groups.items()
                if states[at : at + len(members)] == [*members.values()]
                for source, others in groups.items()
                if others.keys() == members.keys()
                and values[at : at + len(members)] == [others[key] for key in members]
            ]
            count, target, source = max(fitting, default=(1, states[at], ""))
            pairs.append((target, source or values[at]))
            at += count
        if len(pairs) == len(states):
            return node
        outputs, inputs = zip(*pairs, strict=True)
        return replace(node, inputs=tuple(inputs), outputs=tuple(map(Value, outputs)))
