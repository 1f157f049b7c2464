"""Contracts of import-linter for `.importlinter`: complete layers, small cycles, few loose modules.

Imports in functions and below TYPE_CHECKING count like all others.
"""

from __future__ import annotations

from typing import Any, cast

import networkx
from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.contracts.layers import LayersContract


class CompleteLayersContract(LayersContract):
    """Each module is in a layer, and imports go down.

    A package of several layers is an entrance for users: no module of a layer may import it.
    """

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        layers = {tail.name for layer in cast(Any, self.layers) for tail in layer.module_tails}
        within = {module: layers & {*_with_parents(module)} for module in graph.modules}
        entrances = {parent for layer in layers for parent in _with_parents(layer)} - layers
        outside = sorted(module for module, found in within.items() if not found and module not in entrances)
        backward = sorted(
            (module, entrance)
            for entrance in entrances & graph.modules
            for module in graph.find_modules_that_directly_import(entrance)
            if within[module]
        )
        checked = super().check(graph, verbose)
        kept = checked.kept and not outside and not backward
        return ContractCheck(
            kept=kept, metadata={**checked.metadata, "outside": outside, "backward": backward}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module in check.metadata["outside"]:
            output.print_error(f"{module} is in no layer")
        for module, entrance in check.metadata["backward"]:
            output.print_error(f"{module} imports {entrance}, which holds layers")
        super().render_broken_contract(check)


def _with_parents(module: str) -> list[str]:
    """Return the module and the packages that it is in."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


class SmallCyclesContract(Contract):
    """No cycle of imports has more than `most` modules."""

    most = fields.IntegerField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = networkx.DiGraph()
        for module in graph.modules:
            imported = graph.find_modules_directly_imported_by(module)
            imports.add_edges_from((module, other) for other in imported)
        cycles = [sorted(cycle) for cycle in networkx.strongly_connected_components(imports)]
        long = sorted((cycle for cycle in cycles if len(cycle) > cast(int, self.most)), key=len, reverse=True)
        inside = [[pair for pair in imports.edges if {*pair} <= {*cycle}] for cycle in long]
        return ContractCheck(kept=not long, metadata={"cycles": list(zip(long, inside, strict=True))})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for modules, imports in check.metadata["cycles"]:
            output.print_error(f"{len(modules)} modules import each other in a cycle:")
            for importer, imported in sorted(imports):
                output.print(f"    {importer} -> {imported}")


class FewLooseModulesContract(Contract):
    """A package has at most `most` modules beside its folders, including `__init__`."""

    package = fields.ModuleField()
    most = fields.IntegerField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        loose = [
            package,
            *sorted(child for child in graph.find_children(package) if not graph.find_children(child)),
        ]
        return ContractCheck(kept=len(loose) <= cast(int, self.most), metadata={"loose": loose})

    def render_broken_contract(self, check: ContractCheck) -> None:
        loose: list[Any] = check.metadata["loose"]
        output.print_error(f"{self.package} has {len(loose)} loose modules: {', '.join(loose)}")
