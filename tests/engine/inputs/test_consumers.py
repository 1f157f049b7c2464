"""Generated inputs: integers in the range that their readers accept, sizes for which the program runs."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError

LAYER = """
graph @layer(%n: i64[...], %t: f32[...]) -> (%out) {
  %flat: i64[...] = Reshape(%n, [-1])
  %out = Gather(%t, %flat)
  return %out
}
"""

INTEGERS = {
    "gather": ("%x: i64[2,8]", "%y = Gather(%t, %x)", "integers in [0, 7), from Gather"),
    "gather_axis": ("%x: i64[4]", "%y = Gather(%t, %x, axis=1)", "integers in [0, 3), from Gather"),
    "negative_offset": (
        "%x: i64[5]",
        "%s = Add(%x, 2)\n  %y = Gather(%t, %s)",
        "integers in [-2, 5), from Gather",
    ),
    "cast_reshape": (
        "%x: i32[2,4]",
        "%c = Cast(%x, to=7)\n  %r = Reshape(%c, [8])\n  %i = Identity(%r)\n  %y = Gather(%t, %i)",
        "integers in [0, 7), from Gather",
    ),
    "layer": ("%x: i64[3]", "%y = @layer(%x, %t)", "integers in [0, 7), from Gather"),
    "two_readers": (
        "%x: i64[6]",
        "%a = Gather(%t, %x)\n  %y = Gather(%t, %x, axis=1)",
        "integers in [0, 3), from Gather",
    ),
    "clipped": ("%x: i64[6]", "%c = Clip(%x, 0, 6)\n  %y = Gather(%t, %c)", None),
    "elements": (
        "%x: i64[7,2]",
        "%y = GatherElements(%t, %x, axis=1)",
        "integers in [0, 3), from GatherElements",
    ),
    "tuples": ("%x: i64[9,2]", "%y = GatherND(%t, %x)", "integers in [0, 3), from GatherND"),
    "scatter": (
        "%x: i64[4,1], %u: f32[4,3]",
        "%y = ScatterND(%t, %x, %u)",
        "integers in [0, 7), from ScatterND",
    ),
    "one_hot": ("%x: i64[5]", "%y = OneHot(%x, 4, [0.0, 1.0])", "integers in [0, 4), from OneHot"),
    "depth": ("%x: i64[]", "%y = OneHot([1, 0], %x, [0.0, 1.0])", "integers in [2, 11), from OneHot"),
    "divisor": ("%x: i64[20]", "%y = Div(100, %x)", "integers in [1, 10), from Div"),
    "modulus": ("%x: i32[20]", "%n: i32[] = 100\n  %y = Mod(%n, %x)", "integers in [1, 10), from Mod"),
    "shift": ("%x: u8[20]", '%n: u8[] = 1\n  %y = BitShift(%n, %x, direction="LEFT")', "integers in [0, 8)"),
    "new_shape": ("%x: i64[3]", "%y = Reshape(%t, %x)", "[-1, 1, 1], from Reshape"),
    "expand": ("%x: i64[2]", "%y = Expand(%t, %x)", "1, from Expand"),
    "tile": ("%x: i64[2]", "%y = Tile(%t, %x)", "integers in [1, 5), from Tile"),
    "fill": ("%x: i64[3]", "%y = ConstantOfShape(%x)", "integers in [1, 5), from ConstantOfShape"),
    "range": ("%x: i64[]", "%y = Range(0, %x, 1)", "integers in [1, 5), from Range"),
    "top": ("%x: i64[1]", "%y, %i = TopK(%t, %x, axis=0)", "integers in [1, 8), from TopK"),
    "parts": ("%x: i64[3]", "%y, %b, %c = Split(%t, %x)", "[3, 2, 2], from Split"),
    "ends": ("%x: i64[1]", "%y = Slice(%t, [0], %x, [0])", "integers in [1, 4), from Slice"),
    "axis": ("%x: i64[1]", "%y = ReduceSum(%t, %x)", "integers in [0, 2), from ReduceSum"),
    "padded": ("%x: i64[2]", "%y = Pad(%t, [1, 1, 0, 2], 0.0, %x)", "[0, 1], from Pad"),
    "running": ("%x: i32[]", "%y = CumSum(%t, %x)", "integers in [0, 2), from CumSum"),
    "regions": (
        "%x: i64[3], %r: f32[3,4]",
        "%m = Reshape(%t, [1,1,7,3])\n  %y = RoiAlign(%m, %r, %x)",
        "0, from RoiAlign",
    ),
    "batch": (
        "%x: i64[7,2,1]",
        "%y = GatherND(%t, %x, batch_dims=1)",
        "integers in [0, 3), from GatherND",
    ),
    "batch_of_a_symbol": (
        "%x: i64[B,2,1], %f: f32[B,4]",
        "%g = Abs(%f)\n  %y = GatherND(%g, %x, batch_dims=1)",
        "integers in [0, 4), from GatherND",
    ),
    "scales": ("%x: f32[2]", "%y = Resize(%t, _, %x)", "integers in [1, 5), from Resize"),
    "positions": (
        "%x: i64[1,2], %f: f32[1,1,2,6]",
        "%y = RotaryEmbedding(%f, %t, %t, %x)",
        "integers in [0, 7), from RotaryEmbedding",
    ),
    "labels": (
        "%x: i64[7]",
        "%y, %p = SoftmaxCrossEntropyLoss(%t, %x)",
        "integers in [0, 3), from SoftmaxCrossEntropyLoss",
    ),
}


def program(inputs, body, *, result="%y"):
    text = f"""#nncdbg 1
opset 23

graph @main({inputs}) -> ({result}) {{
  %t: f32[7,3] = [{", ".join("[1.0, 2.0, 3.0]" for _ in range(7))}]
  {body}
  return {result}
}}
{LAYER if "@layer" in body else ""}"""
    return nncdbg.parse(text)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("seed", range(3))
def test_integers_are_drawn_from_the_range_that_their_reader_accepts(name, seed):
    inputs, body, note = INTEGERS[name]
    debugger = nncdbg.Debugger(program(inputs, body), seed=seed)
    notes = [str(each) for each in debugger.notes if "%x" in str(each)]
    if note is None:
        assert "from" not in notes[0].replace("from seed", "")
    else:
        assert any(note in each for each in notes)
    assert debugger.run().reason == "end", debugger.stop


def test_the_whole_range_is_drawn():
    debugger = nncdbg.Debugger(program("%x: i64[1000]", "%y = Gather(%t, %x)"))
    assert set(debugger.inputs["x"].tolist()) == set(range(7))


def test_uniform_integers_are_in_the_range_and_given_ones_are_unchanged():
    made = program("%x: i64[50]", "%y = Gather(%t, %x, axis=1)")
    assert nncdbg.Debugger(made, {"x": "uniform"}).inputs["x"].max() < 3
    assert nncdbg.Debugger(made, {"x": "arange"}).inputs["x"].max() == 49


SIZES = {
    "constant_index": (
        "%x: f32[N,4]",
        "%a = Abs(%x)\n  %y = Gather(%a, [1])",
        {"N": 2},
        "N = 2, so that Gather line 7 fits",
    ),
    "negative_index": ("%x: f32[N,4]", "%y = Gather(%x, [-3])", {"N": 3}, "so that Gather line 6 fits"),
    "index_tuples": (
        "%x: f32[N,M,4]",
        "%y = GatherND(%x, [[2, 1]])",
        {"N": 3, "M": 3},
        "so that GatherND line 6 fits",
    ),
    "reshape": (
        "%x: f32[N,4]",
        "%y = Reshape(%x, [2,-1,16])",
        {"N": 8},
        "N = 8, so that Reshape line 6 fits",
    ),
    "matmul": ("%x: f32[B,K]", "%y = MatMul(%x, %t)", {"B": 1, "K": 7}, "K = 7, so that MatMul line 6 fits"),
    "concat": ("%x: f32[2,N]", "%y = Concat(%x, %t, axis=0)", {"N": 3}, "N = 3, so that Concat line 6 fits"),
    "one_fits": (
        "%x: f32[N,3]",
        "%y = Add(%x, %t)",
        {"N": 1},
        "size N of input %x f32[N,3] is not given, 1 is used",
    ),
    "sum_of_two": (
        "%x: f32[N,3], %z: f32[M,3]",
        "%c = Concat(%x, %z, axis=0)\n  %y = Reshape(%c, [3,3])",
        {"N": 2, "M": 1},
        "so that Reshape line 7 fits",
    ),
    "both": (
        "%x: f32[1,1,H,W]",
        "%p = MaxPool(%x, kernel_shape=[2,2], strides=[2,2])\n  %y = Reshape(%p, [7,7])",
        {"H": 14, "W": 14},
        "H = 14, so that",
    ),
    "window": (
        "%x: f32[1,1,L]",
        "%y = AveragePool(%x, kernel_shape=[5])",
        {"L": 5},
        "L = 5, so that AveragePool line 6 fits",
    ),
    "through_shape": (
        "%x: f32[N,2]",
        "%s = Shape(%x)\n  %n = Gather(%s, 0)\n  %m = Div(%n, 6)\n  %u = Unsqueeze(%m, [0])\n"
        "  %k = Concat([6], %u, [2], axis=0)\n  %y = Reshape(%x, %k)",
        {"N": 6},
        "N = 6, so that Reshape line 11 fits",
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_chosen_for_which_the_program_runs(name):
    inputs, body, expected, note = SIZES[name]
    debugger = nncdbg.Debugger(program(inputs, body))
    assert debugger.inputs.dims == expected
    assert any(note in str(each) for each in debugger.notes), list(map(str, debugger.notes))
    assert debugger.run().reason == "end"


def test_unnamed_unknown_sizes_are_chosen():
    debugger = nncdbg.Debugger(program("%x: f32[?,?]", "%y = MatMul(%x, %t)"))
    assert debugger.inputs["x"].shape == (1, 7)
    assert any("axis 1 = 7, so that MatMul line 6 fits" in str(note) for note in debugger.notes)


def test_given_sizes_and_inputs_are_respected():
    body = "%z2 = Reshape(%x, [2,-1,16])\n  %y = Concat(%x, %x, axis=0)"
    made = program("%x: f32[N,4]", body)
    assert nncdbg.Debugger(made, dims={"N": 16}).inputs.dims == {"N": 16}
    assert nncdbg.Debugger(made, {"x": np.zeros((24, 4), np.float32)}).inputs.dims == {"N": 24}


def test_without_a_fitting_size_the_size_is_one_and_the_run_fails():
    debugger = nncdbg.Debugger(program("%x: f32[N,4]", "%s = Reshape(%x, [3,5])\n  %y = MatMul(%s, %s)"))
    assert debugger.inputs.dims == {"N": 1}
    assert debugger.run().reason == "exception"


def test_a_program_that_is_invalid_for_all_sizes_is_refused():
    with pytest.raises(GraphError):
        nncdbg.Debugger(program("%x: f32[N,4]", "%y = MatMul(%t, %t)"))


def test_the_search_for_sizes_ends_for_recursive_functions():
    text = """#nncdbg 1
opset 18

graph @main(%x: f32[N,4], %i: i64[2]) -> (%y) {
  %y = @again(%x, %i)
  return %y
}

graph @again(%x, %i) -> (%y) {
  %y = @again(%x, %i)
  return %y
}
"""
    assert nncdbg.Debugger(nncdbg.parse(text)).inputs.dims == {"N": 1}


def test_the_choice_depends_on_the_program_only():
    inputs, body, expected, _ = SIZES["both"]
    runs = [nncdbg.Debugger(program(inputs, body), seed=seed).inputs.dims for seed in (0, 1)]
    assert runs == [expected, expected]


def test_the_trip_count_of_a_loop_and_lengths_of_sequences_are_small():
    from onnx import TensorProto, helper

    def info(name, shape, kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Neg", ["s"], ["s1"]), helper.make_node("Identity", ["c0"], ["c1"])],
        "body",
        [info("i", (), TensorProto.INT64), info("c0", (), TensorProto.BOOL), info("s", (2,))],
        [info("c1", (), TensorProto.BOOL), info("s1", (2,))],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["y"], body=body),
        helper.make_node("GRU", ["q", "w", "r", "", "lengths"], ["h"], hidden_size=2),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [
            info("n", (), TensorProto.INT64),
            info("x", (2,)),
            info("q", (5, 3, 4)),
            info("w", (1, 6, 4)),
            info("r", (1, 6, 2)),
            info("lengths", (3,), TensorProto.INT32),
        ],
        [info("y", (2,)), info("h", (5, 1, 3, 2))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    debugger = nncdbg.Debugger(nncdbg.load(model))
    notes = "\n".join(map(str, debugger.notes))
    assert "%n i64[] drawn at random from seed 0: integers in [1, 6), from Loop line" in notes
    assert "%lengths i32[3] drawn at random from seed 0: integers in [1, 6), from GRU line" in notes
    assert debugger.run().reason == "end"


def test_a_sequence_is_drawn_with_two_tensors():
    made = program("%x: seq(f32[2,3])", "%y = ConcatFromSequence(%x, axis=0)")
    debugger = nncdbg.Debugger(made)
    assert debugger.run().reason == "end"
    assert debugger.value("%y").shape == (4, 3)
