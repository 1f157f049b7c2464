"""Only the table `FACTS` and its module name operators of PyTorch; the exceptions have reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Set
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.internals import all_operator_names  # noqa: E402
from nncdbg.engine.ops.aten.operators import FACTS  # noqa: E402
from nncdbg.engine.ops.causes import torch_operators  # noqa: E402

PACKAGE = Path(__file__).resolve().parents[2] / "nncdbg"

TABLE = "engine/ops/aten/operators.py"

WITH_FULL_NAMES = {
    "engine/ops/aten/decompositions.py": "RULES: an operator beside the function that computes it with torch",
    "engine/ops/aten/internals.py": "checks torch's undocumented functions with some operators",
    "textual_repr/language_server/server.py": "looks up any operator, to load torch's registry in time",
}
WITH_SHORT_NAMES = {
    "torch/hooks.py": "methods of torch.UntypedStorage",
    "torch/step_calls.py": "functions of torch.nn.functional",
}
"""Other modules with such names, and why."""

FULL_NAME = re.compile(r"(aten|prims)(\.|::)\w+(\.\w+)?")


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees of the package by path."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in files}


def full_names(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a full name, such as ``"aten.add.Tensor"`` or ``torch.ops.aten.add``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Constant)):
            written = ast.unparse(node) if isinstance(node, ast.Attribute) else str(node.value)
            if FULL_NAME.fullmatch(written.removeprefix("torch.ops.")):
                yield node.lineno


def short_names(tree: ast.AST, names: Set[str]) -> Iterator[int]:
    """Yield the lines that compare with, list or look up names of operators without namespace."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            if any(isinstance(part, ast.Call) and ast.unparse(part.func) == "base_name" for part in parts):
                yield from (part.lineno for part in parts if isinstance(part, ast.Constant))
        elif isinstance(node, (ast.Tuple, ast.Set, ast.List)):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".startswith"):
            parts = node.args
        yield from (part.lineno for part in parts if isinstance(part, ast.Constant) and part.value in names)


def names_operators(tree: ast.AST) -> bool:
    """Return whether a module imports facts about operators or their names."""
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(each.startswith(("nncdbg.engine.ops.aten", "nncdbg.text.torch_names")) for each in modules)


def places(lines: Callable[[ast.Module], Iterator[int]]) -> dict[str, list[int]]:
    found = {path: [*lines(tree)] for path, tree in trees().items() if path != TABLE}
    return {path: lines for path, lines in found.items() if lines}


def test_only_the_table_has_full_names_of_operators() -> None:
    assert places(full_names).keys() == WITH_FULL_NAMES.keys()


def test_only_the_table_has_short_names_of_operators() -> None:
    registered = {each.split("::")[1] for each in all_operator_names() if each.startswith("aten::")}
    # A single word, such as "size", is most often something else.
    names = {each for name in registered for each in (name, name.removesuffix("_")) if "_" in each}
    names -= {facts.cause for facts in FACTS.values()}

    def lines(tree: ast.Module) -> Iterator[int]:
        return short_names(tree, names) if names_operators(tree) else iter(())

    assert places(lines).keys() == WITH_SHORT_NAMES.keys()


def test_each_rule_in_the_table_exists() -> None:
    missing = {facts.cause for facts in FACTS.values() if not hasattr(torch_operators, facts.cause or "cast")}
    assert missing == set()
