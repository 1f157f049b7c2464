"""The modules of a program: its graphs, stores of weights, micro programs, and loaded libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server import protocol
from nncdbg.extensions import BACKENDS, BUILT_IN

if TYPE_CHECKING:
    from nncdbg.dap_server.client import Client
    from nncdbg.dap_server.sources.shown import Sources
    from nncdbg.ir.records import Program
    from nncdbg.target.records import Place
    from nncdbg.target.target import Target

ENTERED, NOT_ENTERED = "compiled", "not entered yet"

COLUMNS = [
    protocol.ColumnDescriptor(attribute_name="nncdbgKind", label="Kind", type="string"),
    protocol.ColumnDescriptor(attribute_name="nncdbgStatements", label="Statements", type="number"),
]
"""Columns of our modules in addition to the protocol's own properties."""

_LIBRARIES = ("onnx", *BUILT_IN[BACKENDS])


class ProgramModule(protocol.Module, frozen=True, kw_only=True):
    """A module; `nncdbg_statements` counts those of a graph, without those of its branches and loops."""

    nncdbg_kind: str
    nncdbg_statements: int | None = None


@dataclass(eq=False)
class Modules:
    """The modules and sources of one program, and those already announced to the client."""

    target: Target
    sources: Sources
    _blocks: int = 0
    """The blocks seen so far."""
    _entered: set[str] = field(default_factory=set)
    _announced: bool = False
    _sources: list[protocol.Source] = field(default_factory=list)

    def announce(self, client: Client) -> None:
        """Announce new modules and sources to the client; cheap if there are none."""
        if not self._announced:
            self._announced = True
            self._newly_entered()
            for module in self.all():
                client.send_event("module", protocol.ModuleEventBody(reason="new", module=module))
            for source in self.loaded_sources():
                client.send_event("loadedSource", protocol.LoadedSourceEventBody(reason="new", source=source))
            self._sources = self.sources.micro_programs()
            return
        fresh = self._newly_entered()
        for module in self._graphs() if fresh else ():
            if module.name.removeprefix("@") in fresh:
                client.send_event("module", protocol.ModuleEventBody(reason="changed", module=module))
        self._announce_micro_program(client)

    def _newly_entered(self) -> set[str]:
        """The graphs entered for the first time since the last call."""
        blocks = self.target.blocks(self._blocks)
        self._blocks += len(blocks)
        fresh = {str(block.path[0]) for block in blocks if block.micro is None} - self._entered
        self._entered |= fresh
        return fresh

    def _announce_micro_program(self, client: Client) -> None:
        place = self.target.frame(0).place
        if place.micro is None:
            return
        source = self.sources.of_place(place)
        if source not in self._sources:
            self._sources.append(source)
            client.send_event("loadedSource", protocol.LoadedSourceEventBody(reason="new", source=source))
            client.send_event("module", protocol.ModuleEventBody(reason="new", module=_micro_program(source)))

    def loaded_sources(self) -> list[protocol.Source]:
        """Return the program's text, micro programs shown so far, and the files of the user's model."""
        sources = self.sources
        return [sources.of_program, *sources.micro_programs(), *sources.of_models]

    def all(self) -> list[protocol.Module]:
        """Return all modules, graphs first."""
        micro_programs = map(_micro_program, self.sources.micro_programs())
        return [
            *self._graphs(),
            *micro_programs,
            *_stores(self.target.program),
            *_libraries(self.target.setup.backend),
        ]

    def id_of(self, place: Place) -> str:
        """Return the id of the module that a statement belongs to."""
        if place.micro is None:
            return f"graph:{place.path[0]}"
        return f"micro:{self.sources.of_place(place).source_reference}"

    def _graphs(self) -> Iterator[ProgramModule]:
        program = self.target.program
        entered = {block.path[0] for block in self.target.blocks() if block.micro is None}
        path = self.sources.of_program.path
        for name, graph in program.graphs.items():
            yield ProgramModule(
                id=f"graph:{name}",
                name=f"@{name}",
                path=path,
                is_user_code=True,
                symbol_status=ENTERED if name in entered else NOT_ENTERED,
                symbol_file_path=program.source,
                nncdbg_kind="entry graph" if name == program.entry else "graph",
                nncdbg_statements=len(graph.nodes) + 1,
            )


def _micro_program(source: protocol.Source) -> ProgramModule:
    return ProgramModule(
        id=f"micro:{source.source_reference}",
        name=f"micro program {source.name}",
        is_user_code=False,
        symbol_status=ENTERED,
        nncdbg_kind="micro program",
    )


def _stores(program: Program) -> Iterator[ProgramModule]:
    for number, path in enumerate(program.stores):
        opened = number < len(program.readers)
        yield ProgramModule(
            id=f"store:{number}",
            name=Path(path).name,
            path=path,
            is_user_code=True,
            symbol_status="open" if opened else "not open",
            nncdbg_kind="store",
        )


def _libraries(chosen: str) -> Iterator[ProgramModule]:
    """The package itself, and the imported array libraries; `chosen` is the backend."""
    yield ProgramModule(
        id="library:nncdbg",
        name="nncdbg",
        version=version("nncdbg"),
        is_user_code=False,
        nncdbg_kind="library",
    )
    found = {name: sys.modules[name] for name in _LIBRARIES if name in sys.modules}
    for name in dict.fromkeys((chosen, *found)):
        library = found.get(name)
        yield ProgramModule(
            id=f"library:{name}",
            name=name,
            version=None if library is None else str(library.__version__),
            path=None if library is None else library.__file__,
            is_user_code=False,
            nncdbg_kind="backend" if name == chosen else "library",
        )
