"""The state at the start of a step: random generators, buffers, and copies of tensors."""

from __future__ import annotations

import ctypes
import operator
import random
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from nncdbg.engine.ops.aten.arrays import is_dense
from nncdbg.engine.ops.aten.internals import is_wrapped, keeping_version, without_dispatch
from nncdbg.torch import guard_kernels
from nncdbg.torch.sharded_tensors import PLAIN

# -- copies of tensors ---------------------------------------------------------------------

_SMALL = 1 << 18
"""The most bytes that are copied without an operator: each time to new memory, which is slow for more."""


class TensorCopies:
    """Copies of tensors.

    The memory of dense tensors is copied as bytes, with one operator for each device, which takes half the
    time of an operator for each tensor.  A little memory of the CPU is copied without any: an operator takes
    30 us inside of a training step.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors: Sequence[Any] = ()
        self._places: Sequence[int] = ()
        self._dense: list[_DenseCopies] = []
        self._others: Sequence[tuple[Any, Any]] = ()
        """Each tensor with another layout, and its copy."""
        self.update(tensors)

    def update(self, tensors: Sequence[Any]) -> None:
        """Copy tensors as they are now, into the same memory if they have theirs still."""
        same = len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        if not self._others and same and _places(tensors) == self._places:
            for each in self._dense:
                each.update()
            return
        with torch.no_grad():
            dense = [each for each in tensors if _is_dense(each)]
            self._dense = []
            for device in dict.fromkeys(each.device for each in dense):
                here = [each for each in dense if each.device == device]
                few = here[0].is_cpu and sum(each.nbytes for each in here) <= _SMALL
                self._dense.append(_FewBytes(here) if few else _ManyBytes(here))
            self._others = [(each, each.detach().clone()) for each in tensors if not _is_dense(each)]
            self._tensors, self._places = tensors, [] if self._others else _places(tensors)

    def memory_of(self, owners: Sequence[Mapping[str, Any]]) -> Any | None:
        """Return an object of the library whose `content` returns what `take` takes.

        That is None if the values of `owners` are not these tensors in the same memory any more.  Returns
        None without the library, and if the copies are not a few bytes of the CPU.
        """
        library = guard_kernels.used
        if library is None or self._others or not {*map(type, self._dense)} <= {_FewBytes} or self._dense[1:]:
            return None
        return library.BufferMemory(owners, [*self._tensors])

    def take(self, content: bytes) -> None:
        """Replace the copies by a few bytes."""
        for each in self._dense:
            assert isinstance(each, _FewBytes)
            each.content = content

    @property
    def size(self) -> int:
        """The bytes of the copies."""
        return sum(each.size for each in self._dense) + sum(int(each.nbytes) for _, each in self._others)

    def restore(self) -> None:
        """Write the copies to the tensors."""
        with torch.no_grad():
            for tensor, content in self.contents():
                with keeping_version(tensor):
                    tensor.copy_(content)

    def contents(self) -> Iterator[tuple[Any, Any]]:
        """Yield each tensor and a copy of its content that later updates leave alone."""
        yield from self._others
        for each in self._dense:
            yield from each.contents()


class _DenseCopies:
    """Copies of dense tensors on one device, one after the other."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self.size = sum(int(each.nbytes) for each in tensors)
        """The bytes of the copies."""
        self._layouts = [(each.shape, each.stride(), each.dtype) for each in tensors]

    def update(self) -> None:
        """Copy the memory of the tensors."""
        raise NotImplementedError

    def _bytes(self) -> Any:
        """Return the copies as one tensor of bytes."""
        raise NotImplementedError

    def contents(self) -> Iterator[tuple[Any, Any]]:
        """Yield each tensor and its copy."""
        content, start = self._bytes(), 0
        for tensor, (shape, stride, dtype) in zip(self.tensors, self._layouts, strict=True):
            stop = start + shape.numel() * dtype.itemsize
            # Cloned, as bytes at any position cannot be read as wider numbers.
            yield tensor, content[start:stop].clone().view(dtype).as_strided(shape, stride)
            start = stop


class _FewBytes(_DenseCopies):
    """Copies of a little memory of the CPU, as an object of bytes."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__(tensors)
        # No other tensor gets these addresses while they are in use.
        self._storages = [each.untyped_storage() for each in tensors]
        self._memory = [_characters(each.nbytes).from_address(each.data_ptr()) for each in tensors]
        self.content = b""
        self.update()

    def update(self) -> None:
        self.content = b"".join(self._memory)

    def _bytes(self) -> Any:
        # torch makes no tensor of an empty buffer.
        return torch.frombuffer(bytearray(self.content) or bytearray(1), dtype=torch.uint8)


@cache
def _characters(size: int) -> Any:
    """Return the class of so many bytes of memory; one that is not kept needs a garbage collection."""
    return ctypes.c_char * size


class _ManyBytes(_DenseCopies):
    """Copies that one operator makes, always in the same memory."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__(tensors)
        # No dispatch mode sees the copies, so not one of the user either.
        with without_dispatch():
            flat = [each.detach().as_strided((each.numel(),), (1,)) for each in tensors]
            self._memory = [each.view(torch.uint8) for each in flat]
            self._content = torch.empty(self.size, dtype=torch.uint8, device=tensors[0].device)
        self.update()

    def update(self) -> None:
        with without_dispatch():
            torch.cat(self._memory, out=self._content)

    def _bytes(self) -> Any:
        return self._content


def _is_dense(tensor: Any) -> bool:
    """Return whether the elements of a tensor are all of a piece of memory of its own."""
    return bool(
        tensor.__class__ in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not is_wrapped(tensor)
        and not (tensor.is_conj() or tensor.is_neg())
        and is_dense(tensor)
    )


def _places(tensors: Sequence[Any]) -> list[int]:
    """Return address and size of the memory of each tensor."""
    return [*map(torch.Tensor.data_ptr, tensors), *map(torch.Tensor.numel, tensors)]


# -- random generators and buffers ---------------------------------------------------------


class RandomState:
    """The states of the random generators of torch, Python and NumPy."""

    __slots__ = ("torch", "python", "numpy", "devices")

    def __init__(self) -> None:
        self.torch, self.python, self.numpy = _reader(guard_kernels.used)()
        self.devices = torch.cuda.get_rng_state_all() if _HAS_DEVICES and torch.cuda.is_initialized() else []

    def restore(self) -> None:
        restore_generators(self.torch, self.devices, self.python, self.numpy)


def restore_generators(
    of_torch: torch.Tensor, of_devices: list[torch.Tensor], python: Any, numpy: Any
) -> None:
    """Give the random generators the states that the attributes of a `RandomState` have."""
    torch.set_rng_state(of_torch)
    if of_devices:
        torch.cuda.set_rng_state_all(of_devices)
    random.setstate(python)
    if numpy is not None:
        np.random.set_state(numpy)


_numpy_random: Any = np.random  # Its type does not have all of its functions.

_HAS_DEVICES = torch.backends.cuda.is_built()

_TWISTER_BYTES = 625 * 4
"""Size of the state of a Mersenne Twister in memory: 624 words and the position."""

_SEEN_BYTES = 64
"""How much of it is compared."""


class _Twister:
    """Reads the state of a Mersenne Twister only if it has changed.

    Reading a state takes longer than all else in a `RandomState`, and most steps do not draw from it.  Each
    draw changes the position of the generator or all of its words, and so does a seed.
    """

    def __init__(self, read: Callable[[], Any], pending: Callable[[Any], bool]) -> None:
        self._read = read
        self._pending = pending
        """Returns whether a state has a number kept from a pair, which is not in the memory."""
        self._address = 0
        self._words: Any = None
        """The memory at that address."""
        self._memory = b""
        """Its content when the state was last read."""
        self._state: Any = None

    def state(self, address: int) -> Any:
        """Return the state of the generator, with its position and some words at `address`.

        If there was no pending number and these are unchanged, there still is none.  With the address 0,
        it is read each time.
        """
        if not address:
            return self._read()
        if address != self._address:
            self._address, self._words = address, (ctypes.c_char * _SEEN_BYTES).from_address(address)
        memory = self._words.raw
        if memory != self._memory or self._pending(self._state):
            self._state, self._memory = self._read(), memory
        return self._state


class _StateReader:
    """Returns the states of the generators of torch, Python and NumPy."""

    def __init__(self) -> None:
        self._python = _Twister(*_OF_PYTHON)
        self._python_address = _python_address()
        self._numpy = _Twister(*_OF_NUMPY)

    def __call__(self) -> tuple[torch.Tensor, Any, Any]:
        return (
            torch.default_generator.get_state(),
            self._python.state(self._python_address),
            self._numpy.state(_numpy_address(_numpy_random.get_bit_generator())),
        )


@cache
def _reader(library: Any | None) -> Callable[[], tuple[torch.Tensor, Any, Any]]:
    """Return a `_StateReader`, or what the library has in its place."""
    if library is None:
        return _StateReader()
    reader: Callable[[], tuple[torch.Tensor, Any, Any]] = library.StateReader(
        torch.default_generator.get_state,
        (*_OF_PYTHON, _python_address()),
        (*_OF_NUMPY, 0),
        _numpy_random.get_bit_generator,
        _numpy_address,
    )
    return reader


def _numpy_state() -> Any:
    """Return the state of NumPy's global generator: a tuple for a Mersenne Twister, as NumPy's default is."""
    # NumPy warns of another generator whose state is requested as a tuple.
    return _numpy_random.get_state(legacy=type(_numpy_random.get_bit_generator()) is np.random.MT19937)


# How the state of each generator is read, and whether it has a number kept from a pair.
_OF_PYTHON: tuple[Callable[[], Any], Callable[[Any], bool]] = (
    random.getstate,
    lambda state: state[2] is not None,
)
_OF_NUMPY: tuple[Callable[[], Any], Callable[[Any], bool]] = (_numpy_state, lambda state: bool(state[3]))


def _python_address() -> int:
    """Return the address of the state of Python's global generator; 0 if it is not as CPython has it."""
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
    header = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < header + _TWISTER_BYTES:
        return 0
    position, *words = struct.unpack("625I", ctypes.string_at(id(generator) + header, _TWISTER_BYTES))
    return id(generator) + header if (*words, position) == random.getstate()[1] else 0


def _numpy_address(generator: Any) -> int:
    """Return the address of the state of NumPy's global generator; 0 if it is no Mersenne Twister."""
    if type(generator) is not np.random.MT19937:
        return 0
    # NumPy stores the position after the words.
    return int(generator.ctypes.state_address) + _TWISTER_BYTES - _SEEN_BYTES


class KeptState(Protocol):
    """Copies of tensors as they were before a step or a part of it."""

    def restore(self) -> None:
        """Make the tensors as they were."""

    def now(self) -> KeptState:
        """Return copies of the same tensors as they are now."""


class BufferState:
    """Copies of the buffers of a module, which a forward pass may change, such as running means."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        self._owners = [each._buffers for each in module.modules()]
        self._entries: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """Each dictionary of buffers, and a copy of it."""
        self._copies = TensorCopies(self._buffers())
        self._memory: Any = None
        """Reads the buffers as long as they are the same ones, if the library is used."""

    def update(self) -> None:
        """Copy the buffers as they are now."""
        content = None if self._memory is None else self._memory.content()
        if content is None:
            self._copies.update(self._buffers())
            self._memory = self._copies.memory_of(self._owners)
        else:
            self._copies.take(content)

    def restore(self) -> None:
        """Give the module its buffers again, with their content."""
        for owner, entries in self._entries:
            owner.update(entries)
        self._copies.restore()

    def now(self) -> BufferState:
        """Return the content that the buffers of the module have now."""
        module = self._module()
        return self if module is None else BufferState(module)

    def _buffers(self) -> list[Any]:
        self._entries = [(each, dict(each)) for each in self._owners if type(each) is dict and each]
        found = [*chain.from_iterable(map(_values_of, self._owners))]
        if {*map(type, found)} <= {torch.Tensor}:
            return found
        return [each for each in found if each is not None and not torch.nn.parameter.is_lazy(each)]


_values_of = operator.methodcaller("values")  # A module of TorchScript has no dictionary.


class KeptBuffers:
    """The state of the buffers of modules, in memory that each step uses again."""

    def __init__(self) -> None:
        self._states: weakref.WeakKeyDictionary[torch.nn.Module, BufferState] = weakref.WeakKeyDictionary()
        self._last: BufferState | None = None
        """The one that was returned last."""

    def clear(self) -> None:
        """Forget all modules and their buffers."""
        self._states.clear()
        self._last = None

    def of(self, module: torch.nn.Module) -> BufferState:
        """Return the state of a module now.  The state that was returned before for it is no longer valid."""
        last = self._last
        state = last if last is not None and last._module() is module else self._states.get(module)
        if state is None:
            state = self._states[module] = BufferState(module)
        else:
            state.update()
        self._last = state
        return state


@contextmanager
def rerun_from(
    start: RandomState, states: Sequence[KeptState], parameters: Iterable[Any], zeroed: Iterable[Any] = ()
) -> Iterator[None]:
    """Enter the state at the start of a step; restore everything after the block.

    No parameter has a gradient then, except those in `zeroed`, which have one of zeros.
    """
    now = RandomState()
    later = [each.now() for each in states]
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for each in states:
            each.restore()
        for parameter, _ in gradients:
            parameter.grad = None
        for parameter in zeroed:
            parameter.grad = torch.zeros_like(parameter)
        start.restore()
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for each in later:
            each.restore()
        now.restore()
