"""A recorded training step: its program, its inputs, and what can be done with it.

The program has a graph for each phase, and inside it one for each module.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count, groupby
from os.path import commonprefix
from typing import Any

import numpy as np

from nncdbg.comparison.verification import DeterminismVerification
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.verification import verify_determinism
from nncdbg.engine.frontends.layers import ModulePath, group_layers
from nncdbg.engine.ops.aten.arrays import host_array
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
from nncdbg.ir.source_trace import SourceTrace
from nncdbg.opening.folder_writing import self_contained, write_folder
from nncdbg.presentation.source_files import named_file
from nncdbg.representation import RichOutput, represent
from nncdbg.torch.recording import BACKWARD, FIRST_GRADIENT, FORWARD, OPTIMIZER, Event
from nncdbg.torch.source_frames import Binding, Visit
from nncdbg.torch.source_values import NamedValues
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
    bindings: Sequence[Binding] = (),
    callers: int = 0,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> RecordedProgram:
    """Return the program of the events.

    `labels` names memory, and `placements` says how shards are placed.  `persistent` are the names of
    parameters, buffers and moments, which become states, a moment to its parameter.  `classes` maps a module
    to its class.  `checksums` are of memory at the end, with an array in place of that of a small one.
    `bindings` are those of the user's names; `callers` is the number of outermost frames that only called the
    one in which the recording began.  `texts` are the lines of the user's files.
    """
    named = dict(labels)
    _name_losses(events, named)
    built = RecordedStatements(inputs, named, placements, persistent)
    names = NamedValues(built, bindings)
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
        _source_lines(texts or {}),
        names.trace(_file_name, callers),
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
            backend=BACKEND,
            settings={"checksums": self.program.saved.checksums},
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
