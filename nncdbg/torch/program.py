"""The program of a recorded step: a graph for each phase, and inside it one for each module."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count, groupby
from os.path import commonprefix
from typing import Any

import numpy as np

from nncdbg.engine.frontends.layers import ModulePath, group_layers
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.values.checksum import checksum
from nncdbg.ir.names import reads
from nncdbg.ir.records import (
    Graph,
    Inline,
    Location,
    Node,
    Program,
    SourceLines,
    StateLine,
    Value,
    digest_of,
    module_call,
)
from nncdbg.opening.folder_writing import self_contained
from nncdbg.presentation.source_files import named_file
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER, Event
from nncdbg.torch.source_lines import Lines
from nncdbg.torch.statements import UPDATE, FreeNames, RecordedStatement, RecordedStatements
from nncdbg.torch.storages import Input, Key

GRADIENTS, AFTER = "gradients", "after"
"""Between backward pass and optimizer, as clipping; and after the last optimizer."""

_FORWARD_GRADIENT = "aten.ones_like.default"
"""Makes the gradient of the loss, just before the backward pass."""


@dataclass(frozen=True)
class RecordedProgram:
    """A recording as a program, its inputs, and what it changed."""

    program: Program
    inputs: dict[str, Any]
    """Tensors on the CPU by name, contiguous."""
    states: dict[str, Any]
    """The first values of the states, as those of `inputs`."""
    changed: dict[str, str]
    """Name of a parameter, buffer, gradient or moment to the value that it has at the end."""
    notes: tuple[str, ...]
    sources: dict[str, SourceLines]
    """The lines of the user's code, by the names of files in locations."""
    checksums: dict[str, str]
    """Name of a value of `changed` to the checksum of its content in the training, if that is known."""


def program_of(
    events: Sequence[Event],
    inputs: dict[int, Input],
    labels: Mapping[Key, str],
    placements: Mapping[Key, str],
    persistent: Mapping[str, str | None],
    classes: Mapping[str, str],
    checksums: Mapping[Key, str | np.ndarray[Any, Any]] | None = None,
) -> RecordedProgram:
    """Return the program of the events.

    `labels` names memory, and `placements` says how shards are placed.  `persistent` are the names of
    parameters, buffers and moments, which become states, a moment to its parameter.  `classes` maps a module
    to its class.  `checksums` are of memory at the end, with an array in place of that of a small one.
    """
    named = dict(labels)
    _name_losses(events, named)
    built = RecordedStatements(inputs, named, placements, persistent)
    for event in events:
        built.add(event)
    built.end_phase()
    newest = {key: name for key in named if (name := built.newest(key)) is not None}
    _locate(built.statements)
    changed = {named[key]: name for key, name in newest.items()}
    outputs = [name for name in dict.fromkeys(changed.values()) if name not in built.states]
    program = Program(
        _phase_graphs([*_phases(built.statements)], built, outputs, classes),
        "main",
        states=tuple(_state_lines(built)),
    )
    known = {
        newest[key]: found if isinstance(found, str) else checksum(found)
        for key, found in (checksums or {}).items()
        if key in newest
    }
    return RecordedProgram(
        self_contained(program),
        built.given,
        built.states,
        changed,
        tuple(built.notes),
        _source_lines(built.statements),
        known,
    )


def _name_losses(events: Sequence[Event], labels: dict[Key, str]) -> None:
    """Name the tensors from which backward passes start."""
    known = set(labels.values())
    count = 0
    for event, after in zip(events, events[1:], strict=False):
        starts = event.phase != BACKWARD and after.phase == BACKWARD
        if starts and event.signature.name == _FORWARD_GRADIENT and isinstance(event.arguments[0], tuple):
            count += 1
            name = "loss" if count == 1 else f"loss.{count}"
            if name not in known:
                labels.setdefault(event.arguments[0], name)


def _state_lines(built: RecordedStatements) -> Iterator[StateLine]:
    """Yield the states with their first values, each moment after its parameter."""
    moments: dict[str | None, list[str]] = {}
    for name in built.states:
        moments.setdefault(built.owner(name), []).append(name)
    for name in moments.get(None, ()):
        yield _state_line(name, None, built)
        for moment in moments.get(name, ()):
            yield _state_line(moment, name, built)


def _state_line(name: str, of: str | None, built: RecordedStatements) -> StateLine:
    first = Inline(host_array(built.states[name]))
    return StateLine(built.value(name), first, of, built.placed.get(name, ""))


# -- locations ---------------------------------------------------------------------------


def _locate(statements: Sequence[RecordedStatement]) -> None:
    """Give each statement its source line; a backward one has the line of the operator that it derives."""
    forward: dict[int, Event] = {}
    for statement in statements:
        event = statement.event
        if event.phase != BACKWARD:
            forward.setdefault(event.sequence, event)
    folder = os.getcwd() + os.sep
    calls = {each.event.lines for each in statements if each.event.phase == BACKWARD}
    outer = {lines[:count] for lines in calls for count in range(1, len(lines) + 1)}
    for statement in statements:
        event = statement.event
        source = event
        if event.phase == BACKWARD:
            source = forward.get(event.sequence, event)
            if source is not event and not event.modules:
                event.take_modules(source)
        # The backward pass may run the user's code, such as a hook, which its own lines call.
        own = event.phase == BACKWARD and any(event.lines[n:] in outer for n in range(1, len(event.lines)))
        lines = event.lines if own else source.lines
        statement.location = _location(lines, _name(source, event), folder)


def _name(source: Event, event: Event) -> str | None:
    """Return the module's path, and in a backward pass the autograd node."""
    parts = [source.modules[-1] if source.modules else "", event.node]
    return " ".join(part for part in parts if part) or None


def _source_lines(statements: Sequence[RecordedStatement]) -> dict[str, SourceLines]:
    """Return the text of the user's lines, as far as it is known."""
    numbers: dict[str, set[int]] = {}
    for file, line in {each for statement in statements for each in statement.event.lines}:
        numbers.setdefault(file, set()).add(line)
    folder = os.getcwd() + os.sep
    found = {}
    for file, listed in numbers.items():
        linecache.checkcache(file)
        if text := linecache.getlines(file):
            lines = {str(each): text[each - 1].rstrip("\n") for each in sorted(listed) if each <= len(text)}
            found[_file_name(file, folder)] = SourceLines(digest_of("".join(text)), lines)
    return found


def _file_name(file: str, folder: str) -> str:
    return named_file(file).removeprefix(folder)


def _location(lines: Lines, name: str | None, folder: str) -> Location | None:
    if not lines:
        return Location(name=name) if name else None
    (file, line), *callers = [(_file_name(file, folder), line) for file, line in lines]
    return Location(file, line, name, tuple(callers))


# -- phases ------------------------------------------------------------------------------


def _phases(statements: Sequence[RecordedStatement]) -> Iterator[tuple[str, list[RecordedStatement]]]:
    """Yield consecutive statements of one phase, with a unique name: ``forward``, ``backward.2``."""
    runs = [(phase, list(run)) for phase, run in groupby(statements, lambda each: each.event.phase)]
    names = FreeNames()
    numbers: dict[str, int] = {}
    later = [phase for phase, _ in runs]
    for index, (phase, run) in enumerate(runs):
        wanted = _phase_name(phase, later[:index], later[index + 1 :])
        numbers[wanted] = numbers.get(wanted, 0) + 1
        name = wanted if numbers[wanted] == 1 else f"{wanted}.{numbers[wanted]}"
        yield names.fresh(name), run


def _phase_name(phase: str, before: Sequence[str], after: Sequence[str]) -> str:
    """Return the name of a phase: what is no backward pass may come before the optimizer, or after it."""
    if phase != FORWARD:
        return phase
    following = [each for each in after if each != FORWARD]
    if not following:
        return AFTER if OPTIMIZER in before else GRADIENTS if BACKWARD in before else FORWARD
    return GRADIENTS if following[0] == OPTIMIZER and BACKWARD in before else FORWARD


def _phase_graphs(
    phases: Sequence[tuple[str, list[RecordedStatement]]],
    built: RecordedStatements,
    results: Sequence[str],
    classes: Mapping[str, str],
) -> dict[str, Graph]:
    """Return the graphs: the entry, which calls the phases, and the graphs of each phase."""
    names = FreeNames()
    names.fresh("main")
    for phase, _ in phases:
        names.fresh(phase)
    needed = set(results)
    made: list[list[Graph]] = []
    calls: list[Node] = []
    for phase, statements in reversed(phases):
        nodes = [statement.node() for statement in statements]
        scopes = _scopes(statements)
        graph = phase_graph(phase, nodes, built.value, needed, built.states.keys())
        needed.update(value.name for value in graph.inputs)
        calls.append(Node(f"@{graph.name}", tuple(v.name for v in graph.inputs), graph.outputs))
        suffix = ".backward" if phase.startswith(BACKWARD) else ""

        def claim(module: str, suffix: str = suffix) -> str:
            """Return the name of a graph of a call; a part that is apart has a further number."""
            numbered = (module_call(f"{module}{suffix}", number) for number in count(1))
            return next(name for name in numbered if names.take(name))

        made.append(group_layers(graph, scopes, claim, classes, built.states.keys()))
    entry = Graph(
        "main",
        tuple(built.value(name) for name in built.given),
        tuple(built.value(name) for name in results),
        tuple(reversed(calls)),
    )
    graphs = {"main": entry}
    for listed in reversed(made):
        graphs.update({graph.name: graph for graph in listed})
    return graphs


def _scopes(statements: Sequence[RecordedStatement]) -> list[ModulePath]:
    """Return the calls of modules around each statement; around an update, those around the whole phase."""
    scopes = [
        tuple(
            module_call(module, call)
            for module, call in zip(each.event.modules, each.event.calls, strict=True)
            if module
        )
        for each in statements
    ]
    whole = tuple(commonprefix([s for s, each in zip(scopes, statements, strict=True) if each.op != UPDATE]))
    return [whole if each.op == UPDATE else s for s, each in zip(scopes, statements, strict=True)]


def phase_graph(
    name: str,
    nodes: Sequence[Node],
    typed: Callable[[str], Value],
    needed: Set[str],
    states: Set[str] = frozenset(),
) -> Graph:
    """Return statements as a graph: its inputs are what they read, its outputs are those of `needed`.

    `states` are the names of states, which are read without an input.
    """
    defined = {value.name for node in nodes for value in node.outputs if value.name} | states
    used = dict.fromkeys(name for node in nodes for name in reads(node))
    found = (value for node in nodes for value in node.outputs if value.name and value.name in needed)
    outputs = tuple(value for value in found if value.name not in states)
    inputs = tuple(typed(each) for each in used if each not in defined)
    return Graph(name, inputs, outputs, tuple(nodes))
