"""The symbols of a session: those that live, with their types and names, and the programs that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from nncdbg.dynamic_graph.plans import TypeNumbers
from nncdbg.dynamic_graph.symbols import Symbol
from nncdbg.dynamic_graph.trace import claim_names
from nncdbg.engine.frontends.folder_files import STORE
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.ir.records import Graph

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.models import Model


class SymbolTable:
    """Refers weakly to the symbols of a session, so that they are freed with their variables."""

    def __init__(self) -> None:
        self.types = TypeNumbers()
        self.graphs: dict[str, Graph] = {}
        """The graphs that statements may call."""
        self.models: list[Model] = []
        """The programs that statements call."""
        self.weights: dict[str, Any] = {}
        """The weights of these programs, by key in the store of the trace."""
        self._live: set[ref[Symbol]] = set()
        self.lives, self.dies = self._live.add, self._live.discard
        """Add and remove the reference to a symbol."""

    def symbols(self) -> list[Symbol]:
        """Return the symbols of the trace, in order."""
        found = [symbol for each in tuple(self._live) if (symbol := each()) is not None]
        return sorted(found, key=lambda symbol: symbol.number)

    def named_symbols(self) -> list[Symbol]:
        """Return the symbols of the trace, in order; each has a name."""
        found = self.symbols()
        states = (state.value.name for model in self.models for state in model.program.states)
        claim_names(found, states)
        return found

    def name_of(self, symbol: Symbol) -> str:
        """Return the name of a symbol in the text of the trace."""
        return symbol.name or next(each.name for each in self.named_symbols() if each is symbol)

    # -- called programs -------------------------------------------------------------------------

    def add_model(self, model: Model) -> None:
        """Add the graphs of a program, which can be called from now on."""
        self.graphs.update(model.program.graphs)
        self.models.append(model)

    def model_of(self, op: str) -> Model | None:
        """Return the program with the graph that a statement calls."""
        called = (model for model in self.models if op[1:] in model.program.graphs)
        return next(called, None) if op.startswith("@") else None

    @property
    def stores(self) -> tuple[tuple[str, ...], tuple[ArrayStore, ...]]:
        """The stores of the trace, with their readers."""
        return ((STORE,), (ArrayStore(self.weights),)) if self.weights else ((), ())
