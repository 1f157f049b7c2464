"""A recorded training step: its program, its inputs, and what can be done with it.

The program has a graph for each phase, and inside it one for each module.
"""

from __future__ import annotations

import linecache
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count, groupby, takewhile
from os.path import commonprefix
from typing import Any

import numpy as np

from nncdbg.comparison.verification import DeterminismVerification
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.verification import verify_determinism
from nncdbg.engine.frontends.layers import ModulePath, group_layers
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.operators import FIRST_GRADIENT
from nncdbg.engine.values.checksum import checksum
from nncdbg.errors import RunError, UsageError
from nncdbg.ir.names import reads
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Location,
    Node,
    Program,
    SavedRun,
    SourceLines,
    StateLine,
    Value,
    digest_of,
    module_call,
)
from nncdbg.ir.source_trace import NO_VISIT, SourceCall, SourceName, SourceTrace, SourceVisit
from nncdbg.opening.folder_writing import self_contained, write_folder
from nncdbg.presentation.source_files import named_file
from nncdbg.representation import RichOutput, represent
from nncdbg.textual_repr.passed_values import with_passed_values_last
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER, Event
from nncdbg.torch.source_frames import NameBinding, RecordedSource, UserCall, Visit
from nncdbg.torch.statements import UPDATE, FreeNames, RecordedStatement, RecordedStatements
from nncdbg.torch.storages import Input, Key

GRADIENTS, AFTER = "gradients", "after"
"""Between backward pass and optimizer, as clipping; and after the last optimizer."""


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
    """The user's files, by their names in locations."""
    trace: SourceTrace
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
    source: RecordedSource = RecordedSource(),  # noqa: B008  frozen
) -> RecordedProgram:
    """Return the program of the events.

    `labels` names memory, and `placements` says how shards are placed.  `persistent` are the names of
    parameters, buffers and moments, which become states, a moment to its parameter.  `classes` maps a module
    to its class.  `checksums` are of memory at the end, with an array in place of that of a small one.
    `source` is what is known of the user's source.
    """
    named = dict(labels)
    _name_losses(events, named)
    built = RecordedStatements(inputs, named, placements, persistent)
    names = NamedValues(built, source.bindings)
    for number, event in enumerate(events):
        names.before(number)
        built.add(event)
        names.after(event)
    names.before(len(events))
    built.end_phase()
    newest = {key: name for key in named if (name := built.newest(key)) is not None}
    _locate(built.statements)
    changed = {named[key]: name for key, name in newest.items()}
    outputs = [name for name in dict.fromkeys(changed.values()) if name not in built.states]
    program = Program(_graphs(built, outputs, classes), "main", states=tuple(_state_lines(built)))
    program = with_passed_values_last(program)
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
        _source_lines(source.texts),
        names.trace(_file_name, source.callers),
        known,
    )


def _name_losses(events: Sequence[Event], labels: dict[Key, str]) -> None:
    """Name the tensors from which backward passes start."""
    known = set(labels.values())
    count = 0
    for event, after in zip(events, events[1:], strict=False):
        starts = event.phase != BACKWARD and after.phase == BACKWARD
        if starts and event.signature.name == FIRST_GRADIENT and isinstance(event.arguments[0], tuple):
            count += 1
            name = "loss" if count == 1 else f"loss.{count}"
            if name not in known:
                labels.setdefault(event.arguments[0], name)


def _state_lines(built: RecordedStatements) -> Iterator[StateLine]:
    """Yield the states with their first values, each moment after its parameter."""
    moments: dict[str | None, list[str]] = {}
    for name in built.states:
        moments.setdefault(built.owner(name), []).append(name)
    for owner in moments.get(None, ()):
        for name in (owner, *moments.get(owner, ())):
            first = Inline(host_array(built.states[name]))
            of = None if name == owner else owner
            yield StateLine(built.value(name), first, of, built.placed.get(name, ""))


# -- locations ---------------------------------------------------------------------------


def _locate(statements: Sequence[RecordedStatement]) -> None:
    """Give each statement its source line; a backward one has the line of the operator that it derives."""
    forward: dict[int, Event] = {}
    for statement in statements:
        event = statement.event
        if event.phase != BACKWARD:
            forward.setdefault(event.sequence, event)
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
        places = [(_file_name(file), line) for file, line in lines]
        # The module's path, and in a backward pass the autograd node.
        name = " ".join(filter(None, (*source.modules[-1:], event.node))) or None
        if places:
            location = Location(*places[0], name, tuple(places[1:]))
            statement.node = replace(statement.node, location=location)
        elif name:
            statement.node = replace(statement.node, location=Location(name=name))


def texts_of(events: Iterable[Event]) -> dict[str, Sequence[str]]:
    """Return the lines of the user's files whose lines ran, as far as their text is known now."""
    files = {file: None for lines in {event.lines: None for event in events} for file, _ in lines}
    seen: set[Visit | None] = {None}
    for event in events:
        visit = event.visit
        while visit not in seen:
            assert visit is not None
            seen.add(visit)
            files[visit.call.file] = None
            visit = visit.call.caller
    for file in files:
        linecache.checkcache(file)
    return {file: text for file in files if (text := linecache.getlines(file))}


def _source_lines(texts: Mapping[str, Sequence[str]]) -> dict[str, SourceLines]:
    """Return the user's files, by their names in locations."""
    found = {}
    for file, text in texts.items():
        lines = {str(number): line.rstrip("\n") for number, line in enumerate(text, 1)}
        found[_file_name(file)] = SourceLines(digest_of("".join(text)), lines)
    return found


def _file_name(file: str) -> str:
    """Return the name of a file in locations: relative to the current folder, or of a notebook's cell."""
    return named_file(file).removeprefix(os.getcwd() + os.sep)


# -- the trace of the source ---------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Held:
    """What a name of a call holds: memory, and its value from the next statement, number `since`, on."""

    call: UserCall
    name: str
    key: Key | None
    since: int
    value: str = ""


class NamedValues:
    """Follows which values the names of the user hold while the statements of a recording are built."""

    def __init__(self, built: RecordedStatements, bindings: Sequence[NameBinding]) -> None:
        self._built = built
        self._bindings = iter(bindings)
        self._next = next(self._bindings, None)
        self._changes: list[_Held] = []
        self._held: dict[tuple[UserCall, str], _Held] = {}
        self._holders: defaultdict[int, dict[tuple[UserCall, str], None]] = defaultdict(dict)
        """The names that hold a tensor in a storage, by the storage."""
        built.entered = self._resolve

    def before(self, event: int) -> None:
        """Bind the names that hold other tensors from an event on, by its number."""
        while self._next is not None and self._next.event <= event:
            self._bind(self._next)
            self._next = next(self._bindings, None)

    def after(self, event: Event) -> None:
        """Enter the values of the memory that an event wrote, or made views of."""
        given = [each if isinstance(each, list) else [each] for each in event.arguments]
        keys = [key for listed in (*given, event.results, event.written) for key in listed]
        self._resolve(*{key[0]: None for key in keys if isinstance(key, tuple)})

    def trace(self, file_name: Callable[[str], str], callers: int) -> SourceTrace:
        """Return the trace of the statements; `file_name` returns the name of a file as in locations.

        `callers` is the number of outermost calls in which no line began.
        """
        built = self._built
        return _TraceBuilder(built.statements, self._changes, file_name, built.parameter_of).trace(callers)

    def _bind(self, binding: NameBinding) -> None:
        name = binding.call, binding.name
        before = self._held.get(name)
        if before is not None and before.key is not None:
            del self._holders[before.key[0]][name]
        key = binding.key
        self._enter(_Held(*name, key, len(self._built.statements)))
        if key is not None:
            self._holders[key[0]][name] = None
            self._resolve(key[0])

    def _enter(self, held: _Held) -> None:
        self._held[held.call, held.name] = held
        self._changes.append(held)

    def _resolve(self, *storages: int) -> None:
        """Enter the present values of the names that hold a tensor in one of these storages."""
        count = len(self._built.statements)
        for storage in storages:
            for name in self._holders.get(storage, ()):
                held = self._held[name]
                assert held.key is not None
                value = self._built.value_of(held.key)
                if value is None or value == held.value:
                    continue
                first = not held.value and self._built.is_first_value(value, storage)
                if held.since == count or first:
                    held.value = value
                else:
                    self._enter(_Held(held.call, held.name, held.key, count, value))


_UPDATE = "update"
"""The function of the calls that are updates of an optimizer."""


class _TraceBuilder:
    """Numbers calls and visits, and makes a call of each backward pass."""

    def __init__(
        self,
        statements: Sequence[RecordedStatement],
        changes: Sequence[_Held],
        file_name: Callable[[str], str],
        parameter_of: Callable[[str], str],
    ) -> None:
        self._statements = statements
        self._parameter_of = parameter_of
        self._changes = changes
        self._file_name = file_name
        self._calls: list[SourceCall] = []
        self._visits: list[SourceVisit] = []
        self._numbers: dict[UserCall | Visit, int] = {}
        self._forward: dict[int, RecordedStatement] = {}
        """The first statement of the forward pass with a number of autograd."""
        self._gradients: list[SourceName] = []
        self._derived: list[tuple[int, int, int]] = []
        """The stack of the backward pass: visit of the forward pass, that of the line that runs it, own."""
        self._named: set[str] = set()
        """The values whose gradients were found."""
        self._held_by: defaultdict[str, list[_Held]] = defaultdict(list)
        for each in changes:
            self._held_by[each.value].append(each)
        made = (value for each in statements if _is_backward(each) for value in each.node.outputs)
        self._backward_types = {value.name: value.type for value in made}

    def trace(self, callers: int) -> SourceTrace:
        numbers = [*self._statement_visits()]
        names = [
            SourceName(self._call(each.call), each.name, each.since, each.value) for each in self._changes
        ]
        names = sorted([*names, *self._gradients], key=lambda each: each.since)
        return SourceTrace(self._calls, self._visits, numbers, names, callers)

    def _statement_visits(self) -> Iterator[int]:
        """Yield the visit of each statement; an update of states belongs to the statement before it."""
        before = NO_VISIT
        passes = self._backward_visits()
        for number, each in enumerate(self._statements):
            event = each.event
            if each.node.op == UPDATE:
                yield before
                continue
            here = self._visit(event.visit)
            if event.phase == OPTIMIZER:
                before = self._update(each, here, before)
            elif event.phase != BACKWARD:
                self._forward.setdefault(event.sequence, each)
                self._derived.clear()
                before = here
            elif event.visit is not passes[number]:
                before = here  # The pass runs code of the user, such as a hook.
            elif (source := self._forward.get(event.sequence)) is not None:
                before = self._derivative(self._visit(source.event.visit), here)
                self._name_gradient(number, each, source)
            else:
                derived = self._derived
                before = derived[-1][2] if derived and derived[0][1] == here else here
            yield before

    def _backward_visits(self) -> dict[int, Visit | None]:
        """Return the visit that runs the backward pass of each of its statements, by number.

        It is around all of its operators, and around the one that makes its first gradient.
        """
        found: dict[int, Visit | None] = {}
        for is_pass, run in groupby(
            range(len(self._statements)), lambda n: _is_backward(self._statements[n])
        ):
            numbers = [*run] if is_pass else []
            stacks = [_visits_around(self._statements[number].event.visit) for number in numbers]
            around = None
            for level in takewhile(lambda level: len({*level}) == 1, zip(*stacks, strict=False)):
                around = level[0]
            found.update(dict.fromkeys(numbers, around))
        return found

    def _derivative(self, visit: int, here: int) -> int:
        """Return the visit of a backward pass that derives a visit; `here` is the line that runs the pass.

        The calls of the backward pass mirror those of the forward pass, as far as it is not a call around
        `here`.
        """
        if NO_VISIT in (visit, here):
            return here
        around = {self._visits[each].call for each in self._stack(here)}
        mirrored = self._stack(visit)
        while len(mirrored) > 1 and self._visits[mirrored[1]].call in around:
            del mirrored[0]
        derived = self._derived
        if derived and derived[0][1] != here:
            derived.clear()
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], zip(mirrored, derived, strict=False))
        )
        before = derived[same] if same < len(derived) else None
        del derived[same:]
        for each in mirrored[same:]:
            line = self._visits[each]
            if before is not None and self._visits[before[0]].call == line.call:
                call = self._visits[before[2]].call  # Another line of the same call.
            else:
                call = self._backward_call(derived[-1][2] if derived else here)
            before = None
            self._visits.append(SourceVisit(call, line.line, each))
            derived.append((each, here, len(self._visits) - 1))
        return derived[-1][2]

    def _update(self, statement: RecordedStatement, here: int, before: int) -> int:
        """Return the visit of an update by `here` for the parameter of a statement; without one, the last."""
        if here == NO_VISIT:
            return here
        operands = (name for name in statement.node.inputs if isinstance(name, str))
        parameter = next((found for name in operands if (found := self._parameter_of(name))), "")
        last = self._visits[before] if before != NO_VISIT else None
        call = last.call if last is not None and last.parameter else None
        if call is None or self._calls[call].caller != here:
            if not parameter:
                return here
            self._calls.append(SourceCall(self._calls[self._visits[here].call].file, _UPDATE, here))
            call = len(self._calls) - 1
        elif not parameter or (last is not None and parameter == last.parameter):
            return before
        self._visits.append(SourceVisit(call, self._visits[here].line, parameter=parameter))
        return len(self._visits) - 1

    def _backward_call(self, caller: int) -> int:
        file = self._calls[self._visits[caller].call].file
        self._calls.append(SourceCall(file, BACKWARD, caller))
        return len(self._calls) - 1

    def _stack(self, visit: int) -> list[int]:
        """Return a visit and those that called it, outermost first."""
        found = []
        while visit != NO_VISIT:
            found.append(visit)
            visit = self._calls[self._visits[visit].call].caller
        return found[::-1]

    def _name_gradient(self, number: int, statement: RecordedStatement, source: RecordedStatement) -> None:
        """Name the gradient that a statement reads, `h.grad`, if the forward statement has made `h`."""
        made = source.node.outputs[0]
        if not made.name or made.name in self._named:
            return
        operands = (name for name in statement.node.inputs if isinstance(name, str))
        gradient = next((name for name in operands if self._backward_types.get(name) == made.type), None)
        if gradient is None:
            return
        self._named.add(made.name)
        levels = {self._visits[forward].call: self._visits[visit].call for forward, _, visit in self._derived}
        for held in self._held_by.get(made.name, ()):
            call = levels.get(self._call(held.call))
            if call is not None:
                self._gradients.append(SourceName(call, f"{held.name}.grad", number, gradient))

    def _call(self, call: UserCall) -> int:
        if call not in self._numbers:
            caller = self._visit(call.caller)
            self._numbers[call] = len(self._calls)
            self._calls.append(SourceCall(self._file_name(call.file), call.function, caller))
        return self._numbers[call]

    def _visit(self, visit: Visit | None) -> int:
        if visit is None:
            return NO_VISIT
        if visit not in self._numbers:
            call = self._call(visit.call)
            self._numbers[visit] = len(self._visits)
            self._visits.append(SourceVisit(call, visit.line))
        return self._numbers[visit]


def _visits_around(visit: Visit | None) -> list[Visit]:
    """Return a visit and those that called it, outermost first."""
    found = []
    while visit is not None:
        found.append(visit)
        visit = visit.call.caller
    return found[::-1]


def _is_backward(statement: RecordedStatement) -> bool:
    """Return whether a statement belongs to a backward pass, or makes the gradient with which one begins."""
    event = statement.event
    return event.phase == BACKWARD or event.signature.name == FIRST_GRADIENT


# -- phases ------------------------------------------------------------------------------


def _phases(statements: Sequence[RecordedStatement]) -> Iterator[tuple[str, list[RecordedStatement]]]:
    """Yield consecutive statements of one phase, with a unique name: ``forward``, ``backward.2``."""
    runs = [(phase, list(run)) for phase, run in groupby(statements, lambda each: each.event.phase)]
    names = FreeNames()
    numbers: dict[str, int] = {}
    later = [phase for phase, _ in runs]
    for index, (wanted, run) in enumerate(runs):
        before, following = later[:index], next((x for x in later[index + 1 :] if x != FORWARD), "")
        # What is no backward pass may come before the optimizer, or after it.
        if wanted == FORWARD and not following and OPTIMIZER in before:
            wanted = AFTER
        elif wanted == FORWARD and following in ("", OPTIMIZER) and BACKWARD in before:
            wanted = GRADIENTS
        numbers[wanted] = numbers.get(wanted, 0) + 1
        name = wanted if numbers[wanted] == 1 else f"{wanted}.{numbers[wanted]}"
        yield names.fresh(name), run


def _graphs(
    built: RecordedStatements, results: Sequence[str], classes: Mapping[str, str]
) -> dict[str, Graph]:
    phases = [
        (name, [each.node for each in statements], _scopes(statements))
        for name, statements in _phases(built.statements)
    ]
    names = FreeNames()
    for name in ("main", *(phase for phase, *_ in phases)):
        names.fresh(name)

    def claim(module: str) -> str:
        """Return the name of a graph of a call; a part that is apart has a further number."""
        return next(name for n in count(1) if names.take(name := module_call(module, n)))

    inputs = tuple(map(built.value, built.given))
    return program_graphs(phases, inputs, results, built.value, claim, classes, states=built.states.keys())


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
    updates = [each.node.op == UPDATE for each in statements]
    whole = tuple(commonprefix([s for s, update in zip(scopes, updates, strict=True) if not update]))
    return [whole if update else s for s, update in zip(scopes, updates, strict=True)]


def program_graphs(
    phases: Sequence[tuple[str, Sequence[Node], Sequence[ModulePath]]],
    inputs: tuple[Value, ...],
    results: Sequence[str],
    typed: Callable[[str], Value],
    claim: Callable[[str], str],
    classes: Mapping[str, str],
    *,
    states: Set[str] = frozenset(),
    constants: Sequence[Constant] = (),
) -> dict[str, Graph]:
    """Return the entry ``main``, which calls the phases, and for each phase its graph and those of modules.

    A phase is a name, its statements, and the calls of modules around each.  Its inputs are what it reads,
    but for `states` and `constants`, its outputs what later phases read and the `results` of the program.
    `claim` returns a free name for the graph of a module.
    """
    needed = set(results)
    made: list[list[Graph]] = []
    calls: list[Node] = []
    for phase, nodes, scopes in reversed(phases):
        made_here = [value for node in nodes for value in node.outputs if value.name]
        defined = {value.name for value in made_here} | states
        read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in defined)
        own = tuple(each for each in constants if read.pop(each.value.name, ...) is not ...)
        outputs = tuple(each for each in made_here if each.name in needed and each.name not in states)
        graph = Graph(phase, tuple(map(typed, read)), outputs, tuple(nodes), own)
        needed |= read.keys()
        calls.append(Node(f"@{phase}", tuple(read), outputs))
        suffix = ".backward" if phase.startswith(BACKWARD) else ""

        def claim_in_phase(module: str, suffix: str = suffix) -> str:
            return claim(f"{module}{suffix}")

        made.append(group_layers(graph, scopes, claim_in_phase, classes, states))
    graphs = {"main": Graph("main", inputs, tuple(map(typed, results)), tuple(reversed(calls)))}
    for listed in reversed(made):
        graphs.update({graph.name: graph for graph in listed})
    return graphs


BACKEND = "torch"

_NUMBERS = count(1)


class RecordedStep(RichOutput):
    """A recorded step.  It is complete when the block of `record` has ended.

    A step that does not fit in memory is not recorded, and its block runs on: `notes` says so, and all that
    needs the program raises RunError.

    Functions that take a program take a recorded step as well: `nncdbg.Debugger(step)`.
    """

    def __init__(self) -> None:
        self._recorded: RecordedProgram | None = None
        self._build: Callable[[], RecordedProgram] | None = None
        self.failure: RunError | None = None
        """Why nothing was recorded."""
        self._program: Program | None = None
        self._notes: tuple[str, ...] = ()
        self._number = next(_NUMBERS)
        self.bad_gradients: bool | None = None
        """Whether gradients had NaN or Inf at the end of a second run, which does not communicate with other
        ranks; None for a first run, or one that ended early."""
        self.same_states = True
        """Whether a second run made the same states NaN or Inf."""

    @property
    def complete(self) -> bool:
        """Whether the block of `record` has ended, and the step was recorded."""
        return self._build is not None

    @property
    def program(self) -> Program:
        """The program: graphs `@forward`, `@backward`, `@optimizer`, and one for each module.

        It runs on the backend torch with the inputs of the step, unless others are given.
        """
        if self._program is None:
            recorded = self._complete()
            saved = SavedRun(
                origin=f"recorded step {self._number}",
                inputs=self._inputs,
                backend=BACKEND,
                checksums=recorded.checksums,
                sources=recorded.sources,
                trace=recorded.trace,
            )
            self._program = replace(recorded.program, notes=self.notes, saved=saved)
        return self._program

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The values before the step by name: parameters, buffers, moments, random states, the batch.

        The batch is inputs of the program, all others are its states.
        """
        first = self._complete().states
        return {**{name: host_array(tensor) for name, tensor in first.items()}, **self._inputs}

    @property
    def _inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: host_array(tensor) for name, tensor in self._complete().inputs.items()}

    @property
    def changed(self) -> dict[str, str]:
        """Parameter, buffer, gradient (``w.grad``) or moment (``w.exp_avg``) to its value at the end."""
        return dict(self._complete().changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the program cannot show, a sentence each."""
        if self.failure is not None:
            return (*self._notes, self.failure.message)
        return (*self._notes, *self._complete().notes)

    def plot(self, axes: Any = None) -> Any:
        """Run the step, and plot norm and largest absolute value of each float result over its statements.

        Forward pass, backward pass and optimizer are on one axis; red lines mark NaN and Inf.  Return
        matplotlib's axes, new ones if none are given.  Raises UsageError without matplotlib.
        """
        return represent("plot", self.program, self._inputs, axes)

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        title: str | None = None,
        notes: Iterable[str] = (),
        source: bool = True,
    ) -> None:
        """Save the step as a program folder, which `nncdbg DIRECTORY` and `nncdbg.load(directory)` open.

        `title` is the line shown when the folder opens, and `notes` are shown below it.  Without `source`,
        the folder has digests of your source files, but neither their text nor the names of variables and
        functions.  The folder is created, or replaced if nncdbg wrote it.

        Raises UsageError if the path holds anything else; LoadError if the folder cannot be written.
        """
        title = title if title is not None else f"recorded step{self._script()}"
        notes = [*self.notes, *notes]
        program = self.program
        if not source:
            digests = {file: replace(text, lines={}) for file, text in program.saved.sources.items()}
            program = replace(program, saved=replace(program.saved, sources=digests, trace=None))
        write_folder(
            directory,
            program,
            self._inputs,
            settings={"checksums": self.program.saved.checksums, "backend": BACKEND},
            title=title,
            notes=notes,
        )

    def verify_determinism(self) -> DeterminismVerification:
        """Run the step twice, and compare the bits of each result, and those of the training at the end.

        The report names the first statement that differs, as ``print(step.verify_determinism())`` shows.
        Its `ok` is False too if both runs agree, but a parameter, buffer, gradient or moment has other bits
        than the step left in it: the step depends on more than its inputs.
        """
        return verify_determinism(
            lambda: Debugger(self.program, statistics=False), self.program.saved.checksums
        )

    def _script(self) -> str:
        """Return the file that ran the first operator, as `` of train.py``; "" if there is none."""
        for graph in self._complete().program.graphs.values():
            for place in (node.location for node in graph.nodes if node.location is not None):
                lines = [place.file or "", *(file for file, _ in place.stack)]
                files = [os.path.basename(file) for file in lines if file and not file.startswith("<")]
                if files:
                    return f" of {files[-1]}"
        return ""

    def __repr__(self) -> str:
        if self.failure is not None:
            return f"<RecordedStep, {self.failure.message}>"
        if self._build is None:
            return "<RecordedStep, not complete>"
        return f"<RecordedStep {self.program.summary()}>"

    def _complete(self) -> RecordedProgram:
        if self.failure is not None:
            # Each time without the frames of the last time, which hold tensors.
            raise self.failure.with_traceback(None)
        if self._build is None:
            raise UsageError(
                "the step is not complete yet",
                hint="use it after the block of `with nncdbg.torch.record(...)`",
            )
        if self._recorded is None:
            self._recorded = self._build()
        return self._recorded
