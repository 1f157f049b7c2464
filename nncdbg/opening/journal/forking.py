"""Forks: a new run that begins at the start of a step of another run, which stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends import load
from nncdbg.engine.inputs.binding import Note
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.time.step_starts import NumberedRun, lines_of, restored
from nncdbg.engine.values.new_values import from_text
from nncdbg.errors import ParseError, UsageError
from nncdbg.ir.records import Array, Node, Program, TensorType, type_of
from nncdbg.ir.walk import walk, walk_nodes
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.content import program_of, text_of
from nncdbg.opening.journal.steps import Steps, add_earlier_tracks, run_to_step
from nncdbg.opening.journal_address import Address
from nncdbg.text.lexemes import name_text
from nncdbg.textual_repr.parser import parse

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.journal import Journal, Run
    from nncdbg.opening.journal.reopening import ReopenedRun

# -- changes of a fork -----------------------------------------------------------------------------
# `--set NAME=VALUE`: what a fork has other than its parent.
#
# A name is one of these, and it is an error if it is several:
#
# * `NAME`: the attribute NAME that statements of optimizers write, such as `lr`.  If they have different
#   values, `LINE:NAME` is that of one statement.
# * `%NAME`, or `NAME` if there is no such attribute: a state, from the first step of the fork on; or an input
#   of the program, in the whole fork.

_LINE = re.compile(r"([1-9][0-9]*):(.+)")


def changed(
    program: Program, text: str, changes: Mapping[str, Any], states: Mapping[str, Any], folder: Path | None
) -> tuple[str, dict[str, Array], dict[str, str]]:
    """Return what a fork has other than its parent: the text, new values of states, the texts of inputs.

    `text` is that of the parent's program, which gets other attributes.  `states` are the values of the
    states at the fork, and `folder` is that of files.  Raises UsageError for a name that is unknown or
    ambiguous, and for a value that does not fit.
    """
    new_states: dict[str, Array] = {}
    new_inputs: dict[str, str] = {}
    inputs = {value.name for value in program.graph.inputs} | _data(program)
    for name, value in ((name, str(value)) for name, value in changes.items()):
        plain = name.removeprefix("%")
        attributes = [] if name.startswith("%") else _attributes(program, name)
        kinds = [
            *(["an attribute of an optimizer"] if attributes else []),
            *(["a state"] if plain in states else []),
            *(["an input"] if plain in inputs else []),
        ]
        if not kinds:
            raise _unknown(program, name, value, states)
        if len(kinds) > 1:
            raise UsageError(
                f"--set {name}={value} is ambiguous: {name} is {' and '.join(kinds)}",
                hint=f"write %{name_text(plain)} for the value, "
                f"or LINE:{plain} for the attribute of a statement",
            )
        if attributes:
            text = _with_attribute(text, program, attributes, plain.rpartition(":")[2], value)
        elif plain in states:
            new_states[plain] = _state(plain, np.asarray(states[plain]), value, folder)
        else:
            new_inputs[plain] = value
    return text, new_states, new_inputs


def _unknown(program: Program, name: str, value: str, states: Mapping[str, Any]) -> UsageError:
    """Return the error for a name that nothing has."""
    plain = name.removeprefix("%")
    if wanted := _LINE.fullmatch(plain):
        lines = [str(line) for line, node in _optimizers(program) if wanted[2] in node.attributes]
        return UsageError(
            f"--set {name}={value}: no optimizer in line {wanted[1]} writes {wanted[2]}",
            hint=f"lines that write it: {', '.join(lines[:8]) or 'none'}",
        )
    return UsageError(
        f"--set {name}={value}: no optimizer writes {plain}, and no state or input has this name",
        hint=f"states: {', '.join(f'%{name_text(each)}' for each in [*states][:8]) or 'none'}",
    )


def _data(program: Program) -> set[str]:
    lines = [line for run in program.runs for line in (run, *run.evaluations)]
    return {name for line in lines if not line.sources for name in line.values}


# -- attributes --------------------------------------------------------------------------------------


def _attributes(program: Program, name: str) -> list[tuple[int, Node]]:
    """Return (line, statement) of each optimizer that writes the attribute, in `LINE:NAME` that of the line.

    Raises UsageError if they have different values.
    """
    wanted = _LINE.fullmatch(name)
    attribute = wanted[2] if wanted else name
    found = [
        (line, node)
        for line, node in _optimizers(program)
        if attribute in node.attributes and (wanted is None or line == int(wanted[1]))
    ]
    if len({repr(node.attributes[attribute]) for _, node in found}) > 1:
        contents = ((node.attributes[attribute], line) for line, node in found)
        listed = ", ".join(  # Floats of ONNX are f32.
            f"{str(np.float32(content)) if isinstance(content, float) else repr(content)} in line {line}"
            for content, line in contents
        )
        raise UsageError(
            f"--set {name} is ambiguous: the optimizers have different values of {name}: {listed}",
            hint=f"write --set {found[0][0]}:{name}=VALUE for one of them",
        )
    return found


def _optimizers(program: Program) -> list[tuple[int, Node]]:
    """Return the statements of optimizers, with their lines in the text of the program."""
    listing, found = program.as_listing(), []
    for path, _, pc, node in walk(program.graphs):
        op = lookup(node.op, version_of(node.op, program.opsets))
        if op is not None and op.optimizes:
            found.append((listing.line(path, pc), node))
    return found


def _with_attribute(
    text: str, program: Program, places: list[tuple[int, Node]], attribute: str, value: str
) -> str:
    """Return the text with another value of an attribute; comments and lines stay.

    Raises UsageError for a value that the program does not accept there.
    """
    lines = text.split("\n")
    spelled = re.compile(rf"(?<![\w.%]){re.escape(attribute)}\s*=\s*[^,()\[\]]+(?=[,)])")
    for line, _ in places:
        lines[line - 1], count = spelled.subn(f"{attribute}={value}", lines[line - 1])
        if count != 1:
            raise UsageError(
                f"--set {attribute}={value}: line {line} does not write {attribute} once",
                hint="change the program, and start the training again",
            )
    changed = "\n".join(lines)
    try:
        made = parse(changed)
    except ParseError as error:
        raise UsageError(
            f'--set {attribute}={value}: "{value}" is not a value of an attribute', hint=error.hint
        ) from None
    before = [node for graph in parse(text).graphs.values() for node in walk_nodes(graph)]
    after = [node for graph in made.graphs.values() for node in walk_nodes(graph)]
    pairs = [*zip(before, after, strict=True)] if len(before) == len(after) else []
    different = [(a, b) for a, b in pairs if a != b]
    same_kind = all(
        _kind(a.attributes.get(attribute)) is _kind(b.attributes.get(attribute)) for a, b in different
    )
    if not pairs or len(different) > len(places) or not same_kind:
        raise UsageError(f"--set {attribute}={value}: the value does not fit", hint="write a value as before")
    return changed


def _kind(content: object) -> type:
    """Return the type of an attribute; integers are floats too."""
    return float if isinstance(content, int) and not isinstance(content, bool) else type(content)


# -- states ------------------------------------------------------------------------------------------


def _state(name: str, now: Array, text: str, folder: Path | None) -> Array:
    """Return the new value of a state; a single number is the value of each element."""
    dtype = next(key for key, known in NUMPY.items() if known == now.dtype)
    # The sentence is about the conversion of an image: the value of a state is a tensor.
    data = from_text(name, TensorType(dtype, now.shape), text, folder, lambda sentence: None)
    try:
        array = np.asarray(data).astype(
            now.dtype, casting="same_kind" if hasattr(data, "dtype") else "unsafe"
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"--set %{name_text(name)}: {error}", hint=f"give values of {dtype}") from None
    if array.shape not in ((), now.shape):
        raise UsageError(
            f"--set %{name_text(name)} has the shape {list(now.shape)}, not {list(array.shape)}",
            hint="give a value of the same shape, or one number for all elements",
        )
    return np.broadcast_to(array, now.shape).copy()


# -- forks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """The start of a fork, to which `apply` moves a debugger of its program.

    `repeats` is the parent, if the fork is to compute the same steps: it has no other values.
    """

    journal: Journal
    address: Address
    parent: tuple[int, int]
    """The number of the parent, and its step at which the fork begins."""
    repeats: Run | None
    position: Mapping[str, Any]
    tensors: Mapping[str, Any]
    title: str
    """The parent in words, with the values that its own fork has set."""
    is_edited: bool
    """Whether the program is another one than that of the parent."""

    @property
    def place(self) -> Address:
        """The address of the step at which the fork begins."""
        return Address(self.address.file, *self.parent)

    def apply(self, debugger: Debugger) -> None:
        """Move a debugger at its first statement to the step.  Raises UsageError for its allocator."""
        debugger.move(partial(self._go, debugger))
        add_earlier_tracks(debugger, self.journal, *self.parent)
        debugger.notes[:] = [Note(f"fork of {self.title} at step {self.parent[1]}")]

    def _go(self, debugger: Debugger) -> Stop:
        control, timeline = debugger.control, debugger.timeline
        if timeline.overwrites:
            raise UsageError(
                f"a fork cannot begin with {debugger.loaded.allocation.name}, which reuses memory",
                hint="use --allocator debug",
            )
        states = timeline.checkpoints.states
        lines = lines_of(control.machine.frames[0].code)
        position, tensors = self.position, self.tensors
        if self.is_edited:
            position, tensors = _in_edited(debugger, lines, self.parent[1], tensors)
        states[0] = restored(states[0], lines, position, tensors, debugger.backend.to_device)
        control.machine.become(states[0].clone())
        run, step = self.parent
        control.no_past = (
            f"the fork begins here, at step {step} of run {run}",
            f"open its parent: {replace(self.address, run=run, step=step, epoch=None, nan=False)}",
        )
        return control.here("entry")


def fork_of(
    reopened: ReopenedRun, parent: Debugger, configuration: RunConfiguration
) -> tuple[Program, RunConfiguration, Fork]:
    """Return the program of a fork, its configuration and its start.

    `parent` is a debugger of the parent, at the step where the fork begins.  Raises UsageError for values to
    set that do not fit.
    """
    restart = reopened.restart
    start = Steps(parent).here()
    tensors = {
        key: [*map(parent.backend.to_host, each)] if isinstance(each, list) else parent.backend.to_host(each)
        for key, each in start.tensors.items()
    }
    position = {**start.position, "tick": 0}
    if "entered" in position:
        position["entered"] = 0
    program, text = reopened.program, restart.journal.program(restart.run)
    edited = configuration.fork_program
    if edited is not None:
        program = load(Path(configuration.folder or "", edited), stores=configuration.stores)
        text = text_of(program)
    assert text is not None
    states = {key.partition("/")[2]: each for key, each in tensors.items() if _is_state(key)}
    folder = Path(configuration.folder) if configuration.folder else None
    changed_text, new_states, new_inputs = changed(program, text, configuration.changes, states, folder)
    for name, value in new_states.items():
        tensors[f"state/{name}" if f"state/{name}" in tensors else f"moment/{name}"] = value
    if changed_text != text and edited is not None:
        program = replace(
            parse(changed_text, file=program.source), readers=program.readers, source=program.source
        )
    elif changed_text != text:
        first = restart.journal.read(restart.records[0]).tensors
        program = program_of(changed_text, program.source, first)
    inputs = {**reopened.configuration.inputs, **new_inputs}
    fork = Fork(
        restart.journal,
        restart.address,
        (restart.run.number, restart.step),
        None if configuration.changes or edited is not None else restart.run,
        position,
        tensors,
        _title(restart.run),
        edited is not None,
    )
    return program, replace(reopened.configuration, inputs=inputs), fork


def _title(run: Run) -> str:
    """Return a run in words, with the values that were set when it was forked: ``run 2 (lr=0.1)``."""
    changes = run.configuration.get("changes")
    words = (
        ", ".join(f"{name}={value}" for name, value in changes.items()) if isinstance(changes, dict) else ""
    )
    return f"run {run.number} ({words})" if words else f"run {run.number}"


def _in_edited(
    debugger: Debugger, lines: tuple[NumberedRun, ...], step: int, kept: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the position and the tensors of a step in another program than that of the parent.

    The program itself computes what its first ``run`` line reads; the states are those of the parent.  A
    result that the parent does not have is NaN in the steps before.  Raises UsageError for states that do
    not fit.
    """
    if not lines or step >= lines[0].steps:
        raise UsageError(
            f"a fork with another program cannot begin at step {step}, which is not in its first `run` line",
            hint=f"fork at a step below {lines[0].steps}" if lines else "add a `run` line",
        )
    line = lines[0]
    states = {key.partition("/")[2]: each for key, each in kept.items() if _is_state(key)}
    wanted = {value.name: value.type for value in line.body.graph.inputs[1:]}
    misfits = [
        *(f"%{name_text(name)} is only in the run" for name in states if name not in wanted),
        *(f"%{name_text(name)} is not in the run" for name in wanted if name not in states),
        *(
            f"%{name_text(name)} is {found} in the run, and {kind} in the program"
            for name, kind in wanted.items()
            if name in states and kind != (found := type_of(states[name]))
        ),
    ]
    if misfits:
        raise UsageError(
            f"the program does not fit the states of the run: {'; '.join(misfits)}",
            hint="keep the `state` lines of the run, or start a new training",
        )
    run_to_step(debugger, lines, 0)
    start = Steps(debugger).here()
    tensors = {
        **start.tensors,
        **{key: states[key.partition("/")[2]] for key in start.tensors if _is_state(key)},
    }
    for name in (*line.scalars, *line.evaluated):
        tensors[f"collected/{name}"] = kept.get(f"collected/{name}", np.full(step, np.nan, np.float32))
    return {**start.position, "tick": 0, "entered": 0, "iteration": step}, tensors


def _is_state(key: str) -> bool:
    return key.startswith(("state/", "moment/"))


def resumed(journal: Journal, address: Address) -> Address:
    """Return the address of the last checkpoint of a run that did not end.

    Raises UsageError for a run that has ended or is still running.
    """
    run = journal.run(address.run)
    if run.status in ("ended", "running"):
        state = "has ended" if run.status == "ended" else "is still running"
        raise UsageError(
            f"run {run.number} {state}: there is nothing to continue",
            hint=f"repeat or fork it from a step: {address.file}#{run.number}@STEP --fork",
        )
    last = journal.nearest(run, run.steps)
    if last is None:
        raise UsageError(f"run {run.number} has no checkpoint", hint="start the training again")
    return Address(address.file, run.number, step=last.step)
