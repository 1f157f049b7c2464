"""Memory access to tensors (their elements in C order, for any layout or device), and disassembly.

4-bit and 2-bit elements take a byte each, as in NumPy.  Strings have no bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.dap_server import protocol
from nncdbg.dap_server.client_recorder import block_text, smallest_block, value_text
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.addresses import parse_reference, statement_at_address
from nncdbg.dap_server.variables.places import address_of, resolved, values_from
from nncdbg.dap_server.variables.value_text import is_tensor
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.expression import spelled
from nncdbg.ir.kinds import is_transfer
from nncdbg.ir.records import TensorType
from nncdbg.presentation.elements import is_text

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
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
    data = _elements(scope, array, start, -(-(offset + count) // size)).tobytes()[within : within + count]
    # After the end of the value nothing follows; after `MAX_READ` it continues.
    behind = max(0, offset + arguments.count - array.nbytes)
    return protocol.ReadMemoryBody(
        address=address,
        data=base64.b64encode(data).decode("ascii"),
        unreadable_bytes=behind if offset + len(data) == array.nbytes and behind else None,
    )


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


MOST = 20_000
"""Instructions in one answer."""

LONGEST = 500
"""Displayed characters of a statement."""


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
    for address in range(start, start + arguments.instruction_count):
        session.queue.check_cancelled()
        found.append(_instruction(session, address))
    return protocol.DisassembleBody(instructions=found)


def _instruction(session: Session, address: int) -> protocol.DisassembledInstruction:
    found = statement_at_address(session, address)
    if found is None:
        return protocol.DisassembledInstruction(
            address=f"{address:#x}", instruction="(no statement)", presentation_hint="invalid"
        )
    code, pc = session.program.code(found), found.pc
    listing = session.program.debugger.loaded.listing_of(code)
    line = listing.line(code.path, pc)
    text = listing.lines[line - 1].strip()
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    known = session.blocks.micro_ops
    if (found.block, pc) not in known:
        known[found.block, pc] = _micro_ops(code, pc)
    ops = known[found.block, pc]
    return protocol.DisassembledInstruction(
        address=f"{address:#x}",
        instruction=f"{text}  ## {', '.join(ops)}" if ops else text,
        symbol=_kernel(session, code, pc),
        location=session.program.sources.of_place(found),
        line=session.client.outgoing_line(line),
    )


def _kernel(session: Session, code: Code, pc: int) -> str | None:
    """The function or library that runs a statement; None if the machine itself does."""
    if pc == len(code.nodes):
        return None
    op = code.nodes[pc].op
    if is_transfer(op):
        return None
    backend = session.program.debugger.backend
    found = lookup(op, version_of(op, code.opsets))
    if not backend.runs_op_kernels or found is None:
        return backend.name
    if found.ufunc is not None:
        return f"{backend.name}.{found.ufunc}"
    if found.reference:
        return f"onnx.reference {op}"
    kernel = found.kernel
    module, name = getattr(kernel, "__module__", None), getattr(kernel, "__qualname__", None)
    return backend.name if module is None or name is None else f"{module}.{name}"


_MICRO_OPS: WeakKeyDictionary[Code, dict[int, tuple[str, ...]]] = WeakKeyDictionary()
"""Cache by block and pc; the entries of a freed program are dropped."""


def _micro_ops(code: Code, pc: int) -> tuple[str, ...]:
    """The ops of a statement's micro program if its operands' types are fully known; else none."""
    known = _MICRO_OPS.setdefault(code, {})
    if pc not in known:
        known[pc] = _find_micro_ops(code, pc)
    return known[pc]


def _find_micro_ops(code: Code, pc: int) -> tuple[str, ...]:
    if code.transfers(pc):
        return ()
    types = []
    for slot in code.operands[pc]:
        type = code.types.get(code.names[slot]) if slot else None
        if slot and not (isinstance(type, TensorType) and _known(type)):
            return ()
        types.append(type if isinstance(type, TensorType) else None)
    try:
        program = formula_of(code.nodes[pc], types, code.opsets)
    except NncdbgError:
        return ()  # the statement fails when it runs, and reports the reason then
    return () if program is None else tuple(node.op for node in program.graphs[program.entry].nodes)


def _known(type: TensorType) -> bool:
    return type.shape is not None and all(isinstance(size, int) for size in type.shape)
