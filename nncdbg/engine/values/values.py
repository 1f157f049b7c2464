"""Resolve names at this moment: the frame that has the value, and whether it is computed yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.dtypes import FLOATS
from nncdbg.engine.compilation.code import EVICTED, UNSET, Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import FramePopped
from nncdbg.engine.time.timeline import Timeline
from nncdbg.engine.values.current import Current, numbered
from nncdbg.engine.values.differentiation import (
    BackwardStage,
    DerivativeProgram,
    Differentiation,
    Source,
    by,
    innermost,
    slot_in_caller,
)
from nncdbg.errors import ExpressionError, NotComputed, UsageError
from nncdbg.escaping import printable
from nncdbg.expression import FACTS, STATEMENT_VARIABLE, Expression, check_variables, evaluate, parse
from nncdbg.expression.functions import Budget, DerivativeRequest
from nncdbg.expression.operators import OperandError
from nncdbg.expression.tokens import LATER
from nncdbg.ir.records import Array, Graph, Program, tensor_only
from nncdbg.ir.streams import stream_of
from nncdbg.ir.walk import graphs_called, walk_nodes
from nncdbg.representation import RichOutput
from nncdbg.stats import Summary
from nncdbg.stats.histograms import summarize_by_pieces
from nncdbg.text.lexemes import Prefixes, name_text
from nncdbg.text.short_names import Scopes, choices, meant, nearest_name

FORWARD = ".forward"
"""The end of the name of a graph that also returns what its gradient needs."""

_VARIABLE = re.compile(r"\$[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueLocation:
    """The slot of a name.  `depth` is None for a frame that has been left."""

    slots: list[Any]
    slot: int
    code: Code
    depth: int | None
    computed: bool


class Outputs(dict[str, Array], RichOutput):
    """The results of a program: read-only arrays by name, without the `%`."""


@dataclass(slots=True, repr=False)
class Values:
    """The values of a machine as seen from the frame at `depth` (-1: the innermost).

    A name is looked up in that frame, in the frames around it, and then in the frames left most
    recently, so that the values of a layer that was stepped over are still available.  A state is the same
    value from each frame: that of the innermost frame that has it.
    """

    machine: Machine
    timeline: Timeline
    line: Callable[[Code, int], int | None]
    """Returns the line of a statement of a block, by its pc."""
    program_names: frozenset[str]
    names_in: Callable[[Code], Sequence[str]]
    """Returns the names visible in a block."""
    prefixes: Prefixes
    """The prefixes that the program's text abbreviates in names."""
    differentiation: Differentiation
    """Computes derivatives between values."""
    states: frozenset[str] = frozenset()
    """The names of the program's states."""
    hiding: frozenset[tuple[str | int, str]] = frozenset()
    """The inputs of graphs that have the name of a state: the graph and the name."""
    depth: int = -1
    to_host: Callable[[Any], Any] = lambda content: content
    """Copies a value of a device to the host."""
    supplied: Callable[[Frame, int], Any] = lambda frame, slot: UNSET
    """(frame, slot) to the result that the user set for the frame's next statement, or UNSET."""
    between: Callable[[], None] = lambda: None
    """Called before each value is read; an exception from it ends the read."""
    convenience: dict[str, Any] = field(default_factory=dict)
    """Variables defined with `$x = EXPR`, by name without `$`; `_` is the value printed last."""
    aliases: Callable[[], Mapping[str, str]] = dict
    """Returns the names of values in the user's source, each with its value's name in the program."""
    current: Current | None = None
    """The statements of `$in0` and `$out`; None: the next and the last statement of the frame."""

    def __repr__(self) -> str:
        frame = self.machine.frames[self.depth]
        count = len(self.names_in(frame.code))
        return printable(f"<Values seen from @{frame.code.graph.name}: {count} names>")

    def is_state(self, code: Code, name: str) -> bool:
        """Return whether a name in this block is a state of the program."""
        return name in self.states and code.formula is None and (code.path[0], name) not in self.hiding

    def is_present(self, frame: Frame, slot: int) -> bool:
        """Return whether a slot holds the value of its name at this moment, not an earlier one of a state."""
        name = frame.code.names[slot]
        if not self.is_state(frame.code, name):
            return True
        present = next(self.places(name))
        return present.slots is frame.slots and present.slot == slot

    def places(self, name: str) -> Iterator[ValueLocation]:
        frames = self.machine.frames
        start = len(frames) - 1 if self.depth < 0 else min(self.depth, len(frames) - 1)
        state = self.is_state(frames[start].code, name)
        for depth in range(len(frames) - 1 if state else start, -1, -1):
            frame = frames[depth]
            slot = frame.code.slot_at(name, frame.pc)
            if slot is not None and (not state or self.is_state(frame.code, name)):
                done = frame.code.definition[slot] < frame.pc or self.machine.ended
                supplied = UNSET if done else self.supplied(frame, slot)
                if supplied is not UNSET:
                    yield ValueLocation([supplied], 0, frame.code, depth, True)
                yield ValueLocation(frame.slots, slot, frame.code, depth, done)
        edited = self.timeline.last_edit
        for each in self.machine.finished():
            if each.tick <= edited:
                # After the edit, these frames might have computed other values.
                break
            if not isinstance(each, FramePopped) or (state and not self.is_state(each.code, name)):
                continue
            if (slot := each.code.slot_of.get(name)) is not None:
                yield ValueLocation(each.slots, slot, each.code, None, True)

    def place(self, name: str) -> ValueLocation:
        """Return the location where `name` is computed now.  Raises NotComputed or ExpressionError."""
        waiting = None
        for place in self.places(name):
            if place.computed and place.slots[place.slot] is not UNSET:
                return place
            waiting = waiting or place
        if waiting is not None:
            raise NotComputed(
                f"%{name_text(name)} is not computed yet",
                hint=f"step over the statement that defines the value{self._where(waiting)}",
            )
        if self.has(name):
            inner = self.inner_frame(name)
            if inner is not None:
                raise NotComputed(
                    f"%{name_text(name)} is not available in this frame",
                    hint=f"select the inner frame @{inner.code.graph.name}",
                )
            raise self._outside(name)
        raise self._unknown(name)

    def _outside(self, name: str) -> NotComputed:
        """Return why a value of a block that is not on the stack is missing."""
        edited, floor = self.timeline.last_edit, self.machine.floor
        ran = any(name in each.code.slot_of for each in self.machine.finished())
        why, hint = "its block has not run", "step into its block, or set a breakpoint there"
        if ran and edited >= 0:
            why = f"its block ran before the edit at step {edited}"
            hint = "run the block again: after an edit it may compute another value"
        elif floor > 0:
            why, hint = f"the history begins at step {floor}", "step into its block, or increase --history"
        return NotComputed(f"%{name_text(name)} is not available in this frame: {why}", hint=hint)

    def inner_frame(self, name: str) -> Frame | None:
        """Return the frame inside the selected one that has a value; None if no such frame has it."""
        frames = self.machine.frames
        start = len(frames) if self.depth < 0 else self.depth + 1
        return next((frame for frame in frames[start:] if name in frame.code.slot_of), None)

    def resolve(self, name: str) -> str:
        """Return the full name of a value, given its name or an unambiguous part of it, with `%` or without.

        Raises ExpressionError for a part of several names, and for a name that does not exist.
        """
        found = self.find(name)
        if found is None:
            raise self._unknown(name.removeprefix("%"))
        return found

    def find(self, name: str) -> str | None:
        """Return the name as `resolve` does, or None if there is none.  Raises ExpressionError as it does."""
        if not isinstance(name, str):
            raise UsageError(
                f"the name of a value must be a string, not {type(name).__name__}", hint='use value("%h")'
            )
        if alias := self.aliases().get(name):
            return alias
        if self.has(name):
            return name
        text = name.removeprefix("%")
        found = [text] if self.has(text) else meant(text, self.names())
        if len(found) > 1:
            raise ExpressionError(f"%{name_text(text)} is ambiguous", hint=choices(found))
        return found[0] if found else None

    def _unknown(self, name: str) -> ExpressionError:
        near = nearest_name(name, self.names())
        return ExpressionError(
            f"nothing is named %{name_text(name)}",
            hint=f"did you mean %{name_text(near)}?"
            if near
            else "list the available values with `info values`",
        )

    def _where(self, place: ValueLocation) -> str:
        pc = place.code.definition[place.slot]
        return f" ({place.code.nodes[pc].op})" if pc >= 0 else ""

    # -- the scope of an expression ----------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self.program_names or any(name in frame.code.slot_of for frame in self.machine.frames)

    def names(self) -> Scopes:
        """Every name of the program and of the micro programs on the stack, nearest first."""
        frames = self.machine.frames
        selected = frames[max(-len(frames), min(self.depth, len(frames) - 1))]
        return Scopes(
            (
                self.names_in(selected.code),
                [name for frame in reversed(frames) for name in frame.code.slot_of],
                self.program_names,
            ),
            self.prefixes.within(str(selected.code.path[0])).find,
        )

    def value(self, name: str) -> Array:
        """Return the array at this moment, read-only."""
        return self._kept(self.content(name))

    def named(self, name: str) -> tuple[str, Array]:
        """Return the full name and the array, read-only, of a value or of a variable such as `$out`.

        The name is empty for a variable that is not a value of the program.  Raises as `resolve`, `value`
        and `variable` do, and ExpressionError for an unknown variable.
        """
        if isinstance(name, str) and _VARIABLE.fullmatch(name):
            if (numbered := STATEMENT_VARIABLE.fullmatch(name[1:])) is not None:
                return self._of_statement(numbered[1], int(numbered[2] or 0))
            return "", read_only(evaluate(self.read(name), self))
        name = self.resolve(name)
        return name, self.value(name)

    def content(self, name: str) -> Any:
        """Return the content of the slot at this moment, not copied: on a device, or in memory reused later.

        For immediate reads of any size, whole or in part.  Raises NotComputed or ExpressionError.
        """
        self.between()
        return self._content(self.place(name), name)

    def _content(self, place: ValueLocation, name: str) -> Any:
        content = place.slots[place.slot]
        if content is EVICTED:
            content = UNSET
            if place.depth is not None:
                content = self.timeline.recompute(place.depth, place.slot)
            if content is UNSET:
                raise NotComputed(
                    f"%{name_text(name)} was dropped to keep within the history budget",
                    hint="step back to the statement, or increase --history",
                )
        return self._standing(name, content)

    def _standing(self, name: str, content: Any) -> Any:
        """Return the content of a slot, if it still holds the value that was written."""
        gone = self.timeline.standing(content)
        if gone is not None:
            raise NotComputed(
                f"%{name_text(name)} is no longer valid: {gone}",
                hint="go back to an earlier step, or use --allocator debug",
            )
        return content

    def _kept(self, content: Any) -> Array:
        """Return the content of a slot in a form that the user may keep."""
        content = self.to_host(content)
        return read_only(copied(content) if self.timeline.overwrites else content)

    def previous(self, name: str) -> Array:
        """Return the value at the previous iteration of its loop, or at the previous visit of its graph."""
        return self._kept(self.previous_content(name))

    def previous_content(self, name: str) -> Any:
        """Return the value of `previous`, not copied (see `content`)."""
        self.between()
        here = next(self.places(name), None)
        if here is None:
            self.place(name)
            raise AssertionError(f"no frame contains %{name_text(name)}")
        for each in self.machine.finished():
            if each.code is here.code and each.slots is not here.slots:
                content = each.slots[here.slot]
                if content is not UNSET and content is not EVICTED:
                    return self._standing(name, content)
        raise NotComputed(
            f"%{name_text(name)} has no previous value",
            hint="step to a later iteration, or increase --history",
        )

    def visits(self, name: str) -> Iterator[tuple[int | None, Array]]:
        """Yield (step of the run, value) of a value at its latest and its earlier visits, newest first.

        A visit is an iteration of its loop or a call of its graph, as far as the history has them.  The step
        is None outside of a run.
        """
        here = self.place(name)
        if here.depth is not None:
            runs = [frame.iteration for frame in self.machine.frames if frame.code.epoch is not None]
            yield runs[0] if runs else None, self.value(name)
        for step, each in self.machine.finished_by_step():
            if each.code is not here.code or (here.depth is not None and each.slots is here.slots):
                continue
            content = each.slots[here.slot]
            if content is not UNSET and content is not EVICTED:
                yield step, self._kept(self._standing(name, content))

    def outputs(self) -> Outputs:
        """Return the results by name of a program that has ended."""
        frame = self.machine.frames[0]
        contents = frame.code.operands_of(-1, frame.slots)
        names = [value.name for value in frame.code.graph.outputs]
        return Outputs((name, self._kept(content)) for name, content in zip(names, contents, strict=True))

    def read(self, text: str, later: Iterable[str] = ()) -> Expression:
        """Parse an expression over these values and variables.

        The names `later` of the user's source come first, and have no value yet (see `Expression.sourced`).
        Raises ExpressionError.
        """
        if not isinstance(text, str):
            raise ExpressionError(
                f"an expression must be a string, not {type(text).__name__}",
                hint='such as "mean(%h) > 1"',
            )
        aliases = (lambda: dict.fromkeys(later, LATER)) if later else self.aliases
        return check_variables(parse(text, self.has, self.names, aliases), self)

    def variables(self) -> Iterable[str]:
        """Return the names of the variables (`$NAME`) that are defined here."""
        current = self._current()
        yield from FACTS
        yield from numbered("in", len(current.frame.code.operands[current.pc]))
        yield from numbered("out", len(current.results or ()))
        yield from self.convenience

    def variable(self, name: str) -> object:
        """Return `$iter`, `$op`, `$line`, `$step`, `$stream`, `$in0`, `$out`, or a variable of the user.

        `$stream` is -1 for the host.

        Raises KeyError for another name, NotComputed for a result of a statement that has not run, and for
        the step outside a run.
        """
        numbered = STATEMENT_VARIABLE.fullmatch(name)
        if numbered is not None:
            return self._of_statement(numbered[1], int(numbered[2] or 0))[1]
        current = self._current()
        frame, pc = current.frame, current.pc
        match name:
            case "iter":
                outer = self.machine.frames[: self.machine.frames.index(frame) + 1]
                loops = [each.iteration for each in outer if each.is_loop]
                return loops[-1] if loops else 0
            case "op":
                return frame.code.nodes[pc].op if pc < len(frame.code.nodes) else "return"
            case "line":
                return self.line(frame.code, pc) or 0
            case "stream" if name not in self.convenience:
                return stream_of(frame.code.graph, pc)
            case "step" | "epoch" if name not in self.convenience:
                return self._step(name)
        return self.convenience[name]

    def _step(self, name: str) -> int:
        """Return the number of the step or the epoch of the run on the stack."""
        run = next((each for each in self.machine.frames if each.code.epoch is not None), None)
        if run is None:
            raise NotComputed(
                f"${name} is not known outside a run", hint="stop inside a step of a `run` line"
            )
        return run.iteration if name == "step" else run.epoch or 0

    def _current(self) -> Current:
        if self.current is not None:
            return self.current
        frame = self.machine.frames[self.depth]
        return Current.before(frame, frame.pc)

    def _of_statement(self, kind: str, number: int) -> tuple[str, Array]:
        """Return the name and the array of an operand (`in`) or a result (`out`) of the current statement."""
        current = self._current()
        frame = current.frame
        slots = frame.code.operands[current.pc] if kind == "in" else current.results
        if slots is None:
            raise NotComputed("$out is not computed yet", hint="step over a statement to see its result")
        shown = f"${kind}{number or ''}" if kind == "out" else f"${kind}{number}"
        if number >= len(slots):
            what = ("operand" if kind == "in" else "result") + ("" if len(slots) == 1 else "s")
            hint = f"use {', '.join(f'${each}' for each in numbered(kind, len(slots)))}" if slots else None
            raise ExpressionError(f"there is no {shown}: the statement has {len(slots)} {what}", hint=hint)
        slot = slots[number]
        if slot == 0:
            raise NotComputed(f"{shown} is an optional operand that is not given")
        if frame.slots[slot] is UNSET:
            raise NotComputed(
                f"{shown} is not computed yet", hint="step over the statement that defines the value"
            )
        self.between()
        depth = self.machine.frames.index(frame) if frame in self.machine.frames else None
        place = ValueLocation(frame.slots, slot, frame.code, depth, True)
        name = frame.code.names[slot]
        return name, self._kept(self._content(place, name))

    def derivative(
        self, wanted: DerivativeRequest, vectors: Sequence[Any], budget: Budget | None = None
    ) -> Array:
        """Return a derivative at the values of this moment.

        Raises OperandError if it does not exist, BudgetExceeded, and NotComputed as `value` does.
        """
        self.between()
        places, frames = self._places_on_stack(wanted), self.machine.frames
        return self._kept(self.differentiation.value(frames, places, wanted, vectors, self._at, budget))

    def loss(self, program: Program) -> str | None:
        """Return the name of the loss that is computed in the nearest frame that has one; None without one.

        It is a scalar result that a ``backward`` line of the program differentiates.
        """
        frames = self.machine.frames
        start = len(frames) - 1 if self.depth < 0 else self.depth
        # Without lines that a loss uses itself, as in a gradient penalty.
        differentiated = {key for line in program.backwards for key in graphs_called(line.of, program.graphs)}
        used = {node.op for key in differentiated for node in walk_nodes(program.graphs[key])}
        lines = [line for line in program.backwards if f"@{line.name}" not in used]
        for frame in reversed(frames[: start + 1]):
            for line in lines:
                name = _loss_in(frame, line.of, program.graphs[line.of])
                if name is not None:
                    return name
        return None

    def backward_chain(self, y: str, xs: Sequence[str]) -> list[BackwardStage]:
        """Return the steps of the backward pass from `y` to `xs` at this moment; raises as `derivative`."""
        self.between()
        places = {name: self._on_stack(name) for name in (y, *xs)}
        return [*self.differentiation.chain(self.machine.frames, y, places, self._at)]

    def recomputation(self, wanted: DerivativeRequest) -> DerivativeProgram:
        """Return the program of a derivative, with values of this moment; raises as `derivative`."""
        places, frames = self._places_on_stack(wanted), self.machine.frames
        return self.differentiation.recomputation(frames, places, wanted, self._at)

    def _at(self, source: Source, name: str) -> Any:
        frame = self.machine.frames[source[0]]
        return self._content(ValueLocation(frame.slots, source[1], frame.code, source[0], True), name)

    def _places_on_stack(self, wanted: DerivativeRequest) -> dict[str, Source]:
        return {name: self._on_stack(name) for name in (innermost(wanted), *by(wanted))}

    def _on_stack(self, name: str) -> Source:
        """Return the depth and the slot of a computed value.  Raises NotComputed, OperandError."""
        place = self.place(name)
        if place.depth is None or self.machine.frames[place.depth].slots is not place.slots:
            if any(each.depth is not None for each in self.places(name)):
                raise NotComputed(f"%{name_text(name)} is not computed yet", hint="step over its statement")
            raise OperandError(
                f"the statements that use %{name_text(name)} are in a block that has ended",
                "stop inside the block, or name values of the frames on the stack",
            )
        return self.home(name, place.depth, place.slot)

    def home(self, name: str, depth: int, slot: int) -> Source:
        """Return the place of a value in the frame that it comes from, so that an edit reaches all readers.

        A captured value comes from the block around it, and a state from the callers that pass it on.
        """
        frames = self.machine.frames
        while depth > 0:
            inner, outer = frames[depth], frames[depth - 1]
            state = self.is_state(inner.code, name)
            later = inner.iteration > 0 or not state
            source = slot_in_caller(inner.code, outer.code, outer.pc, slot, later=later)
            if source is None:
                break
            depth, slot = depth - 1, source
        return depth, slot

    def summary(self, array: Array) -> Summary:
        return summarize_by_pieces(array, self.between)


def copied(content: Any) -> Any:
    """Return a value in memory of its own, unaffected when its buffers are reused."""
    if isinstance(content, list):
        return type(content)(map(copied, content))
    return np.array(content) if isinstance(content, np.ndarray) else content


def read_only(content: Any) -> Array:
    """Return a read-only view of an array; return sequences unchanged."""
    if isinstance(content, (list, tuple)) or content is None:
        return content  # type: ignore[return-value]
    view = np.asarray(content).view()
    view.flags.writeable = False
    return view


def _loss_in(frame: Frame, graph: str, differentiated: Graph) -> str | None:
    """Return the computed scalar result of a differentiated graph in a frame of it, or of its caller."""
    scalars = [index for index, value in enumerate(differentiated.outputs) if _is_scalar(value.type)]
    code = frame.code
    names = [differentiated.outputs[index].name for index in scalars] if code.graph.name == graph else []
    for node in code.nodes[: frame.pc]:
        if node.called in (graph, f"{graph}{FORWARD}"):
            names += [node.outputs[index].name for index in scalars if index < len(node.outputs)]
    return next((name for name in names if _is_computed(frame, name)), None)


def _is_scalar(type_: object) -> bool:
    known = tensor_only(type_)  # type: ignore[arg-type]
    return known is not None and known.dtype in FLOATS and known.shape == ()


def _is_computed(frame: Frame, name: str) -> bool:
    slot = frame.code.slot_at(name, frame.pc) if name else None
    if slot is None or frame.code.definition[slot] >= frame.pc:
        return False
    return frame.slots[slot] is not UNSET
