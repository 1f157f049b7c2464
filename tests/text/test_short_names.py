"""Short forms of names: unique, stable, and resolved to the value when typed in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.errors import ExpressionError, UsageError
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.text.short_names import LONG, ProgramNames, Scopes, ShortNames, meant

DECODER = [
    f"/model/decoder/layers.{layer}/{attention}/{op}_output_0"
    for layer in range(12)
    for attention in ("self_attn", "encoder_attn")
    for op in ("MatMul", "MatMul_1", "Softmax", "out_proj/Add")
]


@pytest.mark.parametrize(
    ("names", "name", "short"),
    [
        (["x", "conv1/bn_b_0"], "conv1/bn_b_0", "conv1/bn_b_0"),
        (["If_0_then__Inline_0__/stft/Conv_output_0", "y"], None, "Conv_output_0"),
        (DECODER, DECODER[25], "layers.3/self_attn/MatMul_1_output_0"),
        (
            [f"/model/encoder/layers.{layer}/mlp/fc1/Add_output_0" for layer in (10, 11)],
            None,
            "layers.10/mlp/fc1/Add_output_0",
        ),
        (["a_name_of_words_only_that_is_long_enough", "b"], None, "enough"),
        (["é" * 70, "b"], None, "é" * 70),
    ],
)
def test_a_short_name_is_the_shortest_end_that_no_other_name_has(
    names: list[str], name: str | None, short: str
) -> None:
    assert ShortNames(names).short(name or names[0]) == short


COMPONENTS = st.sampled_from(
    ["a", "conv", "layers.3", "layers.11", "_", "__", "0", "Mul_1", "…", "...", "", "é"]
)
PATHS = st.lists(COMPONENTS, min_size=1, max_size=8).flatmap(
    lambda parts: st.sampled_from(["/", ".", ":", "__", "_", "|"]).map(lambda by: by.join(parts))
)


@given(st.lists(PATHS, min_size=1, max_size=12, unique=True))
def test_a_short_name_resolves_to_its_value(names: list[str]) -> None:
    short = ShortNames(names)
    for name in short.names:
        form = short.short(name)
        assert form == name or form not in short.names
        assert form == name or meant(form, short.names) == [name]


def test_suffixes_precede_inner_parts_and_inner_scopes_precede_outer_ones() -> None:
    assert meant("Conv_output", Scopes([["x/Conv_output_0", "y/Conv_output"]])) == ["y/Conv_output"]
    assert meant("output", Scopes([["conv_output_0"], ["x/output"]])) == ["x/output"]
    assert meant("output", Scopes([["b/output"], ["a/output", "c/output"]])) == ["b/output"]
    assert meant("output", Scopes([[], ["a/output", "c/output"]])) == ["a/output", "c/output"]
    assert meant("ou", ["conv_output_0"]) == []
    assert meant("layers.3...MatMul_1_output_0", DECODER) == [
        name for name in DECODER if "layers.3/" in name and "MatMul_1" in name
    ]


def test_short_forms_of_5000_names_take_a_fraction_of_a_second() -> None:
    names = [f"/model/decoder/layers.{i // 100}/block.{i % 100}/act/Relu_output_0" for i in range(5000)]
    nodes = tuple(Node("Relu", ("x",), (Value(name),)) for name in names)
    spent = []
    for _ in range(3):
        program = ProgramNames(Program({"main": Graph("main", (Value("x"),), (), nodes)}, "main"))
        started = time.thread_time()
        lines = [program.short(name) for name in names]
        spent.append(time.thread_time() - started)
    assert all(len(line) <= 2 * LONG for line in lines)
    assert min(spent) < 0.3, f"{min(spent) * 1000:.0f} ms of 50 expected"


TEXT = """#nncdbg 1
graph @main(%x: f32[2]) -> (%/model/decoder/layers.1/act/Relu_output_0: f32[2]) {
  %/model/decoder/layers.0/fc/Add_output_0: f32[2] = Add(%x, %x)
  %/model/decoder/layers.0/act/Relu_output_0: f32[2] = Relu(%/model/decoder/layers.0/fc/Add_output_0)
  %/model/decoder/layers.1/act/Relu_output_0: f32[2] = Relu(%/model/decoder/layers.0/act/Relu_output_0)
  return %/model/decoder/layers.1/act/Relu_output_0
}
"""


def test_a_part_of_a_name_is_accepted_wherever_a_value_is_named() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, -2.0]})
    found = debugger.break_at(value="%fc/Add_output_0", when="max(%fc/Add) > 0")
    assert found.target == "/model/decoder/layers.0/fc/Add_output_0"
    assert debugger.run().reason == "breakpoint"
    debugger.step_over()
    add = debugger.value("/model/decoder/layers.0/fc/Add_output_0").tolist()
    for name in ("%fc/Add_output_0", "Add_output_0", "fc/Add", "%layers.0…Add_output_0"):
        assert debugger.value(name).tolist() == add
    assert debugger.evaluate("Add_output_0[1] + %layers.0...Add_output_0[0]") == add[0] + add[1]
    assert debugger.evaluate("%layers.0/act/Relu_output_0.sum()") == 2.0
    debugger.set_value("%Add_output_0", [5.0, 6.0])
    assert debugger.evaluate("Add_output_0[0]") == 5.0


def test_the_hint_for_an_ambiguous_part_lists_the_candidates() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, -2.0]})
    debugger.run()
    for lookup in (debugger.evaluate, debugger.value):
        with pytest.raises(ExpressionError, match="ambiguous") as raised:
            lookup("%Relu_output_0")
        assert raised.value.hint == (
            "one of: %/model/decoder/layers.0/act/Relu_output_0, %/model/decoder/layers.1/act/Relu_output_0"
        )
    with pytest.raises(UsageError, match="ambiguous"):
        debugger.break_at(value="Relu_output_0")
    with pytest.raises(ExpressionError, match="nothing is named"):
        debugger.value("Relu_output_7")
