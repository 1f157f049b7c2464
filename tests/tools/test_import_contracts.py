"""The import contracts: the imports that break them."""

from __future__ import annotations

from typing import Any

import pytest
from grimp import ImportGraph

from tools.import_contracts import CompleteLayersContract, FewLooseModulesContract, SmallCyclesContract

MODULES = ("p", "p.top", "p.low", "p.low.a", "p.low.b", "p.loose")


def graph_of(*imports: tuple[str, str]) -> ImportGraph:
    graph = ImportGraph()
    for module in MODULES:
        graph.add_module(module)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return graph


def checked(kind: type[Any], graph: ImportGraph, **options: object) -> Any:
    contract = kind(name="n", session_options={"root_packages": ["p"]}, contract_options=options)
    return contract.check(graph, verbose=False)


@pytest.mark.parametrize(
    ("layers", "imports", "kept", "outside", "backward"),
    [
        (["p.loose", "p.top", "p.low"], [("p.top", "p.low.a")], True, [], []),
        (["p.loose", "p.top", "p.low"], [("p.low.a", "p.top")], False, [], []),
        (["p.top", "p.low"], [], False, ["p.loose"], []),
        (["p.loose", "p.top", "p.low"], [("p.low.b", "p")], False, [], [("p.low.b", "p")]),
        (["p.loose", "p.top", "p.low"], [("p", "p.top")], True, [], []),
    ],
)
def test_every_module_is_in_a_layer_and_imports_only_downward(
    layers: list[str],
    imports: list[tuple[str, str]],
    kept: bool,
    outside: list[str],
    backward: list[tuple[str, str]],
) -> None:
    check = checked(CompleteLayersContract, graph_of(*imports), layers=layers)
    assert (check.kept, check.metadata["outside"], check.metadata["backward"]) == (kept, outside, backward)


def test_a_cycle_that_is_too_long_is_listed_with_its_imports() -> None:
    cycle = [("p.top", "p.low.a"), ("p.low.a", "p.low.b"), ("p.low.b", "p.top")]
    assert checked(SmallCyclesContract, graph_of(*cycle), most=3).kept
    check = checked(SmallCyclesContract, graph_of(*cycle), most=2)
    [(modules, imports)] = check.metadata["cycles"]
    assert (check.kept, modules, sorted(imports)) == (False, ["p.low.a", "p.low.b", "p.top"], sorted(cycle))


def test_the_package_itself_counts_as_a_loose_module() -> None:
    assert checked(FewLooseModulesContract, graph_of(), package="p", most=3).kept
    check = checked(FewLooseModulesContract, graph_of(), package="p", most=2)
    assert (check.kept, check.metadata["loose"]) == (False, ["p", "p.loose", "p.top"])
