"""Contracts for import-linter that `.importlinter` names: small cycles, and few files beside the folders.

Imports in functions and below TYPE_CHECKING count like all others.
"""

from __future__ import annotations

from typing import Any, cast

import networkx
from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class SmallCyclesContract(Contract):
    """No cycle of imports has more than `most` modules."""

    most = fields.IntegerField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = networkx.DiGraph()
        for module in graph.modules:
            imports.add_edges_from(
                (module, other) for other in graph.find_modules_directly_imported_by(module)
            )
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
    """A package has at most `most` modules that are not in one of its folders."""

    package = fields.ModuleField()
    most = fields.IntegerField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        loose = sorted(child for child in graph.find_children(package) if not graph.find_children(child))
        return ContractCheck(kept=len(loose) <= cast(int, self.most), metadata={"loose": loose})

    def render_broken_contract(self, check: ContractCheck) -> None:
        loose: list[Any] = check.metadata["loose"]
        output.print_error(
            f"{self.package} has {len(loose)} modules outside of its folders: {', '.join(loose)}"
        )
