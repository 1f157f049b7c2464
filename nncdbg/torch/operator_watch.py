"""Check the results of operators in C++, to name the first operator with NaN or Inf."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from nncdbg.engine.ops.aten.cpp_libraries import CppLibrary
from nncdbg.engine.ops.aten.internals import backward_call, has_kernel, module_call
from nncdbg.engine.ops.aten.operators import facts_of, overwrites, takes_memory
from nncdbg.engine.ops.aten.signatures import is_collective, signature
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.text.torch_names import of_other_library, text_name
from nncdbg.torch.finiteness import counted
from nncdbg.torch.guard_findings import BadOrigin, module_label
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER
from nncdbg.torch.source_lines import calling_modules, is_user_code, line_at, user_lines

if TYPE_CHECKING:
    from nncdbg.torch.guard_findings import GuardTrip


# -- the library of the observer -----------------------------------------------------------

# The library is plain C for Python (`ctypes`), so it depends on the version of torch, not on that of
# Python.


class BadOperand(ctypes.Structure):
    """An operand with NaN or Inf; `position` is the one in a list of tensors, otherwise -1."""

    _fields_ = (
        ("argument", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("nans", ctypes.c_int64),
        ("infinities", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class BadResult(ctypes.Structure):
    """The first NaN or Inf of its kind in a result: `Finding` of the source file."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("overload", ctypes.c_char_p),
        ("node", ctypes.c_char_p),
        ("sequence", ctypes.c_int64),
        ("phase", ctypes.c_int32),
        ("value", ctypes.c_int32),
        ("originates", ctypes.c_int32),
        ("nans", ctypes.c_int64),
        ("infinities", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("operands", ctypes.c_int32),
        ("operand", ctypes.POINTER(BadOperand)),
    )


class MadeNodes(ctypes.Structure):
    """The call that made some autograd nodes: `MadeNodes` of the source file."""

    _fields_ = (
        ("first", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("code", ctypes.c_void_p),
        ("position", ctypes.c_int64),
        ("module", ctypes.c_void_p),
    )

    def place(self) -> tuple[CodeType | None, int, Any]:
        """Return the code of the user's frame, the position of its instruction, and the innermost module."""
        return _object_at(self.code), self.position, _object_at(self.module)


def _object_at(address: int | None) -> Any:
    """Return the object of Python at an address; None without one."""
    return None if address is None else ctypes.cast(address, ctypes.py_object).value


FoundCallback = ctypes.CFUNCTYPE(None, ctypes.POINTER(BadResult))
ClassifyCallback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
CodeCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)

UNCHECKED, OVERWRITES, COMPOSITE, KEEPS_FINITE, SELECTS = (1 << bit for bit in (62, 61, 60, 59, 58))
"""What `ClassifyCallback` returns, besides a bit for each argument that the operator writes to."""


_LIBRARY = CppLibrary(
    Path(__file__).with_name("observer.cpp"), "the tier native", "its observer", "use the tier hooks"
)


@cache
def load_observer() -> ctypes.PyDLL:
    """Return the library, and compile it first if it is not kept yet.

    Its functions are called with Python's lock, for they hold objects of Python.
    Raises UsageError without a compiler, and for a library that cannot be compiled, kept or loaded.
    """
    path = _LIBRARY.path
    if not path.is_file():
        Screen().note(
            "compiling the observer of the tier native: up to a minute, once for each version of PyTorch"
        )
        _LIBRARY.compile()
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise UsageError(
            f"the observer of the tier native cannot be loaded: {error}",
            hint=f"delete {path}, then try again",
        ) from None
    library.nncdbg_begin.argtypes = (FoundCallback, ClassifyCallback, CodeCallback, ctypes.py_object)
    library.nncdbg_begin.restype = ctypes.c_uint64
    library.nncdbg_end.argtypes = (ctypes.c_uint64,)
    library.nncdbg_made.argtypes = (ctypes.c_int64,)
    library.nncdbg_made.restype = ctypes.POINTER(MadeNodes)
    for name in ("nncdbg_set_active", "nncdbg_set_updating", "nncdbg_set_idle"):
        getattr(library, name).argtypes = (ctypes.c_int,)
    return library


# -- the watch -----------------------------------------------------------------------------

_PHASES = (FORWARD, BACKWARD, OPTIMIZER)
"""Phases by their numbers in the observer."""

_VALUES = {1: "NaN", 2: "Inf"}
"""Values by their numbers in the observer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOperator(BadOrigin):
    """An operator with NaN or Inf in a result.

    In the backward pass, lines and module are those of the forward operator, except for code of the user
    that the backward pass runs.
    """

    originates: bool
    """Whether no operand has this value; otherwise the operator is the first one that reads it."""
    op: str
    node: str
    """The autograd node, in the backward pass."""
    of_forward: bool
    """Whether `lines` are those of the forward operator."""

    def __str__(self) -> str:
        """Return one sentence about the operator."""
        first = f"the first {self.value} of " + (
            "the update" if self.phase == OPTIMIZER else f"the {self.phase} pass"
        )
        place = self.op + (f", node {self.node}" if self.node else "")
        place += f", module {module_label(self.path, self.type)}" if self.type else ""
        listed = self._operands_text
        if not self.originates:
            return f"{first} is in an operand of {place}: {listed}; its result has {self.counts}"
        if is_collective(self.op):
            return f"{first} was received by {place}: {self.counts}"
        operands = f"; its operand {listed}" if listed else "; its operands are finite"
        return f"{first} originates in {place}: {self.counts}{operands}"

    @property
    def relation(self) -> str:
        """Return what `location` is to the operator."""
        return "gradient of" if self.of_forward else "at"

    def as_dict(self) -> dict[str, Any]:
        """Return the operator as a JSON object."""
        return {
            "phase": self.phase,
            "value": self.value,
            "originates": self.originates,
            "op": self.op,
            "node": self.node or None,
            "path": self.path,
            "type": self.type or None,
            "counts": self.counts,
            "location": self._location_as_dict,
            "operands": dict(self.operands),
        }


class OperatorWatch:
    """Checks the results of each operator on the thread that enters it, while it is `active`.

    The first ones with NaN and with Inf in each phase are kept until `forget`.  Raises UsageError if the
    observer cannot be compiled.
    """

    checks_updates = True
    skips_safe_updates = True

    def __init__(self) -> None:
        self._library = load_observer()
        self._active = self._updating = self._idle = False
        self._seen: list[tuple[torch.nn.Module | None, BadOperator]] = []
        """Bad operators with their modules, whose paths are not searched yet."""
        # The library keeps pointers to these.
        self._callbacks = (
            FoundCallback(self._delaying_interrupts(self._found)),
            ClassifyCallback(_classified),
            CodeCallback(self._delaying_interrupts(is_user_code)),
        )
        self._interrupted = False
        """Whether Ctrl-C came while the observer called Python, which cannot raise through C++."""
        self._entered = ExitStack()

    def __enter__(self) -> OperatorWatch:
        handle = self._library.nncdbg_begin(*self._callbacks, module_call)
        self._entered.callback(self._library.nncdbg_end, handle)
        self.forget()
        self.active = True
        return self

    def __exit__(self, *_: object) -> None:
        self.active = self.updating = self.idle = False
        self._entered.close()

    @property
    def active(self) -> bool:
        return self._active

    @active.setter
    def active(self, value: bool) -> None:
        self._active = value
        self._library.nncdbg_set_active(value)

    @property
    def updating(self) -> bool:
        """Whether an optimizer runs.  Setting it raises a KeyboardInterrupt that was delayed."""
        return self._updating

    @updating.setter
    def updating(self, value: bool) -> None:
        self._updating = value
        self._library.nncdbg_set_updating(value)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    @property
    def idle(self) -> bool:
        """Whether operators of this thread run without the observer: without a profiler, it takes no time."""
        return self._idle

    @idle.setter
    def idle(self, value: bool) -> None:
        if value is not self._idle:
            self._idle = value
            self._library.nncdbg_set_idle(value)

    def forget(self) -> None:
        """Forget the bad operators: a step starts here."""
        self._seen = []
        self._library.nncdbg_forget()

    def name_origin(self, trip: GuardTrip, paths: Mapping[int, str]) -> None:
        """Enter the bad operators of this step in their order, without the Inf after a NaN."""
        known: set[str] = set()
        for module, bad in self._seen:
            if bad.value == "NaN" or "NaN" not in known:
                known |= {bad.value}
                trip.operators.append(replace(bad, path=paths.get(id(module), "")))
        if not trip.operators:
            trip.notes.append("no operator with NaN or Inf was found; code of torch.compile is not checked")

    # -- called by the observer ------------------------------------------------------------

    def _delaying_interrupts(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns -1 after an interrupt."""

        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except KeyboardInterrupt:
                self._interrupted = True
                return -1

        return call

    def _found(self, pointer: Any) -> None:
        found: BadResult = pointer.contents
        frame: FrameType | None = sys._getframe(0).f_back
        phase, node = _PHASES[found.phase], (found.node or b"").decode()
        within = backward_call if phase == BACKWARD else None
        own = user_lines(frame, within=within)
        made = self._library.nncdbg_made(found.sequence) if phase == BACKWARD else None
        if made:
            code, position, module = made.contents.place()
            lines = own or (() if code is None else line_at(code, position))
        else:
            module, lines = next(calling_modules(frame, within), None), own
        name = _operator_name(found.name, found.overload)
        known, operands = signature(name), {}
        for each in found.operand[: found.operands]:
            operand = str(each.argument) if known is None else known.arguments[each.argument].name
            operand = operand if each.position < 0 else f"{operand}[{each.position}]"
            operands[operand] = counted(each.nans, each.infinities, each.count)
        bad = BadOperator(
            phase=phase,
            value=_VALUES[found.value],
            originates=bool(found.originates),
            op=name,
            node=node.rpartition("::")[2],
            type="" if module is None else type(module).__name__,
            counts=counted(found.nans, found.infinities, found.count),
            lines=lines,
            of_forward=lines is not own,
            operands=operands,
        )
        self._seen.append((module, bad))


def _operator_name(name: bytes, overload: bytes) -> str:
    """Return the name of an operator in program text."""
    namespace, _, operator = name.decode().partition("::")
    return text_name(namespace, operator, overload.decode())


def _classified(name: bytes, overload: bytes) -> int:
    """Return which arguments an operator writes to, if its results are checked, and if it is composite."""
    found = signature(_operator_name(name, overload)) if b"::" in name else None
    if found is None:
        return UNCHECKED | COMPOSITE  # The name of an autograd function.
    calls = has_kernel(found.overload, "CompositeImplicitAutograd") or of_other_library(found.name)
    result = COMPOSITE if calls else 0
    if found.views or found.moves_only or takes_memory(found.name):
        return result | UNCHECKED
    outputs = all(found.arguments[position].keyword_only for position in found.written)
    if outputs or overwrites(found.name):
        result |= OVERWRITES
    facts = facts_of(found.name)
    if (facts.keeps_real_finite or facts.selects) and not (outputs and found.written):
        result |= SELECTS if facts.selects else KEEPS_FINITE
    return result | sum(1 << position for position in found.written)
