"""Numbers that may only fall: what the layout of the package forbids, where it is not gone yet."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FACES = ("commands", "terminal", "presentation", "dap_server", "notebook")
"""The rooms that are to know only `target` and `ir`."""

MOST_PARAMETERS = 8


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees of the package by the names of its modules."""
    found = {}
    for path in sorted((ROOT / "nncdbg").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text("utf-8"))
    return found


def room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def engine_names() -> Iterator[str]:
    """Yield the names of the engine that each of the faces imports."""
    for face in FACES:
        names = {
            f"{node.module}.{each.name}"
            for module, tree in trees().items()
            if room(module) == face
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nncdbg.engine")
            for each in node.names
        }
        yield from (f"{face} imports {name}" for name in sorted(names))


def imports_by_string() -> Iterator[str]:
    """Yield imports of modules of the package by a string, which no contract of imports sees."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                first = node.args[0]
                path = first.value if isinstance(first, ast.Constant) else ""
                if isinstance(path, str) and path.startswith("nncdbg."):
                    yield f"{module}:{node.lineno} {path}"


def long_parameter_lists() -> Iterator[str]:
    """Yield functions with many parameters, which should take a record such as the run configuration."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if len([each for each in parameters if each.arg != "self"]) > MOST_PARAMETERS:
                    yield f"{module}.{node.name}"


def modules_with_one_importer() -> Iterator[str]:
    """Yield modules that only one module imports, a neighbour in the same folder."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                importers[node.module or ""].add(module)
                for each in node.names:
                    importers[f"{node.module}.{each.name}"].add(module)
    for module in trees():
        users = importers[module] - {module}
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == module.rpartition(".")[0]:
            yield f"{module} <- {next(iter(users))}"


MOST: dict[Callable[[], Iterable[str]], int] = {
    trees: 698,
    engine_names: 0,
    imports_by_string: 0,
    long_parameter_lists: 25,
    modules_with_one_importer: 34,
}


@pytest.mark.parametrize("places", MOST, ids=lambda each: each.__name__)
def test_the_number_only_falls(places: Callable[[], Iterable[str]]) -> None:
    found = [*places()]
    assert len(found) == MOST[places], "remove the new one, or lower the number:\n" + "\n".join(found)
