"""A stand-in for CuPy: a namespace over NumPy with arrays that have the restrictions of CuPy's.

Implicit conversions to NumPy (`np.asarray` and its callers) raise TypeError, functions refuse NumPy arrays
as operands, and there is no object dtype.  `transfers` lists each copy between "host" and "device";
`waits` counts the reads that would wait for a device.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np


class DeviceArray:
    """An array that allows only explicit conversion to NumPy."""

    __array_priority__ = 100
    __slots__ = ("__weakref__", "_numbers", "_space", "device")
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, space: StandIn, numbers: Any) -> None:
        assert not numbers.dtype.hasobject, "no objects on a device"
        self._space, self._numbers = space, numbers
        self.device = SimpleNamespace(id=0)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **fields: Any) -> Any:
        if "out" in fields:
            fields["out"] = tuple(self._space.open(each) for each in fields["out"])
        opened = [self._space.open(each) for each in inputs]
        return self._space.close(getattr(ufunc, method)(*opened, **fields))

    def __array_function__(self, function: Any, types: Any, args: Any, fields: Any) -> Any:
        return self._space.close(function(*self._space.open(list(args)), **self._space.open(fields)))

    @property
    def base(self) -> Any:
        """The array that owns the memory of a view."""
        owner = self._numbers
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return None if owner is self._numbers else DeviceArray(self._space, owner)

    @property
    def data(self) -> Any:
        """The memory, with its address."""
        return SimpleNamespace(ptr=self._numbers.__array_interface__["data"][0])

    # -- explicit transfers to the host ----------------------------------------------------

    def get(self) -> Any:
        self._space.waits += 1
        self._space.transfers.append("to host")
        return self._numbers.copy()

    def item(self, *index: Any) -> Any:
        self._space.waits += 1
        return self._numbers.item(*index)

    def tolist(self) -> Any:
        self._space.waits += 1
        return self._numbers.tolist()

    def __bool__(self) -> bool:
        self._space.waits += 1
        return bool(self._numbers)

    def __int__(self) -> int:
        self._space.waits += 1
        return int(self._numbers)

    def __float__(self) -> float:
        self._space.waits += 1
        return float(self._numbers)

    __index__ = __int__

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self._numbers)))

    # -- array protocol ----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return self._space.close(np.asarray(self._numbers[self._space.open(index)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._numbers[self._space.open(index)] = self._space.open(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # `__array_interface__` would be an implicit conversion.
        found = getattr(self._numbers, name)
        if not callable(found) or isinstance(found, np.dtype):
            return self._space.close(found) if isinstance(found, np.ndarray) else found
        return self._space.wrapped(found)


def _operator(name: str) -> Any:
    def apply(self: DeviceArray, *others: Any) -> Any:
        opened = self._space.open(list(others))
        return self._space.close(np.asarray(getattr(self._numbers, name)(*opened)))

    return apply


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_BITS = ("and", "or", "xor", "lshift", "rshift")
_OTHERS = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge")

for _name in (*_ARITHMETIC, *_BITS, *(f"r{each}" for each in _ARITHMETIC + _BITS), *_OTHERS):
    setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))


def _in_place(name: str) -> Any:
    def apply(self: DeviceArray, other: Any) -> Any:
        getattr(self._numbers, name)(self._space.open(other))
        return self

    return apply


for _name in _ARITHMETIC[:-1] + _BITS:
    setattr(DeviceArray, f"__i{_name}__", _in_place(f"__i{_name}__"))


class Stream:
    """A stream that only keeps its order: work runs at once, and `calls` of the namespace lists it."""

    def __init__(self, space: StandIn, *, non_blocking: bool = False) -> None:
        self._space, self.non_blocking = space, non_blocking
        self.number = len(space.streams)
        space.streams.append(self)

    def __enter__(self) -> Stream:
        self._space.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._space.current.pop() is self

    def wait_event(self, event: Event) -> None:
        self._space.calls.append(("wait", self.number, event.number))

    def synchronize(self) -> None:
        self._space.calls.append(("synchronize stream", self.number))


class Event:
    """An event; it is reached at once."""

    done = True

    def __init__(self, space: StandIn, *, disable_timing: bool = False) -> None:
        assert disable_timing, "events that order streams need no time"
        self._space, self.number = space, len(space.events)
        space.events.append(self)

    def record(self, stream: Stream) -> None:
        self._space.calls.append(("record", self.number, stream.number))

    def synchronize(self) -> None:
        self._space.calls.append(("synchronize event", self.number))


class Universal:
    """A universal function over device arrays."""

    def __init__(self, space: StandIn, function: Any) -> None:
        self._function, self.__call = function, space.wrapped(function)
        self.at, self.reduce, self.outer = map(space.wrapped, (function.at, function.reduce, function.outer))

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        return self.__call(*arguments, **fields)


class StandIn(ModuleType):
    """The namespace: NumPy's functions over `DeviceArray`s."""

    ndarray = DeviceArray

    def __init__(self) -> None:
        super().__init__("cupy")
        self.transfers: list[str] = []
        runtime = SimpleNamespace(memGetInfo=lambda: (1 << 29, 1 << 30))
        self.waits = 0
        self.calls: list[tuple[Any, ...]] = []
        """What was issued to streams, in order: waits, records, and waits of the host."""
        self.streams: list[Stream] = []
        self.events: list[Event] = []
        null = Stream(self)
        self.current = [null]
        stream = partial(Stream, self)
        stream.null = null  # type: ignore[attr-defined]
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Stream=stream,
            Event=partial(Event, self),
            Device=lambda number: nullcontext(),
            get_current_stream=lambda: self.current[-1],
        )

    def open(self, value: Any) -> Any:
        """Unwrap an argument; NumPy arrays are refused, as in CuPy."""
        if isinstance(value, DeviceArray):
            return value._numbers
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if isinstance(value, (list, tuple)):
            return type(value)(self.open(item) for item in value)
        if isinstance(value, dict):
            return {name: self.open(item) for name, item in value.items()}
        return value

    def close(self, value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            return DeviceArray(self, np.asarray(value))
        if isinstance(value, (list, tuple)):
            return type(value)(self.close(item) for item in value)
        return value

    def wrapped(self, function: Any) -> Any:
        def call(*arguments: Any, **fields: Any) -> Any:
            if "initial" in fields:
                raise TypeError("got an unexpected keyword argument 'initial'")
            return self.close(function(*self.open(list(arguments)), **self.open(fields)))

        return call

    def asarray(self, value: Any, dtype: Any = None, order: Any = None) -> Any:
        """Copy an array to the device; the only such transfer."""
        if isinstance(value, DeviceArray):
            return self.close(value._numbers.astype(dtype or value.dtype, copy=False))
        self.transfers.append("to device")
        return DeviceArray(self, np.array(value, dtype))

    array = asarray

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ABSENT:
            raise AttributeError(f"module 'cupy' has no attribute '{name}'", name=name, obj=self)
        return self._own(getattr(np, name))

    def _own(self, found: Any) -> Any:
        if isinstance(found, ModuleType):
            return _Part(self, found)
        if isinstance(found, np.ufunc):
            return Universal(self, found)
        if callable(found) and not isinstance(found, type):
            return self.wrapped(found)
        return found


class _Part:
    """A submodule of the namespace, such as `linalg`."""

    def __init__(self, space: StandIn, module: ModuleType) -> None:
        self._space, self._module = space, module

    def __getattr__(self, name: str) -> Any:
        return self._space._own(getattr(self._module, name))


ABSENT = frozenset({"spacing", "char", "strings", "vectorize"})
"""Some functions of NumPy that CuPy does not have."""
