"""Memory access to tensors: their elements in C order, for any memory layout or device.

4-bit and 2-bit elements take a byte each, as in NumPy.  Strings have no bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nncdbg.dap_server.client_recorder import block_text, smallest_block, value_text
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.protocol.requests import ReadMemoryBody, WriteMemoryBody
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.memory_references import address_of, resolved
from nncdbg.dap_server.variables.places import values_from
from nncdbg.dap_server.variables.value_text import is_tensor
from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.presentation.elements import is_text

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import ReadMemoryArguments, WriteMemoryArguments
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values

MAX_READ = 1 << 20
"""Most bytes of one answer; for a larger count, clients continue from the end of the answer."""

_NARROW = frozenset(dtypes.NUMPY[name] for name in ("bool", "u4", "i4", "u2", "i2", "f4e2m1fn"))
"""Element types for which some bytes are invalid."""


def _tensor(scope: Values, name: str) -> Any:
    """The current tensor, on its device.  Raises UsageError, NotComputed if there is none."""
    array = scope.content(name)
    if not is_tensor(array) or is_text(array):
        raise UsageError(f"{spelled(name)} has no bytes: it is not a tensor of numbers")
    return array


@request("readMemory", when=LIVE, values=True, capability="supportsReadMemoryRequest", reads=True)
def read_memory(session: Session, arguments: ReadMemoryArguments) -> ReadMemoryBody:
    place, offset = resolved(session, arguments.memory_reference, arguments.offset)
    if arguments.count < 0:
        raise UsageError(f"cannot read {arguments.count} bytes", hint="use a count of 0 or more")
    scope = values_from(session, place.frame)
    array = _tensor(scope, place.name)
    session.read_memory[arguments.memory_reference] = array.nbytes
    address = address_of(session, place, offset)
    if not 0 <= offset < array.nbytes:
        before = min(arguments.count, -offset) if offset < 0 else arguments.count
        return ReadMemoryBody(address=address, unreadable_bytes=before)
    data = _bytes_at(scope, array, offset, min(arguments.count, MAX_READ))
    # After the end of the value nothing follows; after `MAX_READ` it continues.
    behind = max(0, offset + arguments.count - array.nbytes)
    return ReadMemoryBody(
        address=address,
        data=base64.b64encode(data).decode("ascii"),
        unreadable_bytes=behind if offset + len(data) == array.nbytes and behind else None,
    )


def _bytes_at(scope: Values, array: Any, offset: int, count: int) -> bytes:
    """Bytes of the elements in C order, as many as there are; only the requested range is copied."""
    first, within = divmod(offset, array.dtype.itemsize)
    elements = _elements(scope, array, first, -(-(offset + count) // array.dtype.itemsize))
    return elements.tobytes()[within : within + count]


def _elements(scope: Values, array: Any, start: int, stop: int) -> npt.NDArray[Any]:
    """The elements at these positions in C order, on the host."""
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        return np.asarray(array.flat[start:stop])
    return np.asarray(scope.to_host(array.reshape(-1)[start:stop]))


@request(
    "writeMemory",
    when=LIVE,
    values=True,
    capability="supportsWriteMemoryRequest",
    title="Recomputing the values that depend on it",
)
def write_memory(session: Session, arguments: WriteMemoryArguments) -> WriteMemoryBody:
    place, offset = resolved(session, arguments.memory_reference, arguments.offset)
    data = _decoded(arguments.data)
    scope = values_from(session, place.frame)
    array = _tensor(scope, place.name)
    first, stop = max(0, offset), min(array.nbytes, offset + len(data))
    if (first, stop) != (offset, offset + len(data)) and not arguments.allow_partial:
        raise UsageError(
            f"bytes {offset} to {offset + len(data)} are out of range: "
            f"{spelled(place.name)} has {array.nbytes} bytes",
            hint="write inside the value, or use `allowPartial`",
        )
    inside = data[first - offset : max(first, stop) - offset]
    if inside:
        _write(session, scope, place.name, array, first, inside)
        session.defer(lambda: report_change(session))
    return WriteMemoryBody(offset=first - offset if inside else 0, bytes_written=len(inside))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UsageError(f"the data is not base64: {error}") from None


def _write(session: Session, scope: Values, name: str, array: Any, offset: int, data: bytes) -> None:
    """Set the elements that the bytes overlap, like any other edit: history and dependents are updated."""
    size = array.dtype.itemsize
    start, stop = offset // size, -(-(offset + len(data)) // size)
    raw = bytearray(_elements(scope, array, start, stop).tobytes())
    within = offset - start * size
    raw[within : within + len(data)] = data
    given = np.frombuffer(bytes(raw), array.dtype)
    _check_bits(name, given)
    index = np.unravel_index(np.arange(start, stop), array.shape) if array.ndim else None
    value = given if array.ndim else given[0]
    session.program.debugger.set_value(name, value, index, scope=scope)
    block = smallest_block(array.shape, start, stop)
    session.program.recorder.edit(scope.depth, block_text(name, block), value_text(scope.value(name)[block]))


def _check_bits(name: str, given: npt.NDArray[Any]) -> None:
    """Raise UsageError for bytes that are no valid element: a bool has two, an i4 sixteen."""
    if given.dtype not in _NARROW:
        return
    sound = given.astype(np.float32).astype(given.dtype)
    if not np.array_equal(sound.view(np.uint8), given.view(np.uint8)):
        raise UsageError(
            f"these bytes are not valid {given.dtype.name} elements of {spelled(name)}",
            hint="use 0 or 1 for a bool; set the unused high bits of an element to 0",
        )
