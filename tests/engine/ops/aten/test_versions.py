"""Versions of torch: an older one is refused, a newer one works unless it lacks what nncdbg uses."""

import ast
import inspect
import re
import sys
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.backends import backend  # noqa: E402
from nncdbg.engine.ops.aten import internals, versions  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.torch import check_torch  # noqa: E402

INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])


newest_names = pytest.mark.skipif(
    INSTALLED < (2, 12), reason="a compiled call keeps its result nowhere before torch 2.12"
)


@pytest.fixture(autouse=True)
def checks_anew():
    versions._check.cache_clear()
    yield
    versions._check.cache_clear()


@pytest.mark.parametrize("check", [check_torch, lambda: backend("torch")], ids=["training", "backend"])
@pytest.mark.parametrize("version", ["2.9.1", "2.1.0+cpu", "1.13"])
def test_an_older_version_is_refused(version, check, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError) as caught:
        check()
    assert f"torch {version} is not supported: nncdbg works with torch 2.10 or newer" in str(caught.value)
    assert caught.value.hint == "pip install 'torch>=2.10'"


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cu132", "2.15.1"])
def test_a_known_version_gives_no_warning(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_torch()


@newest_names
@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20261129+cpu", "3.0.0a0"])
def test_a_newer_version_works_with_one_warning(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    random = torch.get_rng_state()
    with pytest.warns(UserWarning, match="is newer than the versions that nncdbg was tested with") as caught:
        check_torch()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_torch()
    assert torch.equal(torch.get_rng_state(), random)


def remove_variable(monkeypatch):
    monkeypatch.setattr(internals, "_COMPILED_CALL", {"renamed"})


def remove_function(monkeypatch):
    monkeypatch.delattr(torch._dynamo.eval_frame, "_maybe_set_eval_frame")


def replace_meaning(monkeypatch):
    monkeypatch.setattr(internals, "next_sequence_number", lambda: -1)


def remove_kernels(monkeypatch):
    monkeypatch.delattr(torch._ops, "_compute_keyset")


def remove_ranks(monkeypatch):
    monkeypatch.setattr(internals, "_RANKS", "renamed")


@pytest.mark.parametrize(
    "change", [remove_variable, remove_function, replace_meaning, remove_kernels, remove_ranks]
)
def test_a_newer_version_that_lacks_what_nncdbg_uses_is_refused(change, monkeypatch):
    import torch._dynamo

    monkeypatch.setattr(torch, "__version__", "2.16.0")
    change(monkeypatch)
    with pytest.raises(UsageError, match=r"nncdbg does not work with torch 2\.16\.0") as caught:
        check_torch()
    assert caught.value.hint is not None
    assert "2.10 to 2.15" in caught.value.hint


def private_names(tree):
    """Return the names with one underscore in front that each function reads, by its first line."""
    found: dict[int, set[Any]] = {}

    def visit(node: ast.AST, names: set[Any]) -> None:
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0] if node.decorator_list else node
            names = found.setdefault(first.lineno, set())
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) not in {"self", "cls", "sys"}:
            names.add(node.attr)
        if isinstance(node, ast.ImportFrom):
            names |= {*str(node.module).split("."), *(each.name for each in node.names)}
        if isinstance(node, ast.Constant):
            names.add(node.value)
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(tree, found.setdefault(0, set()))
    return found


@newest_names
def test_the_self_test_needs_each_name_that_torch_does_not_document():
    names = private_names(ast.parse(inspect.getsource(internals)))
    ran = {0}

    def note(frame, event, _):
        if frame.f_code.co_filename == internals.__file__:
            ran.add(frame.f_code.co_firstlineno)

    internals.out_form.cache_clear()
    sys.setprofile(note)
    try:
        internals.check_names()
    finally:
        sys.setprofile(None)
    checked = set().union(*(each for line, each in names.items() if line in ran))
    unchecked = {
        each for read in names.values() for each in read - checked if re.match("_[a-zA-Z]", str(each))
    }
    assert unchecked == set()
