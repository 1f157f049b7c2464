"""Record the operators that PyTorch runs: one event each, with the memory that it read and wrote.

A tensor is identified by the memory that it describes, not by its Python object: autograd gives a saved
tensor a new object each time.  Events hold no tensors, so a recorded step frees its memory as usual; weak
references keep the numbers of freed storages from being used again.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain, count
from types import FrameType
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from nncdbg.engine.backends.torch_tensors import generator_state
from nncdbg.engine.execution.machine import is_out_of_memory
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import (
    COLLECTIVES,
    DispatchMode,
    await_collective,
    below_modes,
    current_autograd_node,
    current_backward,
    dispatch_modes,
    free_weak_storage,
    is_higher_order,
    is_traced,
    is_wrapped,
    key_of,
    next_sequence_number,
    sequence_number,
    waits,
    weak_storage,
    without_dispatch,
)
from nncdbg.engine.ops.aten.signatures import (
    DTYPES,
    Argument,
    ArgumentKind,
    Signature,
    flat_results,
    signature_of,
    written_tensors,
)
from nncdbg.engine.values.checksum import checksum
from nncdbg.errors import NncdbgError, RunError, UsageError
from nncdbg.text.torch_names import OF_TORCH, OPERATOR
from nncdbg.torch.guard_kernels import LIBRARY
from nncdbg.torch.hooks import leave_forks
from nncdbg.torch.sharded_tensors import PLAIN, local_part, placement, wrapping
from nncdbg.torch.source_frames import SourceFrames, Visit
from nncdbg.torch.source_lines import Lines, is_optimizer_code, names_allocation, user_lines
from nncdbg.torch.storages import (
    SMALLER,
    CopyMemory,
    Input,
    Key,
    NotCopied,
    SeenContents,
    copied_result,
    copy_content,
    tensor_at,
)

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

FIRST_GRADIENT = "aten.ones_like.default"
"""Makes the gradient of the loss, just before the backward pass."""

UNSEEN = ("profiler", "debugprims")
"""Libraries whose operators are not part of the program."""

_REBINDING = frozenset(getattr(torch.ops.aten.set_, name) for name in torch.ops.aten.set_.overloads())
"""Operators that give a tensor other memory and write nothing, as for a batch from a worker of a DataLoader.

The memory is that of an input or a known value, by its own identity.
"""


@dataclass(slots=True)
class Event:
    """One operator that ran."""

    signature: Signature
    arguments: Sequence[Any]
    """By position in the signature: keys of tensors, lists of keys, or values; `ABSENT` if not given."""
    results: list[Key | None]
    """Fresh results; None for a value that is no tensor."""
    written: list[Key]
    phase: str
    node: str
    """The autograd node that ran the operator in a backward pass, otherwise empty."""
    sequence: int
    """The number that a forward operator and its backward node share."""
    lines: Lines
    modules: tuple[str, ...]
    """The modules around the operator, outermost first."""
    generator: tuple[torch.device, Any, Any] | None = None
    """Device and state before and after, for an operator that drew random numbers."""
    opaque: str = ""
    """Why the operator cannot run again; then `contents` holds its results, None without memory for one."""
    contents: Sequence[tuple[Key, Any]] = ()
    numbers: Sequence[Any] = ()
    """The results that are numbers read by Python."""
    calls: tuple[int, ...] = ()
    """The numbers of the calls of `modules` in the step, from 1."""
    hides_body: bool = False
    """Whether an operator of another library has computed without operators."""
    visit: Visit | None = None
    """The execution of the user's line that ran the operator."""

    def take_modules(self, source: Event) -> None:
        """Enter the modules around another event."""
        self.modules, self.calls = source.modules, source.calls


@dataclass(slots=True)
class InnerAllocation:
    """Memory that C++ code of torch allocated, and may fill without an operator, until its use."""

    event: Event
    key: Key
    keys: dict[Key, None] = field(default_factory=dict)


def _derive(event: Event, source: Event) -> None:
    """Enter the place of the operator in a backward pass, `source`, that an event of a later one derives.

    An operator that reentrant checkpointing runs again has its own lines.  That of a formula, which a double
    backward pass derives, has those of the forward operator.  Formulas of autograd, whose nodes are numbered,
    are named before the node.
    """
    inner = len(source.lines) - len(event.lines)
    if source.modules or (inner > 0 and source.lines[inner:] == event.lines):
        event.lines = source.lines
        event.take_modules(source)
    else:
        event.sequence = source.sequence
    if source.node[-1:].isdigit():
        event.node = f"{source.node} {event.node}"


ABSENT = object()
"""In place of an argument that was not given."""


class Recorder(DispatchMode):
    """Records each operator that runs on this thread, and in its backward passes, while it is entered."""

    stops_compiler = False

    def __init__(self) -> None:
        super().__init__()
        self.outer: DispatchMode | None = None
        """The mode through which this recorder receives operators, if that is another one."""
        self.events: list[Event] = []
        self.inputs: dict[int, Input] = {}
        """Storages from before, in the order of their first use."""
        self.modules: list[str] = []
        """The modules whose forward runs now, outermost first."""
        self.optimizing = 0
        """The number of optimizer steps that run now."""
        self.update: tuple[FrameType, Lines] | None = None
        """The call of an update that runs no code of the user, and the user's lines of all its operators."""
        self.labels: dict[Key, str] = {}
        """The memory of a parameter, buffer, gradient or moment to its name."""
        self.placements: dict[Key, str] = {}
        """The memory of a shard to how its `DTensor` is placed."""
        self.parameters: dict[int, str] = {}
        """The identity of a parameter to its name."""
        self.copies = CopyMemory()
        """The memory of the inputs."""
        library = LIBRARY.module()
        self._usual_key: Callable[[Any], Key | None] = (
            (lambda tensor: None) if library is None else library.usual_key
        )
        """Returns the memory of a tensor if that takes no look at it in Python, otherwise None."""
        self._storages: dict[int, int] = {}
        """Storage to a weak reference to it."""
        self.visit_of_update: Visit | None = None
        """The execution of the user's line that called this update."""
        self.source = SourceFrames(partial(_held_key, self._storages, self._usual_key))
        self._seen: dict[int, Any] = {}
        """The storages that operators read or made: to an `Input` or an `InnerAllocation`, others to None."""
        self._new: set[int] = set()
        """The storages that had no bytes before, and that no operator has read or written since."""
        self._used: list[tuple[Any, InnerAllocation]] = []
        """The tensors of allocations among the operands of the operator that begins."""
        self._modules_now: tuple[str, ...] = ()
        self._calls_now: tuple[int, ...] = ()
        self._calls: Counter[str] = Counter()
        """The number of calls of each module so far."""
        self._waiting = False
        """Whether the training waits for a collective: its event has the result already."""
        self._passed: Any = None
        """The operator that this recorder passes to the tensors that consist of others."""
        self._sources: dict[int, Event] = {}
        """The operators of a backward pass that autograd derives, by the number of their own nodes."""
        self._bodies: list[SeenContents] = []
        """The contents inside of the operators of other libraries that run now, outermost first."""
        self.forked = False
        """Whether this is a copy in a forked process, which records nothing."""
        self.failure: RunError | None = None
        """Why nothing is recorded, although the step runs on."""
        _RECORDERS.add(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        namespace = func.namespace
        if self.forked or self._waiting or self.failure is not None:
            return func(*args, **keywords)
        if namespace in UNSEEN or func in _REBINDING:
            return func(*args, **keywords)
        if namespace == COLLECTIVES and func in waits():
            return func(*args, **keywords)  # The result of the collective was waited for.
        # Without subclasses and other modes, what the recorder itself calls is not dispatched anyway.
        dispatched = bool(types) or dispatch_modes() > 0
        if dispatched and is_traced(types):
            return func(*args, **keywords)
        if types and wrapping(types):
            return self._run_inside(func, args, keywords)
        frame = sys._getframe(1)
        in_update = self._lines_of_update(frame)
        lines = in_update or user_lines(frame)
        if is_higher_order(func):
            return self._run_functions(func, args, keywords, lines)
        try:
            if dispatched:
                with without_dispatch():
                    event = self._begun(func, args, keywords, lines)
                    event.visit = self._visit(frame, bool(in_update))
            else:
                event = self._begun(func, args, keywords, lines)
                event.visit = self._visit(frame, bool(in_update))
        except Exception as error:  # noqa: BLE001  The training must not fail because of the recorder.
            self.give_up(error, lines)
            return func(*args, **keywords)
        try:
            body = None if namespace in OF_TORCH else below_modes(func, args, keywords)
            if body is None:
                result = func(*args, **keywords)
            else:
                result = self._run_body(event, body, args, keywords)
                if not event.hides_body:
                    return result
        except Exception as error:
            if event.signature.written:
                event.opaque = event.opaque or f"it raised {type(error).__name__} and may have written a part"
                self._append(event, args, keywords, (), frame, dispatched)
                raise
            has_copies = any(kept.content is not None for kept in self.inputs.values())
            if event.signature.random or not is_out_of_memory(error) or not has_copies:
                raise
            self.give_up(error, lines)
        else:
            self._append(event, args, keywords, result, frame, dispatched)
            return result
        return func(*args, **keywords)  # Without the copies there may be enough memory.

    def _visit(self, frame: FrameType, in_update: bool) -> Visit | None:
        """Return the execution of the user's line that runs the operator called by a frame."""
        if in_update:
            return self.visit_of_update
        return self.source.at(frame, len(self.events), current_backward())

    def _run_inside(self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Run an operator on tensors that consist of others: the operators on these are recorded."""
        if self._passed is func:
            self._passed = None
            return NotImplemented  # The tensors take the operator next.
        if dispatch_modes():
            hidden = (
                f"{func} runs on tensors that consist of others, such as a DTensor, inside of a dispatch mode"
            )
            hint = "record a step without this mode, such as a counter of operations"
            self.give_up(UsageError(hidden, hint=hint), user_lines(sys._getframe(2)))
            return func(*args, **keywords)
        self._passed = func
        try:
            with self.outer or self:
                result = func(*args, **keywords)
        finally:
            self._passed = None
        with without_dispatch():
            for each in tree_leaves(result):
                if isinstance(each, torch.Tensor) and (placed := placement(each)):
                    self.placements.setdefault(key_of(local_part(each)), placed)
        return result

    def _run_functions(
        self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any], lines: Lines
    ) -> Any:
        """Run an operator of higher order, and record the operators that it runs."""
        implementation, name = below_modes(func, args, keywords), func.name()
        if implementation is None:
            result = func(*args, **keywords)
        else:
            name = f"{OPERATOR}{name}"
            given, named = naming_functions(name, implementation, args, keywords, self)
            self.enter_module(name)
            try:
                with self.outer or self:
                    result = implementation(*given, **named)
            finally:
                self.leave_module(name)
        with without_dispatch():
            results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
            if len(self._known(results)) < len(results):
                event = self._begun(func, (), {}, lines)
                event.opaque = "it computes without operators"
                event.results = [self._made(each, event) for each in results]
                self.events.append(event)
        return result

    def _run_body(
        self, event: Event, body: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run the implementation of an operator of another library, and record the operators that it runs.

        The event hides its body if they do not say all that it computes, and then they are dropped.
        """
        first, name = len(self.events), event.signature.name.removesuffix(".default")
        contents = SeenContents()
        with without_dispatch():
            operands = self._known([*args, *keywords.values()])
            contents.keep(operands)
        self._bodies.append(contents)
        self.enter_module(name)
        try:
            with self.outer or self:
                result = body(*args, **keywords)
        except BaseException:
            if event.signature.written:
                del self.events[first:]
                self.source.drop(first)
            raise
        finally:
            self.leave_module(name)
            self._bodies.pop()
        results = flat_results(result) if event.signature.results else []
        with without_dispatch():
            made = self._known(results)
            contents.check([*operands, *made])
        seen = [each.signature.name for each in self.events[first:]]
        if contents.changed or not seen or len(made) < len(results) or set(seen) >= _WITH_NUMPY:
            event.hides_body = True
            del self.events[first:]
            self.source.drop(first)
        return result

    def _known(self, values: Any) -> list[tuple[Key, Any]]:
        """Return the tensors among values whose memory operators have read or made, each with its memory."""
        found = []
        for each in flat_results(values):
            if not isinstance(each, torch.Tensor) or each.layout is not _STRIDED:
                continue
            if not each.is_nested and not torch.nn.parameter.is_lazy(each):
                key = self._usual_key(each) or key_of(each)
                if key[0] in self._seen:
                    found.append((key, each))
        return found

    def _lines_of_update(self, frame: FrameType) -> Lines:
        """Return the user's lines if this frame is in `update`: that may be over, if it raised."""
        if self.update is not None:
            call, lines = self.update
            within: FrameType | None = frame
            while within is not None and is_optimizer_code(within.f_code):
                if within is call:
                    return lines
                within = within.f_back
        return ()

    def _append(
        self,
        event: Event,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        result: Any,
        frame: FrameType,
        dispatched: bool,
    ) -> None:
        try:
            if dispatched:
                with without_dispatch():
                    self._ended(event, args, keywords, result)
            else:
                self._ended(event, args, keywords, result)
            if event.signature.allocates and not names_allocation(frame.f_code):
                # It may become a list of numbers, such as the lengths of `ctc_loss`.
                (key,) = event.results
                if key is not None and len(key[2]) == 1 and key[2][0] <= _LONGEST_LIST:
                    self._seen[key[0]] = InnerAllocation(event, key)
            if self._bodies:
                with without_dispatch():
                    tensors = self._known([*args, *keywords.values(), result])
                    for each in self._bodies:
                        each.keep(tensors, event.written)
            self.events.append(event)
        except Exception as error:  # noqa: BLE001
            self.give_up(error, event.lines)

    def add_finished(
        self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any], result: Any, lines: Lines
    ) -> None:
        """Append the event of an operator that has run already.

        One that wrote to its operands or drew random numbers cannot run again: the event keeps its results.
        """
        event = self._begun(func, args, keywords, lines)
        if event.signature.written or event.signature.random:
            event.opaque = event.opaque or "it ran before the recording began"
        self._ended(event, args, keywords, result)
        self.events.append(event)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Record nothing in the block, in which the training waits for a collective."""
        before, self._waiting = self._waiting, True
        try:
            yield
        finally:
            self._waiting = before

    def enter_module(self, name: str, *_: Any) -> None:
        """Enter a module."""
        self._calls[name] += 1
        self.modules.append(name)
        self._modules_now = tuple(self.modules)
        self._calls_now = *self._calls_now, self._calls[name]

    def leave_module(self, name: str, *_: Any) -> None:
        """Leave a module; nothing if it was not entered, because a hook before its forward raised."""
        if self.modules and self.modules[-1] == name:
            self.modules.pop()
            self._modules_now = tuple(self.modules)
            self._calls_now = self._calls_now[:-1]

    def label(self, tensor: Any, name: str, placement: str = "") -> Key | None:
        """Name the memory of a tensor, and return it; None if it has no memory of its own.

        `placement` is that of a shard.
        """
        if tensor.layout is not _STRIDED or is_wrapped(tensor):
            return None
        key = self._usual_key(tensor) or key_of(tensor)
        _hold(self._storages, key[0], tensor)
        self.labels.setdefault(key, name)
        if placement:
            self.placements.setdefault(key, placement)
        return key

    def label_unread(self) -> None:
        """Name the results that no operator has read: operands of the one that failed may be among them.

        A check whether numbers are NaN, such as that of a distribution, does not count.
        """
        made: dict[int, tuple[int, Key]] = {}
        read: dict[int, int] = {}
        for number, event in enumerate(self.events):
            results = [key for key in (*event.results, *event.written) if key is not None]
            if not any(key[4].is_floating_point or key[4].is_complex for key in results):
                continue
            for given in event.arguments:
                for key in given if isinstance(given, list) else (given,):
                    if isinstance(key, tuple):
                        read[key[0]] = number
            made |= {key[0]: (number, key) for key in results}
        unread = [key for storage, (number, key) in made.items() if number >= read.get(storage, -1)]
        for number, key in enumerate(unread):
            self.labels.setdefault(key, f"unread.{number}" if number else "unread")

    def copy_inputs(self) -> None:
        """Copy the inputs that no operator wrote to, as far as operators read them."""
        try:
            for kept in self.inputs.values():
                if kept.content is None:
                    copy_content(kept, self.copies, whole=False)
        except _NO_MEMORY as error:
            self.give_up(error)

    def keep_memory(self, storage: Any) -> None:
        """Copy the memory of an input that something other than an operator may change.

        Memory of no bytes is new when it is resized, as that of gathered parameters.
        """
        number = storage._cdata
        self._new.discard(number)
        kept = self.inputs.get(number)
        if number not in self._seen and not storage.nbytes():
            with without_dispatch():
                _hold(
                    self._storages,
                    number,
                    torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage),
                )
            self._new.add(number)
        if kept is not None and kept.content is None:
            try:
                with without_dispatch():
                    copy_content(kept, self.copies, whole=True)
            except _NO_MEMORY as error:
                self.give_up(error)

    def checksums(self, labelled: Iterable[tuple[Any, Key | None]]) -> dict[Key, str | np.ndarray[Any, Any]]:
        """Return the checksums of those of the tensors that operators made or wrote to.

        Each tensor comes with what `label` returned for it.  A small one is returned as a copy, which takes
        less time than its checksum.  Raises MemoryError without memory for a contiguous copy.
        """
        written = {key[0] for event in self.events for key in event.written}
        return {
            key: host_array(tensor).copy() if tensor.nbytes <= _SMALL else checksum(host_array(tensor))
            for tensor, key in labelled
            if key is not None
            and key[4] in DTYPES
            and (key[0] in written or self._seen.get(key[0], _UNKNOWN) is None)
        }

    def give_up(self, error: Exception, lines: Lines = ()) -> None:
        """Free what was recorded, and record nothing more; the training runs on."""
        hint: str | None = SMALLER
        if isinstance(error, NotCopied):
            reason = error.named(self.labels)
        elif is_out_of_memory(error):
            reason = f"out of memory after {len(self.events):,} operators"
        elif isinstance(error, NncdbgError):
            reason, hint = error.message, error.hint
        else:
            reason, hint = f"{type(error).__name__}: {error}", "report this bug of nncdbg"
        self.failure = RunError(
            f"the step cannot be recorded: {reason}",
            source="{}:{}".format(*lines[0]) if lines else None,
            hint=hint,
        )
        self.events.clear()
        self.inputs.clear()
        self.copies = CopyMemory()
        self._seen.clear()
        self._used.clear()
        self._sources.clear()

    def leave_process(self) -> None:
        """Record nothing: this process is a fork."""
        self.forked = True

    def release(self) -> None:
        """End the weak references, after which the numbers of storages have no meaning."""
        while self._storages:
            free_weak_storage(self._storages.popitem()[1])

    def _begun(self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any], lines: Lines) -> Event:
        found = signature_of(func)
        node = current_autograd_node()
        if node is None:
            phase, name = OPTIMIZER if self.optimizing else FORWARD, ""
            sequence = next_sequence_number() - 1
        else:
            phase, name, sequence = BACKWARD, node.name().rpartition("::")[2], sequence_number(node)
            if name == "AccumulateGrad":  # The end of a gradient, after the parameter's name.
                name = f"{self.parameters.get(id(node.variable), '')} {name}".strip()
        modules, calls = self._modules_now, self._calls_now
        event = Event(found, (), [], [], phase, name, sequence, lines, modules, calls=calls)
        if node is not None:
            if sequence in self._sources:
                _derive(event, self._sources[sequence])
            if torch.is_grad_enabled():
                self._sources.setdefault(next_sequence_number() - 1, event)
        if found.unrepeatable:
            event.opaque = found.unrepeatable
        formal = found.arguments
        read = self._read
        given = [
            read(value, event)
            if value.__class__ in PLAIN
            else value
            if value.__class__ in _VALUES
            else self._given(value, argument, event)
            for value, argument in zip(args, formal, strict=False)
        ]
        if len(given) < len(formal):
            if keywords:
                for argument in formal[len(given) :]:
                    value = keywords.get(argument.name, ABSENT)
                    given.append(value if value is ABSENT else self._given(value, argument, event))
            else:
                given += [ABSENT] * (len(formal) - len(given))
        event.arguments = given
        if self._used:
            self._use_allocated(found, args, keywords)
        if self._bodies:
            self._bodies[-1].check(self._known([*args, *keywords.values()]))
        if found.random and event.generator is None:
            event.generator = _CPU, generator_state(_CPU), None
        for position in found.written:
            keys = given[position]
            for key in keys if isinstance(keys, list) else (keys,):
                if key is not None and key is not ABSENT:
                    event.written.append(key)
                    kept = self._seen[key[0]]
                    if kept is not None and kept.content is None:  # An input, written to for the first time.
                        copy_content(kept, self.copies, whole=True)
        return event

    def _given(self, value: Any, argument: Argument, event: Event) -> Any:
        """Return a given argument as the event holds it."""
        if isinstance(value, torch.Tensor):
            return self._read(value, event)
        if argument.kind is ArgumentKind.TENSORS:
            if value is not None:
                return [None if each is None else self._read(each, event) for each in flat_results(value)]
        elif value is None:
            if argument.kind is ArgumentKind.TENSOR and not argument.optional:
                event.opaque = event.opaque or f"its operand {argument.name} is undefined"
        elif isinstance(value, torch.Generator):
            event.generator = value.device, value.get_state(), None
            return ABSENT
        elif isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            event.opaque = event.opaque or "an argument is a storage"
        return value

    def _ended(self, event: Event, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        found = event.signature
        if not found.written:
            if result.__class__ in PLAIN:
                event.results += self._parts_made(result, event)
            elif found.results:
                self._returned(flat_results(result), event)
        elif not (found.plain_write and result is args[0]) or event.opaque:
            self._wrote(event, args, keywords, result)
        if event.generator is not None:
            # The state of the generator after the operator; none if it drew no number.
            device, before, _ = event.generator
            own = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Generator)]
            after = own[0].get_state() if own else generator_state(device)
            event.generator = None if torch.equal(before, after) else (device, before, after)

    def _returned(self, results: Sequence[Any], event: Event) -> None:
        for each in results:
            if isinstance(each, torch.Tensor):
                event.results += self._parts_made(each, event)
                continue
            if event.opaque and hasattr(each, "wait"):
                each.wait()
            elif isinstance(each, (bool, int, float, complex)):
                event.numbers = [*event.numbers, each]
            event.results.append(None)

    def _wrote(self, event: Event, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        """Enter the results of an operator that writes, and what it wrote: its sizes may differ now."""
        written = written_tensors(event.signature, args, keywords)
        keys = [self._usual_key(each) or _supported_key(each, event) for each in written]
        if len(set(keys)) < len(keys):
            event.opaque = event.opaque or "it writes to the same memory twice"
        if event.signature.results:
            same = {id(tensor) for tensor in written}
            self._returned([each for each in flat_results(result) if id(each) not in same], event)
        event.written = []
        for key, each in zip(keys, written, strict=True):
            if key is not None:
                event.written.append(key)
                if event.opaque:
                    event.contents = *event.contents, (key, copied_result(each))

    def _read(self, tensor: Any, event: Event) -> Key | None:
        """Return the memory of an operand; an unknown one is an input."""
        key = self._usual_key(tensor) or _supported_key(tensor, event)
        if key is None:
            return None
        kept = self._seen.get(key[0], _UNKNOWN)
        if kept is not None:
            if kept is _UNKNOWN:
                _hold(self._storages, key[0], tensor)
                kept = self._seen[key[0]] = self.inputs[key[0]] = Input(tensor.detach())
                if key[0] in self._new:
                    self._new.discard(key[0])
                    # Nothing has written to it: any content is right.
                    count = tensor.untyped_storage().nbytes() // tensor.element_size()
                    kept.content = torch.zeros(count, dtype=tensor.dtype)
            elif kept.__class__ is InnerAllocation:
                self._used.append((tensor, kept))
            kept.keys[key] = None
        return key

    def _parts_made(self, tensor: Any, event: Event) -> list[Key | None]:
        """Return the memory of a result; of its indices and values if it is sparse."""
        if tensor.layout is not torch.sparse_coo:
            return [self._made(tensor, event)]
        event.opaque = event.opaque or _unsupported(tensor, event)
        return [self._made(part, event) for part in (tensor._indices(), tensor._values())]

    def _made(self, tensor: Any, event: Event) -> Key | None:
        key = self._usual_key(tensor) or _supported_key(tensor, event)
        if key is None:
            return None
        if event.opaque and event.signature.overload.namespace == COLLECTIVES:
            await_collective(tensor)
        kept = self._seen.get(key[0], _UNKNOWN)
        if kept is _UNKNOWN:
            _hold(self._storages, key[0], tensor)
            self._seen[key[0]] = None
        elif kept is not None:
            kept.keys[key] = None  # a view may show more of an input than its operand does
        if event.opaque:
            event.contents = *event.contents, (key, copied_result(tensor))
        return key

    def _use_allocated(self, found: Signature, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Make the content of an allocation its result, unless an operator writes it first."""
        used, self._used = self._used, []
        if found.views:
            return
        written = {id(tensor) for tensor in written_tensors(found, args, keywords)}
        for tensor, allocation in used:
            made, key = allocation.event, allocation.key
            self._seen[key[0]] = None
            if id(tensor) not in written:
                made.opaque = "torch writes it without an operator"
                made.contents = ((key, copied_result(tensor_at(key, tensor))),)


def _hold(storages: dict[int, int], number: int, tensor: Any) -> None:
    """Keep the number of a storage from being used again."""
    if number not in storages:
        storages[number] = weak_storage(tensor)


def _held_key(storages: dict[int, int], usual_key: Callable[[Any], Key | None], tensor: Any) -> Key | None:
    """Return the memory of a tensor that a name of the user holds; None for one without memory."""
    key = usual_key(tensor)
    if key is None:
        if tensor.layout is not _STRIDED or is_wrapped(tensor) or tensor.is_nested:
            return None
        key = key_of(tensor)
    if key[0] not in storages:
        storages[key[0]] = weak_storage(tensor)
    return key


_RECORDERS: WeakSet[Recorder] = WeakSet()
leave_forks(_RECORDERS)

_NO_MEMORY = MemoryError, NotCopied

_CPU = torch.device("cpu")
_STRIDED = torch.strided
_UNKNOWN = object()

_SMALL = 1 << 16
"""The most bytes of a tensor that is copied in place of its checksum."""

_WITH_NUMPY = {"aten.resolve_neg.default", "aten.lift_fresh.default"}
"""The operators of `Tensor.numpy` and `torch.from_numpy`, if an implementation calls both."""

_LONGEST_LIST = 4096
"""The most elements that an allocation has if its content is kept."""

_VALUES = frozenset({int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of arguments that an event holds as they are."""


def _supported_key(tensor: Any, event: Event) -> Key | None:
    """Return the memory of a tensor; None, with the event made opaque, if a program cannot hold it."""
    if tensor.dtype in DTYPES and tensor.layout is _STRIDED and not tensor.is_meta:
        try:
            return key_of(tensor)
        except RuntimeError:
            pass  # A nested tensor, or a lazy module's parameter, has no memory of its own.
    event.opaque = event.opaque or _unsupported(tensor, event)
    return None


def _unsupported(tensor: Any, event: Event) -> str:
    """Return why a program cannot hold a tensor.  Raises UsageError for a nested tensor."""
    if tensor.is_nested:
        raise UsageError(
            f"{event.signature.name} uses a nested tensor, which cannot be recorded",
            hint="record a step with padded tensors and a mask",
        )
    if torch.nn.parameter.is_lazy(tensor):
        return "its size is not known yet"
    if tensor.is_meta:
        return "a tensor on the device meta has no data"
    if tensor.layout != torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}"
    return f"its dtype is {str(tensor.dtype).removeprefix('torch.')}"


def naming_functions(
    name: str,
    implementation: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recorder: Recorder,
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a higher-order operator; its functions are modules while they run.

    The branch of a `torch.cond` is the module ``cond.true_fn``, the first call of the body of a loop is
    ``while_loop.body_fn``, and the next one ``while_loop.body_fn.1``.
    """
    parameters = inspect.signature(implementation).parameters

    def named(parameter: str, value: Any) -> Any:
        if not callable(value) or isinstance(value, torch.Tensor):
            return value
        return _entering(value, f"{name}.{parameter}", recorder)

    positional = [named(parameter, value) for parameter, value in zip(parameters, args, strict=False)]
    rest = args[len(positional) :]
    return (*positional, *rest), {parameter: named(parameter, each) for parameter, each in kwargs.items()}


def _entering(function: Callable[..., Any], name: str, recorder: Recorder) -> Callable[..., Any]:
    names = chain((name,), (f"{name}.{number}" for number in count(1)))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        own = next(names)
        recorder.enter_module(own)
        try:
            return function(*args, **kwargs)
        finally:
            recorder.leave_module(own)

    return call
