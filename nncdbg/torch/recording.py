"""Record the operators that PyTorch runs: one event each, with the memory that it read and wrote.

A tensor is identified by the memory that it describes, not by its Python object: autograd gives a saved
tensor a new object each time.  Events hold no tensors, so a recorded step frees its memory as usual; weak
references keep the numbers of freed storages from being used again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeAlias
from weakref import WeakSet

import torch

from nncdbg.engine.backends.torch_calls import generator_state
from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.internals import (
    DispatchMode,
    current_autograd_node,
    dispatch_modes,
    free_weak_storage,
    is_wrapped,
    next_sequence_number,
    sequence_number,
    storage_address,
    weak_storage,
    without_dispatch,
)
from nncdbg.engine.ops.aten.signatures import DTYPES, Argument, Kind, Signature, flat_results, signature_of

Key: TypeAlias = "tuple[int, int, torch.Size, tuple[int, ...], torch.dtype, int]"
"""The memory of a tensor: storage, offset, sizes, strides, dtype, and 1 for conjugated plus 2 for negated."""

Lines: TypeAlias = "tuple[tuple[str, int], ...]"
"""Source lines of the user, innermost first."""

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_DEEPEST = 4
"""The most lines of the user that an event keeps."""

_COMMUNICATION = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
"""Libraries of operators that exchange data with other processes."""

UNSEEN = ("profiler", "debugprims")
"""Libraries whose operators are not part of the program."""


@dataclass(slots=True)
class Event:
    """One operator that ran."""

    signature: Signature
    arguments: tuple[Any, ...]
    """By position in the signature: keys of tensors, lists of keys, or values; `ABSENT` if not given."""
    results: list[Key | None]
    """Fresh results; None for a value that is no tensor."""
    written: list[Key]
    numbers: list[Any]
    """The results that are numbers read by Python."""
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
    """Why the operator cannot run again; then `contents` holds its results."""
    contents: dict[Key, Any] = field(default_factory=dict)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


@dataclass(slots=True)
class Input:
    """A storage that existed before it was used in the recording."""

    tensor: Any
    """A tensor over it, until its content is copied."""
    keys: dict[Key, None] = field(default_factory=dict)
    content: Any = None
    """A flat copy of its memory from before the first write, in the dtype of the first use."""
    start: int = 0
    """The position of the first copied element."""


def key_of(tensor: Any) -> Key:
    """Return the memory of a strided tensor."""
    return (
        storage_address(tensor),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj() + 2 * tensor.is_neg(),
    )


class Recorder(DispatchMode):  # type: ignore[misc]
    """Records each operator that runs on this thread, and in its backward passes, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.inputs: dict[int, Input] = {}
        """Storages from before, in the order of their first use."""
        self.modules: list[str] = []
        """The modules whose forward runs now, outermost first."""
        self.optimizing = 0
        """The number of optimizer steps that run now."""
        self.labels: dict[Key, str] = {}
        """The memory of a parameter, buffer, gradient or moment to its name."""
        self.parameters: dict[int, str] = {}
        """The identity of a parameter to its name."""
        self._storages: dict[int, int] = {}
        """Storage to a weak reference to it."""
        self._seen: set[int] = set()
        """The storages that operators read or made."""
        self._modules_now: tuple[str, ...] = ()
        self.forked = False
        """Whether this is a copy in a forked process, such as a DataLoader worker, which records nothing."""
        self._both = self._begun, self._ended
        _RECORDERS.add(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if self.forked or func.namespace in UNSEEN:
            return func(*args, **keywords)
        found = signature_of(func)
        written = _written(found, args, keywords) if found.writes else ()
        lines = user_lines(sys._getframe(1))
        # Without subclasses and other modes, what the recorder itself calls is not dispatched anyway.
        guarded = bool(types) or dispatch_modes() > 0
        begun, ended = (_undispatched(self._begun), _undispatched(self._ended)) if guarded else self._both
        event = begun(found, args, keywords, written, lines)
        result = func(*args, **keywords)
        ended(event, args, keywords, written, result)
        self.events.append(event)
        return result

    def enter_module(self, name: str) -> None:
        self.modules.append(name)
        self._modules_now = tuple(self.modules)

    def leave_module(self) -> None:
        self.modules.pop()
        self._modules_now = tuple(self.modules)

    def label(self, tensor: Any, name: str) -> None:
        """Name the memory of a tensor."""
        if tensor.layout is _STRIDED and not is_wrapped(tensor):
            key = key_of(tensor)
            self._hold(key[0], tensor)
            self.labels.setdefault(key, name)

    def copy_inputs(self) -> None:
        """Copy the inputs that no operator wrote to, as far as operators read them."""
        for kept in self.inputs.values():
            if kept.content is None:
                copy_content(kept, whole=False)

    def release(self) -> None:
        """End the weak references, after which the numbers of storages have no meaning."""
        while self._storages:
            free_weak_storage(self._storages.popitem()[1])

    def _begun(
        self,
        found: Signature,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        written: Sequence[Any],
        lines: Lines,
    ) -> Event:
        node = current_autograd_node()
        if node is None:
            phase, name = OPTIMIZER if self.optimizing else FORWARD, ""
            sequence = next_sequence_number() - 1
        else:
            phase, name, sequence = BACKWARD, self._node_name(node), sequence_number(node)
        event = Event(found, (), [], [], [], phase, name, sequence, lines, self._modules_now)
        if found.overload.namespace in _COMMUNICATION:
            event.opaque = "it exchanges data with other processes"
        elif found.foreign:
            event.opaque = f"its argument {found.foreign} is no tensor, number or text"
        formal = found.arguments
        read = self._read
        given = [
            value
            if value.__class__ in _PLAIN
            else read(value, event)
            if value.__class__ in _TENSORS
            else self._given(value, argument, event)
            for value, argument in zip(args, formal, strict=False)
        ]
        for argument in formal[len(given) :]:
            value = keywords.get(argument.name, ABSENT) if keywords else ABSENT
            given.append(value if value is ABSENT else self._given(value, argument, event))
        event.arguments = tuple(given)
        if found.random and event.generator is None:
            event.generator = _CPU, generator_state(_CPU), None
        for tensor in written:
            self._keep_content(tensor)
        return event

    def _given(self, value: Any, argument: Argument, event: Event) -> Any:
        """Return a given argument as the event holds it."""
        if isinstance(value, torch.Tensor):
            return self._read(value, event)
        if argument.kind is Kind.TENSORS:
            if value is not None:
                return [None if each is None else self._read(each, event) for each in flat_results(value)]
        elif value is None:
            if argument.kind is Kind.TENSOR and not argument.optional:
                event.opaque = event.opaque or f"its operand {argument.name} is undefined"
        elif isinstance(value, torch.Generator):
            event.generator = value.device, value.get_state(), None
            return ABSENT
        elif isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            event.opaque = event.opaque or "an argument is a storage"
        return value

    def _ended(
        self,
        event: Event,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        written: Sequence[Any],
        result: Any,
    ) -> None:
        if isinstance(result, torch.Tensor) and not written:
            event.results.append(self._made(result, event))
        elif event.signature.results:
            same = {id(tensor) for tensor in written}
            for each in flat_results(result):
                if isinstance(each, torch.Tensor):
                    if id(each) not in same:
                        event.results.append(self._made(each, event))
                else:
                    if event.opaque and hasattr(each, "wait"):
                        each.wait()
                    elif isinstance(each, (bool, int, float, complex)):
                        event.numbers.append(each)
                    event.results.append(None)
        for tensor in written:
            if tensor.layout is _STRIDED and tensor.dtype in DTYPES:
                event.written.append(key_of(tensor))
                if event.opaque:
                    event.contents[event.written[-1]] = tensor.detach().clone()
        if event.generator is not None:
            self._drawn(event, args, keywords)

    def _node_name(self, node: Any) -> str:
        """Return the name of an autograd node, for the end of a gradient after the parameter's name."""
        name: str = node.name().rpartition("::")[2]
        if name == "AccumulateGrad":
            return f"{self.parameters.get(id(node.variable), '')} {name}".strip()
        return name

    def _drawn(self, event: Event, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Enter the state of the generator after the operator; none if it drew no number."""
        assert event.generator is not None
        device, before, _ = event.generator
        own = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Generator)]
        after = own[0].get_state() if own else generator_state(device)
        event.generator = None if torch.equal(before, after) else (device, before, after)

    def _read(self, tensor: Any, event: Event) -> Key | None:
        """Return the memory of an operand; an unknown one is an input."""
        key = _supported_key(tensor, event)
        if key is None:
            return None
        number = key[0]
        if number in self._seen:
            kept = self.inputs.get(number)
        else:
            self._see(number, tensor)
            kept = self.inputs[number] = Input(tensor.detach())
        if kept is not None:
            kept.keys[key] = None
        return key

    def _see(self, number: int, tensor: Any) -> None:
        """Remember a storage that an operator read or made for the first time."""
        self._seen.add(number)
        self._hold(number, tensor)

    def _hold(self, number: int, tensor: Any) -> None:
        """Keep the number of a storage from being used again."""
        if number not in self._storages:
            self._storages[number] = weak_storage(tensor)

    def _made(self, tensor: Any, event: Event) -> Key | None:
        key = _supported_key(tensor, event)
        if key is None:
            return None
        number = key[0]
        if number not in self._seen:
            self._see(number, tensor)
        elif number in self.inputs:
            self.inputs[number].keys[key] = None  # a view may show more of an input than its operand does
        if event.opaque:
            event.contents[key] = tensor.detach().clone()
        return key

    def _keep_content(self, tensor: Any) -> None:
        """Copy an input before it is written to for the first time."""
        if tensor.layout is not _STRIDED:
            return
        kept = self.inputs.get(storage_address(tensor))
        if kept is not None and kept.content is None:
            copy_content(kept, whole=True)


_RECORDERS: WeakSet[Recorder] = WeakSet()


def _forked() -> None:
    for recorder in _RECORDERS:
        recorder.forked = True


os.register_at_fork(after_in_child=_forked)

_CPU = torch.device("cpu")
_STRIDED = torch.strided

_PLAIN = frozenset({int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of arguments that an event holds as they are."""

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def _undispatched(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with all dispatch modes and tensor subclasses off."""

    def run(*given: Any) -> Any:
        with without_dispatch():
            return call(*given)

    return run


def copy_content(kept: Input, *, whole: bool) -> None:
    """Copy the memory of an input, if not `whole` only the part that was used."""
    tensor = kept.tensor
    storage = tensor.untyped_storage()
    if _is_all_of(tensor, storage):
        kept.content, kept.tensor = _copied(tensor.reshape(-1)), None
        return
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    kept.start, stop = 0, flat.numel()
    if not whole:
        kept.start = min(_start_byte(key) for key in kept.keys) // tensor.element_size()
        stop = -(-max(_stop_byte(key) for key in kept.keys) // tensor.element_size())
    kept.content = _copied(flat[kept.start : stop].detach())
    kept.tensor = None


def _copied(part: Any) -> Any:
    """Return a copy on the CPU.  Raises UsageError without memory for it."""
    try:
        return part.clone().cpu()
    except (MemoryError, RuntimeError) as error:
        raise UsageError(
            f"an input of {part.nbytes} bytes cannot be copied: {error}",
            hint="record with a smaller batch, or free memory before the step",
        ) from None


def _is_all_of(tensor: Any, storage: Any) -> bool:
    """Return whether the elements of a CPU tensor are the whole memory, in order."""
    return bool(
        tensor.is_cpu
        and tensor.nbytes == storage.nbytes()
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _start_byte(key: Key) -> int:
    return int(key[1] * key[4].itemsize)


def _stop_byte(key: Key) -> int:
    _, offset, size, stride, dtype, _ = key
    if 0 in size:
        return int(offset * dtype.itemsize)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return int((last + 1) * dtype.itemsize)


def _written(found: Signature, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that an operator writes to, in the order of the signature."""
    tensors: list[Any] = []
    for index, argument in enumerate(found.arguments):
        if argument.written:
            value = args[index] if index < len(args) else keywords.get(argument.name)
            tensors.extend(each for each in flat_results(value) if each is not None)
    return tensors


def _supported_key(tensor: Any, event: Event) -> Key | None:
    """Return the memory of a tensor; None, with the event made opaque, if a program cannot hold it."""
    if tensor.layout is _STRIDED and tensor.dtype in DTYPES:
        try:
            return key_of(tensor)
        except RuntimeError:
            pass  # A nested tensor, or a lazy module's parameter, has no memory of its own.
    event.opaque = event.opaque or _unsupported(tensor, event)
    return None


def _unsupported(tensor: Any, event: Event) -> str:
    """Return why a program cannot hold a tensor.  Raises UsageError for a nested tensor."""
    if tensor.is_nested:
        raise _nested(event)
    if torch.nn.parameter.is_lazy(tensor):
        return "its size is not known yet"
    if tensor.layout != torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}"
    return f"its dtype is {str(tensor.dtype).removeprefix('torch.')}"


def _nested(event: Event) -> UsageError:
    place = "{}:{}: ".format(*event.lines[0]) if event.lines else ""
    return UsageError(
        f"{place}{event.signature.name} uses a nested tensor, which cannot be recorded",
        hint="record a step with padded tensors and a mask",
    )


_IS_USER_CODE: dict[int, tuple[CodeType, bool]] = {}
"""By identity: the hash of a code is computed from its content each time."""


def call_again(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], lines: Lines) -> Any:
    """Call a function that the user called at `lines`: what is recorded inside has them as outer lines."""
    return call(*args, **kwargs)


_call_again_code = call_again.__code__


def user_lines(frame: FrameType | None) -> Lines:
    """Return the innermost lines outside of torch, nncdbg and the standard library."""
    found: list[tuple[str, int]] = []
    known = _IS_USER_CODE
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        own = known.get(id(code))
        if own is None:
            own = known[id(code)] = code, _is_user_code(code.co_filename)
        if own[1]:
            found.append((code.co_filename, frame.f_lineno))
        elif code is _call_again_code:
            found.extend(frame.f_locals["lines"][: _DEEPEST - len(found)])
            break
        frame = frame.f_back
    return tuple(found)


def _is_user_code(file: str) -> bool:
    return not (file.startswith(_LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file)


def _libraries() -> tuple[str, ...]:
    import sysconfig
    from os.path import dirname

    return (
        "<frozen",
        f"{sysconfig.get_path('stdlib')}/",
        f"{sysconfig.get_path('scripts')}/",
        f"{dirname(dirname(__file__))}/",
        f"{dirname(torch.__file__)}/",
    )


_LIBRARIES = _libraries()
