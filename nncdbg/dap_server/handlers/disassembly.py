"""The statements of a block, each with the kernel that runs it and its micro program."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nncdbg.dap_server.protocol.requests import DisassembleBody
from nncdbg.dap_server.protocol.types import DisassembledInstruction
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.instructions import parse_reference, statement_at_address
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import CONTROL_OPS
from nncdbg.ir.records import TensorType

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import DisassembleArguments
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code

MOST = 20_000
"""Instructions in one answer."""

LONGEST = 500
"""Displayed characters of a statement."""


@request("disassemble", when=LIVE, values=True, capability="supportsDisassembleRequest", reads=True)
def disassemble(session: Session, arguments: DisassembleArguments) -> DisassembleBody:
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
    return DisassembleBody(instructions=found)


def _instruction(session: Session, address: int) -> DisassembledInstruction:
    found = statement_at_address(session, address)
    if found is None:
        return DisassembledInstruction(
            address=f"{address:#x}", instruction="(no statement)", presentation_hint="invalid"
        )
    code, pc = found
    listing = session.program.debugger.loaded.listing_of(code)
    line = listing.line(code.path, pc)
    text = listing.lines[line - 1].strip()
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    known = session.blocks.micro_ops
    if (code, pc) not in known:
        known[code, pc] = _micro_ops(code, pc)
    ops = known[code, pc]
    return DisassembledInstruction(
        address=f"{address:#x}",
        instruction=f"{text}  ## {', '.join(ops)}" if ops else text,
        symbol=_kernel(session, code, pc),
        location=session.program.sources.of_code(code),
        line=session.client.outgoing_line(line),
    )


def _kernel(session: Session, code: Code, pc: int) -> str | None:
    """The function or library that runs a statement; None if the machine itself does."""
    if pc == len(code.nodes):
        return None
    op = code.nodes[pc].op
    if op in CONTROL_OPS or op.startswith("@"):
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
