"""Memory access to tensors (their elements in C order, for any layout or device), and disassembly.

4-bit and 2-bit elements take a byte each, as in NumPy.  Strings have no bytes.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.dap_server import protocol
from nncdbg.dap_server.client_recorder import block_text, smallest_block, value_text
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.addresses import parse_reference, statement_at_address, statement_number
from nncdbg.dap_server.variables.children import View
from nncdbg.dap_server.variables.places import address_of, resolved, values_from
from nncdbg.dap_server.variables.value_text import is_tensor
from nncdbg.errors import NotComputed, UsageError
from nncdbg.expression import spelled
from nncdbg.ir.source_trace import NO_VISIT
from nncdbg.presentation.elements import is_text
from nncdbg.presentation.short_statements import in_one_line
from nncdbg.text.short_names import names_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Place
    from nncdbg.target.target import Scope, Target
    from nncdbg.text.short_names import ShortNames

MAX_READ = 1 << 20
"""Most bytes of one answer; for a larger count, clients continue from the end of the answer."""

_NARROW = frozenset(dtypes.NUMPY[name] for name in ("bool", "u4", "i4", "u2", "i2", "f4e2m1fn"))
"""Element types for which some bytes are invalid."""


def _tensor(scope: Scope, name: str) -> Any:
    """The current tensor, on its device.  Raises UsageError, NotComputed if there is none."""
    array = scope.content(name)
    if not is_tensor(array) or is_text(array):
        raise UsageError(f"{spelled(name)} has no bytes: it is not a tensor of numbers")
    return array


@request("readMemory", when=LIVE, values=True, capability="supportsReadMemoryRequest", reads=True)
def read_memory(session: Session, arguments: protocol.ReadMemoryArguments) -> protocol.ReadMemoryBody:
    place, offset = resolved(session, arguments.memory_reference, arguments.offset)
    if arguments.count < 0:
        raise UsageError(f"cannot read {arguments.count} bytes", hint="use a count of 0 or more")
    scope = values_from(session, place.frame)
    array = _tensor(scope, place.name)
    session.read_memory[arguments.memory_reference] = array.nbytes
    address = address_of(session, place, offset)
    if not 0 <= offset < array.nbytes:
        before = min(arguments.count, -offset) if offset < 0 else arguments.count
        return protocol.ReadMemoryBody(address=address, unreadable_bytes=before)
    # Only the requested range is copied.
    size, count = array.dtype.itemsize, min(arguments.count, MAX_READ)
    start, within = divmod(offset, size)
    stop = -(-(offset + count) // size)
    data = _elements(session.program.target, array, start, stop).tobytes()[within : within + count]
    # After the end of the value nothing follows; after `MAX_READ` it continues.
    behind = max(0, offset + arguments.count - array.nbytes)
    return protocol.ReadMemoryBody(
        address=address,
        data=base64.b64encode(data).decode("ascii"),
        unreadable_bytes=behind if offset + len(data) == array.nbytes and behind else None,
    )


def _elements(target: Target, array: Any, start: int, stop: int) -> npt.NDArray[Any]:
    """The elements at these positions in C order, on the host."""
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        return np.asarray(array.flat[start:stop])
    return np.asarray(target.host(array.reshape(-1)[start:stop]))


@request(
    "writeMemory",
    when=LIVE,
    values=True,
    capability="supportsWriteMemoryRequest",
    title="Recomputing the values that depend on it",
)
def write_memory(session: Session, arguments: protocol.WriteMemoryArguments) -> protocol.WriteMemoryBody:
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
    return protocol.WriteMemoryBody(offset=first - offset if inside else 0, bytes_written=len(inside))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UsageError(f"the data is not base64: {error}") from None


def _write(session: Session, scope: Scope, name: str, array: Any, offset: int, data: bytes) -> None:
    """Set the elements that the bytes overlap, like any other edit: history and dependents are updated."""
    size = array.dtype.itemsize
    start, stop = offset // size, -(-(offset + len(data)) // size)
    target = session.program.target
    raw = bytearray(_elements(target, array, start, stop).tobytes())
    within = offset - start * size
    raw[within : within + len(data)] = data
    elements = np.frombuffer(bytes(raw), array.dtype)
    _check_bits(name, elements)
    index = np.unravel_index(np.arange(start, stop), array.shape) if array.ndim else None
    value = elements if array.ndim else elements[0]
    target.set_value(name, value, index, target.frame(0).depth - scope.depth)
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


MOST = 20_000
"""Instructions in one answer."""

LONGEST = 500
"""Displayed characters of a statement."""

_STATEMENT_WIDTH = 56
"""Columns of a statement before its results."""


@request("disassemble", when=LIVE, values=True, capability="supportsDisassembleRequest", reads=True)
def disassemble(session: Session, arguments: protocol.DisassembleArguments) -> protocol.DisassembleBody:
    start = parse_reference(arguments.memory_reference)
    if start is None:
        raise UsageError(
            f"{arguments.memory_reference!r} is not an address", hint="use an address from a stack frame"
        )
    if not 0 <= arguments.instruction_count <= MOST:
        raise UsageError(f"`instructionCount` must be 0 to {MOST}, not {arguments.instruction_count}")
    start += (arguments.offset or 0) + (arguments.instruction_offset or 0)
    if start < 0:
        raise UsageError(f"the address {start} is below 0", hint="use a larger offset")
    found = []
    statements = StepInstructions(session)
    for address in range(start, start + arguments.instruction_count):
        session.queue.check_cancelled()
        found.append(statements.instruction(address) or _instruction(session, address))
    return protocol.DisassembleBody(instructions=found)


class StepInstructions:
    """The statements of a recorded step as instructions, in the order in which they run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._target = session.program.target
        self._source = self._target.source
        self._glance = View(session).glance

    @cached_property
    def _names(self) -> ShortNames:
        return names_of(self._target.lowered)

    @cached_property
    def _next(self) -> int:
        """The number of the next statement: those before it have results."""
        return self._source.statement if self._source is not None else 0

    def instruction(self, address: int) -> protocol.DisassembledInstruction | None:
        """Return the statement at an address, with its line of the source; None for other addresses."""
        number = statement_number(self._session, address)
        if self._source is None or number is None:
            return None
        place = self._target.place(*self._source.order.places[number])
        text = in_one_line(place.text, self._names, _STATEMENT_WIDTH)
        if number < self._next:
            text = f"{text}  {self._results(place)}".rstrip()
        visit = self._source.order.trace.statements[number]
        sources, client = self._session.program.sources, self._session.client
        if visit == NO_VISIT:
            location, line = sources.of_place(place), place.line
        else:
            trace = self._source.order.trace
            location, line = sources.of_recorded(trace.file(visit)), trace.visits[visit].line
        return protocol.DisassembledInstruction(
            address=f"{address:#x}",
            instruction=text,
            symbol=None if visit == NO_VISIT else self._source.order.trace.function(visit),
            location=location,
            line=client.outgoing_line(line),
        )

    def _results(self, place: Place) -> str:
        """Return the values of the results of a statement that has run."""
        scope, texts = self._target.scope(), []
        for value in place.node.outputs if place.node is not None else ():
            with suppress(NotComputed):
                texts.append(self._glance.text(scope.content(value.name)))
        return ", ".join(texts)


def _instruction(session: Session, address: int) -> protocol.DisassembledInstruction:
    place = statement_at_address(session, address)
    if place is None:
        return protocol.DisassembledInstruction(
            address=f"{address:#x}", instruction="(no statement)", presentation_hint="invalid"
        )
    text = place.text
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    function, ops = session.program.target.implementation(place)
    return protocol.DisassembledInstruction(
        address=f"{address:#x}",
        instruction=f"{text}  ## {', '.join(ops)}" if ops else text,
        symbol=function,
        location=session.program.sources.of_place(place),
        line=session.client.outgoing_line(place.line),
    )
