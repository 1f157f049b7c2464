"""A second `nncdbg.watch` of a program does not compile its code again."""

from __future__ import annotations

import gc
import pickle
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.code import Compiler
from nncdbg.engine.launch import CompiledProgram
from nncdbg.engine.ops.declaration import Op, declare, declared_together
from nncdbg.textual_repr.parser import parse

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[N], %y: f32[N]) -> (%out: f32[N]) {
  %sum = @twice(%x)
  %noise = RandomUniformLike(%y)
  %log = Log(%y)
  %both = Add(%sum, %noise)
  %out = Add(%both, %log)
  return %out
}

graph @twice(%a: f32[N]) -> (%b: f32[N]) {
  %mask: f32[2] = [-inf, 0.0]
  %top = ReduceMax(%mask)
  %b = Add(%a, %top)
  return %b
}
"""

GOOD = {"x": np.ones(3, np.float32), "y": np.full(3, 2, np.float32)}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that are compiled during the test."""
    names = []
    compile_graph = Compiler.compile

    def noted(self: Compiler, graph: Any, *rest: Any) -> Any:
        names.append(graph.name)
        return compile_graph(self, graph, *rest)

    monkeypatch.setattr(Compiler, "compile", noted)
    return names


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_a_second_watch_compiles_nothing(backend: str, compiled: list[str]) -> None:
    program = parse(TEXT.replace("RandomUniformLike", "Neg"))
    first = nncdbg.watch(program, GOOD, backend=backend)
    assert first.ok
    assert compiled[:2] == ["main", "twice"]
    compiled.clear()
    second = nncdbg.watch(program, {**GOOD, "x": np.zeros(3, np.float32)}, backend=backend)
    assert compiled == []
    assert (second.status, second.ops, second.notes) == (first.status, first.ops, first.notes)


def test_a_second_watch_has_the_findings_of_a_first_one(compiled: list[str]) -> None:
    bad = {**GOOD, "y": np.array([1, -1, 2], np.float32)}
    program = parse(TEXT)
    expected = nncdbg.watch(parse(TEXT), bad)
    nncdbg.watch(program, GOOD)
    compiled.clear()
    found = nncdbg.watch(program, bad)
    assert compiled == []
    assert [each.site for each in found.findings] == [each.site for each in expected.findings]
    assert [each.cause for each in found.findings] == [each.cause for each in expected.findings] != []
    assert nncdbg.watch(program, GOOD).ok, "a finding does not affect later runs"


def test_nan_in_a_later_input_is_reported() -> None:
    program = parse(TEXT)
    assert nncdbg.watch(program, GOOD).ok
    report = nncdbg.watch(program, {**GOOD, "x": np.array([np.nan, 1, 1], np.float32)})
    assert report.findings[0].site.value == "x"


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": {"x": np.ones(4, np.float32), "y": np.ones(4, np.float32)}},
        {"inputs": GOOD, "seed": 1},
        {"inputs": GOOD, "backend": "onnxruntime"},
        {"inputs": GOOD, "allocator": "debug"},
        {"inputs": GOOD, "fail_on": "nan,range:max(%out)>100"},
    ],
)
def test_other_types_or_settings_compile_again(other: dict[str, Any], compiled: list[str]) -> None:
    program = parse(TEXT.replace("RandomUniformLike", "Neg"))
    nncdbg.watch(program, GOOD)
    compiled.clear()
    assert nncdbg.watch(program, **other).ok
    assert "main" in compiled


def test_values_of_a_watch_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[ref[Any]] = []
    release = CompiledProgram.release

    def noted(self: CompiledProgram) -> CompiledProgram:
        results.extend(ref(slot) for slot in self.running.frames[0].slots if isinstance(slot, np.ndarray))
        return release(self)

    monkeypatch.setattr(CompiledProgram, "release", noted)
    program = parse(TEXT)
    nncdbg.watch(program, {name: array.copy() for name, array in GOOD.items()})
    gc.collect()
    assert results
    assert not [each() for each in results if each() is not None]


def test_kept_code_belongs_to_one_program() -> None:
    program = parse(TEXT)
    nncdbg.watch(program, GOOD)
    assert "watched" in program.kept
    assert replace(program, source="other.nnc").kept == {}
    graph = ref(program.kept["watched"][1])
    del program
    gc.collect()
    assert graph() is None


def test_a_copy_has_no_kept_code() -> None:
    program = replace(parse(TEXT), listing=None)
    nncdbg.watch(program, GOOD)
    copy = pickle.loads(pickle.dumps(program))
    assert copy == program
    assert copy.kept == {}
    assert nncdbg.watch(copy, GOOD).ok


def test_code_is_compiled_again_after_a_declaration(compiled: list[str]) -> None:
    program = parse(TEXT)
    assert nncdbg.watch(program, GOOD).ok
    compiled.clear()
    with suppress(KeyError), declared_together():
        declare(Op(name="test.Later", kernel=lambda xp, x: x, doc=""))
        assert nncdbg.watch(program, GOOD).ok
        assert "main" in compiled
        compiled.clear()
        # Undoes the declaration.
        raise KeyError
    assert nncdbg.watch(program, GOOD).ok
    assert "main" in compiled
    compiled.clear()
    assert nncdbg.watch(program, GOOD).ok
    assert compiled == []
