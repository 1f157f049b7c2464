"""The room of targets: few methods, few records, and no class of the engine passes through it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import nncdbg.target
from nncdbg.target.program import ProgramTarget
from nncdbg.target.stops import ProgramStops, Stops
from nncdbg.target.target import Explanation, Target

ROOM = Path(nncdbg.target.__file__).parent

MOST_METHODS = 60
MOST_RECORDS = 40

OPEN = ("records", "target", "stops", "breakpoint_syntax")
"""The modules that faces import records and protocols from."""


def methods(protocol: type) -> list[str]:
    """Return the methods and properties of a protocol, without its attributes."""
    return [
        each
        for each, found in inspect.getmembers(protocol)
        if not each.startswith("_") and (callable(found) or isinstance(found, property))
    ]


def test_the_target_has_few_methods() -> None:
    assert len(methods(Target)) <= MOST_METHODS, sorted(methods(Target))


def records() -> Iterator[type]:
    for path in sorted(ROOM.glob("*.py")):
        module = import_module(f"nncdbg.target.{path.stem}")
        for each in vars(module).values():
            if (
                dataclasses.is_dataclass(each)
                and isinstance(each, type)
                and each.__module__ == module.__name__
            ):
                yield each


def test_the_room_has_few_records_which_are_frozen() -> None:
    found = [*records()]
    assert len(found) <= MOST_RECORDS, found
    for each in found:
        assert each.__dataclass_params__.frozen, each  # type: ignore[attr-defined]


def engine_names(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from the engine."""
    return {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nncdbg.engine")
        for each in node.names
    }


def annotated(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (owner, name) for the names in the annotations of public classes."""
    for owner in tree.body:
        if not isinstance(owner, ast.ClassDef) or owner.name.startswith("_"):
            continue
        for each in owner.body:
            if isinstance(each, ast.AnnAssign):
                found = [each.annotation]
            elif isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                arguments = [*each.args.args, *each.args.kwonlyargs]
                found = [one for one in (*(it.annotation for it in arguments), each.returns) if one]
            else:
                continue
            for annotation in found:
                for node in ast.walk(annotation):
                    if isinstance(node, ast.Name):
                        yield owner.name, node.id


@pytest.mark.parametrize("name", ["records", "target", "program", "stops", "explaining"])
def test_no_class_of_the_engine_passes_through(name: str) -> None:
    tree = ast.parse((ROOM / f"{name}.py").read_text("utf-8"))
    hidden = engine_names(tree)
    passed = [(owner, each) for owner, each in annotated(tree) if each in hidden]
    assert not passed
    if name in ("records", "target"):
        assert not hidden


@pytest.mark.parametrize(
    ("protocol", "made"), [(Target, ProgramTarget), (Stops, ProgramStops)], ids=["Target", "Stops"]
)
def test_each_method_is_implemented(protocol: type, made: type) -> None:
    inherited = [each for each in methods(protocol) if getattr(made, each) is getattr(protocol, each)]
    assert not inherited


def test_each_part_of_an_explanation_is_implemented() -> None:
    from nncdbg.target.explaining import ProgramExplanation

    for each in methods(Explanation):
        assert getattr(ProgramExplanation, each) is not getattr(Explanation, each)


def test_each_method_of_the_protocol_is_documented() -> None:
    for each in methods(Target):
        assert inspect.getdoc(getattr(Target, each)), each
