"""Variables: handles of values in a dynamic graph."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from math import prod
from operator import index
from operator import index as as_index
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np
from msgspec import Struct

from nncdbg.dynamic_graph.gradients import add_gradients
from nncdbg.dynamic_graph.plans import NO_ATTRIBUTES
from nncdbg.dynamic_graph.trace import Symbol, wanted_name
from nncdbg.engine.building.values import Operators
from nncdbg.engine.compilation.code import UNSET
from nncdbg.errors import UsageError
from nncdbg.ir.records import Array, Type, has_cotangent, tensor_only
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.execution import Execution


class EagerVariable(Operators, Struct, eq=False, weakref=True):
    """A value of an eager session.  Python's operators execute ops.

    A variable refers to the latest version of its value: `x += y` makes a new value, and all references to
    this variable see it.  Earlier versions stay in the trace while a value depends on them.
    """

    _session: Execution
    _symbol: Symbol
    _array: Any
    """The value, or UNSET in a lazy session."""
    grad: EagerVariable | None = None
    """The sum of the gradients of all `backward` calls; set it to None before the next step."""
    _parameter: bool = False

    # -- inspection ------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The array, of the library of the session; a NumPy array is read-only.  Waits for a lazy value."""
        array = self._session.array_of(self)
        if not isinstance(array, (np.ndarray, np.generic)):
            return array
        view = np.asarray(array).view()
        view.flags.writeable = False
        return view

    @property
    def type(self) -> Type | None:
        """Element type and sizes; of a lazy value as far as they are known."""
        return self._session.types[self._symbol.type]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes.  Waits for a lazy value if they are not known before."""
        known = tensor_only(self.type)
        if known is None or not known.concrete:
            return tuple(np.shape(self.value))
        return tuple(size for size in known.shape or () if isinstance(size, int))

    @property
    def name(self) -> str:
        """The name in the text of the trace, without %."""
        return self._session.name_of(self._symbol)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._on_host(), dtype, copy=copy)

    def item(self) -> Any:
        """Return the value of one element as a Python number.  Raises UsageError for several elements."""
        host = self._on_host()
        if np.size(host) != 1:
            hint = "reduce it first, for example with ReduceMax(x, keepdims=0)"
            raise UsageError(
                f"%{name_text(self.name)} has {np.size(host)} elements, and no value as a number", hint=hint
            )
        return host.item()

    def _on_host(self) -> Array:
        found: Array = self._session.backend.to_host(self._session.array_of(self))
        return found

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __len__(self) -> int:
        """Return the size of the first axis.  Raises TypeError for a single number, as NumPy does."""
        if not self.shape:
            raise TypeError(f"%{name_text(self.name)} is a single number, and has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> EagerVariable:
        """Return a part, by integers, slices, ... and None, or rows by an array or variable of integers."""
        return part_of(self, index, _getframe(1))

    def __iter__(self) -> Iterator[EagerVariable]:
        """Iterate over the first axis."""
        frame = _getframe(1)
        for number in range(len(self)):
            yield part_of(self, number, frame)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return index(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    # -- copies ----------------------------------------------------------------------------------

    def __copy__(self) -> EagerVariable:
        """Return another variable of the value; the value itself never changes."""
        self._session.provide([self._symbol])
        return EagerVariable(self._session, self._symbol, self._array)

    def __deepcopy__(self, memo: Any) -> EagerVariable:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise UsageError(
            f"%{name_text(self.name)} cannot be pickled: it belongs to an eager session",
            hint="pickle its `value`, or save the session with g.save(directory)",
        )

    def __repr__(self) -> str:
        # A lazy value is not computed for its text.
        computed = self._array is not UNSET or self._symbol.value is not UNSET
        known = computed and prod(self.shape) == 1
        shown = f" = {self.item()}" if known else ""
        return f"<%{name_text(self.name)}: {self.type or '?'}{shown}>"

    # -- gradients -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether the value depends on one that requires a gradient.  Set it to True to get `grad`."""
        return self._symbol.tracked

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        symbol = self._symbol
        if wanted and not has_cotangent(self.type):
            raise UsageError(
                f"%{name_text(self.name)} is {self.type}, and has no gradient", hint="use a type of floats"
            )
        symbol.tracked = self._parameter = wanted
        if wanted:
            # The gradient may read it.
            symbol.value = self._array if symbol.value is UNSET else symbol.value
            self._session.parameters[id(self)] = self
        else:
            self._session.parameters.pop(id(self), None)

    def backward(self) -> None:
        """Add the gradient of this value, one float, to `grad` of the variables with `requires_grad`.

        The gradient is computed by statements, which are part of the trace.

        Raises UsageError if the value is no single float, or depends on no such variable; GraphError for an
        op without a gradient.
        """
        add_gradients(self, _getframe(1))

    # -- comparison ------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        if not is_operand(other):
            return NotImplemented
        return self._session.execute("Equal", (self, other), NO_ATTRIBUTES, _getframe(1))

    def __ne__(self, other: object) -> Any:
        if not is_operand(other):
            return NotImplemented
        equal = self._session.execute("Equal", (self, other), NO_ATTRIBUTES, _getframe(1))
        return self._session.execute("Not", (equal,), NO_ATTRIBUTES, _getframe(1))

    def __hash__(self) -> int:
        return id(self)

    # -- operators -------------------------------------------------------------------------------

    def _operate(self, op: str, *operands: Any) -> EagerVariable:
        return self._session.execute(op, operands, NO_ATTRIBUTES, _getframe(2))

    def assign(self, value: EagerVariable) -> Self:
        """Make this variable refer to another value; return it."""
        if not isinstance(value, EagerVariable):
            hint = "make a variable of it: g.input(name, data)"
            raise UsageError(
                f"%{name_text(self.name)} cannot refer to {type(value).__name__} data", hint=hint
            )
        if value._session is not self._session:
            raise UsageError("the value belongs to another session", hint="use one session")
        self._symbol, self._array = value._symbol, value._array
        if self._array is UNSET:
            self._symbol.handle = ref(self)
        if self._parameter:
            self.requires_grad = True
        return self

    def _changed(self, op: str, other: Any, frame: FrameType) -> Self:
        """Replace the value by the result of an op; its name is a version of the name of this variable."""
        name = wanted_name(self._symbol)
        made = self._session.execute(op, (self, other), NO_ATTRIBUTES, frame)
        made._symbol.wanted = name
        return self.assign(made)

    def __iadd__(self, other: Any) -> Self:
        return self._changed("Add", other, _getframe(1))

    def __isub__(self, other: Any) -> Self:
        return self._changed("Sub", other, _getframe(1))

    def __imul__(self, other: Any) -> Self:
        return self._changed("Mul", other, _getframe(1))

    def __itruediv__(self, other: Any) -> Self:
        return self._changed("Div", other, _getframe(1))


# -- parts of variables by index -----------------------------------------------------------

_FAR = 2**62
"""The end of an open slice."""


def is_operand(other: object) -> bool:
    """Return whether `==` compares with this object element by element."""
    return (
        isinstance(other, (bool, int, float))
        or (hasattr(other, "shape") and hasattr(other, "type"))
        or (hasattr(other, "dtype") and hasattr(other, "shape"))
    )


def part_of(variable: EagerVariable, index: Any, frame: FrameType) -> EagerVariable:
    """Return the part of a variable at an index: one Slice, then the removed and the new axes.

    Raises UsageError for an index of another form, IndexError for one that is out of range.
    """
    session = variable._session
    if hasattr(index, "dtype") or (hasattr(index, "_symbol") and index.shape):
        return session.execute("Gather", (variable, index), NO_ATTRIBUTES, frame)
    parts = _parts(variable, index if isinstance(index, tuple) else (index,), frame)
    slices: list[tuple[int, int, int, int]] = []
    removed: list[int] = []
    added: list[int] = []
    axis = place = 0
    for part in parts:
        if part is None:
            added.append(place)
            place += 1
        elif isinstance(part, slice):
            if part != slice(None):
                start, end, step = _bounds(variable, part, frame)
                slices.append((start, end, axis, step))
            axis, place = axis + 1, place + 1
        else:
            number = _checked(variable, part, axis, frame)
            slices.append((number, number + 1, axis, 1))
            removed.append(axis)
            axis += 1
    made = variable
    if slices:
        columns = [list(each) for each in zip(*slices, strict=True)]
        made = session.execute("Slice", (made, *columns), NO_ATTRIBUTES, frame)
    if removed:
        made = session.execute("Squeeze", (made, removed), NO_ATTRIBUTES, frame)
    if added:
        made = session.execute("Unsqueeze", (made, added), NO_ATTRIBUTES, frame)
    return made if made is not variable else copy(variable)


def _parts(variable: EagerVariable, index: tuple[Any, ...], frame: FrameType) -> list[Any]:
    """Return one part per axis of the variable, and None per new axis."""
    dots = [at for at, part in enumerate(index) if part is Ellipsis]
    given = sum(part is not None and part is not Ellipsis for part in index)
    if given > variable.ndim or len(dots) > 1:
        raise IndexError(f"too many indices for %{name_text(variable.name)}, which has {variable.ndim} axes")
    at = dots[0] if dots else len(index)
    rest = [slice(None)] * (variable.ndim - given)
    return [*index[:at], *rest, *index[at + 1 :]]


def _checked(variable: EagerVariable, part: Any, axis: int, frame: FrameType) -> int:
    if isinstance(part, (bool, np.bool_)) or not hasattr(part, "__index__"):
        hint = "use integers, slices, ... and None; Gather, GatherND and Where select elements"
        variable._session.fail(f"%{name_text(variable.name)} has no part at {part!r}", hint, frame)
    number, size = as_index(part), variable.shape[axis]
    if not -size <= number < size:
        raise IndexError(
            f"index {number} is out of range for axis {axis} of %{name_text(variable.name)}, of size {size}"
        )
    return number % size


def _bounds(variable: EagerVariable, part: slice, frame: FrameType) -> tuple[int, int, int]:
    step = 1 if part.step is None else as_index(part.step)
    if step == 0:
        variable._session.fail("the step of a slice cannot be 0", None, frame)
    first, last = (0, _FAR) if step > 0 else (_FAR, -_FAR)
    first = first if part.start is None else as_index(part.start)
    return first, last if part.stop is None else as_index(part.stop), step
