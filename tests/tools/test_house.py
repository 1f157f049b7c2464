"""Counts that may only fall: work on programs that `nncdbg/ir` does, done by hand elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = frozenset({"if", "while", "break", "update", "@"})

Rule: TypeAlias = Callable[[ast.Module], Iterator["ast.expr | ast.stmt"]]


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the package outside `nncdbg/ir`, by path."""
    files = (path.relative_to(ROOT) for path in (ROOT / "nncdbg").rglob("*.py"))
    return {str(path): ast.parse((ROOT / path).read_text("utf-8")) for path in files if path.parts[1] != "ir"}


def values(node: ast.AST) -> list[object]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]


def descents(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the reads of the blocks of statements."""
    return (each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and each.attr == "subgraphs")


def recursions(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield functions that read blocks, and call themselves or extend a list of blocks to visit."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any(descents(function)):
            for node in ast.walk(function):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                extends = isinstance(node, ast.AugAssign) or called.endswith(".extend")
                if called.removeprefix("self.") == function.name or (extends and any(descents(node))):
                    yield function
                    break


def comparisons(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield comparisons of an `op` with the string of a kind, in place of `Node.kind`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or ast.unparse(node.left).split(".")[-1] != "op":
            continue
        if KINDS.intersection(each for each in values(node) if isinstance(each, str)):
            yield node


def sigils(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield tests for ``@`` at the start of an `op`, in place of `Node.called`."""
    tests = ("op.startswith", "op.removeprefix")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "@" in values(node) and ast.unparse(node.func).endswith(tests):
            yield node


MOST: dict[Rule, int] = {descents: 54, recursions: 0, comparisons: 0, sigils: 0}


@pytest.mark.parametrize("rule", MOST, ids=lambda rule: rule.__name__)
def test_the_count_only_falls(rule: Rule) -> None:
    places = [f"{path}:{node.lineno}" for path, tree in modules().items() for node in rule(tree)]
    assert len(places) == MOST[rule], "use nncdbg/ir, or lower the number:\n" + "\n".join(places)
