"""Symbols: the values of a trace, in SSA form.  A symbol lives as long as a variable or a symbol needs it."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import ref

from msgspec import Struct

from nncdbg.dynamic_graph.call_sites import location_at
from nncdbg.engine.compilation.code import UNSET
from nncdbg.ir.records import Location

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.plans import OpPlan


class Symbol(Struct, eq=False, weakref=True):
    """A result of a statement, or a leaf: data from outside of the trace.

    Each statement holds its operands, so reference counting frees what no variable depends on.  The place in
    the user's code is resolved only for print: creating a symbol takes part of a microsecond.
    """

    number: int
    """The order in which the symbols of a session were made."""
    plan: OpPlan | None
    """The op with its kernel; None for a leaf."""
    operands: tuple[Any, ...]
    """Symbols, literals, and None for an omitted operand."""
    code: CodeType | None
    position: int
    """The offset of the calling instruction in `code`."""
    type: int
    """The number of the type, see `plans.TypeNumbers`."""
    tracked: bool
    """True if the value depends on one that requires a gradient."""
    value: Any = UNSET
    """The array, where it is needed again: of leaves, for gradients, and of lazy values."""
    wanted: str = ""
    """The name that the user gave; the printed one has a number if several symbols want it."""
    name: str = ""
    """The name in the text, "" before the first print."""
    first: Symbol | None = None
    """For a further result of a statement: the symbol of its first result."""
    index: int = 0
    """The number of the result."""
    after: Symbol | None = None
    """The call before this one, if it updates the states that this call reads."""
    cut: bool = False
    """True if the symbol becomes a leaf once it is computed."""
    handle: ref[Any] | None = None
    """In a lazy session, the variable that was made with the symbol."""

    @property
    def statement(self) -> Symbol:
        """The symbol with plan and operands: that of the first result."""
        return self if self.first is None else self.first

    @property
    def location(self) -> Location | None:
        """The user's Python line."""
        return None if self.code is None else location_at(self.code, self.position)

    def become_leaf(self, value: Any) -> None:
        """Forget the statement of a value: its operands are freed."""
        self.plan, self.operands, self.first, self.index = None, (), None, 0
        self.value, self.cut = value, False
