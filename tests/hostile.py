"""A model in which every name attacks the terminal or page that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

ATTACK = "\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\u202egnp.\u2066"
"""Sets the title and clipboard, clears the screen, and has a C1 colour, DEL and right-to-left text."""

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def hostile(word: str) -> str:
    return f"{word}{ATTACK}"


def hostile_model(folder: Path) -> Path:
    """Save an f32 graph with a function, a branch and a NaN; all names and the file name are hostile."""
    x, y, weight, bad = map(hostile, ("x", "y", "weight", "bad"))
    size, domain = hostile("N"), hostile("domain")
    branch = [
        helper.make_graph(
            [helper.make_node("Identity", [bad], [hostile(f"out{side}")], hostile(f"node{side}"))],
            hostile(f"branch{side}"),
            [],
            [helper.make_tensor_value_info(hostile(f"out{side}"), TensorProto.FLOAT, None)],
        )
        for side in ("then", "else")
    ]
    called = helper.make_function(
        domain,
        hostile("Function"),
        [hostile("a")],
        [hostile("b")],
        [helper.make_node("Neg", [hostile("a")], [hostile("b")], hostile("inner"))],
        [helper.make_opsetid("", 18)],
    )
    nodes = [
        helper.make_node("Mul", [x, weight], [hostile("h")], hostile("/layer/Mul")),
        helper.make_node(
            hostile("Function"), [hostile("h")], [hostile("called")], hostile("call"), domain=domain
        ),
        helper.make_node("Sqrt", [hostile("called")], [bad], hostile("/layer/Sqrt")),
        helper.make_node("If", ["go"], [y], hostile("if"), then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Add", [y, weight], [hostile("last")], hostile("end")),
    ]
    nodes[0].doc_string = hostile("doc of a node")
    graph = helper.make_graph(
        nodes,
        hostile("graph"),
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info(hostile("last"), TensorProto.FLOAT, [size])],
        [
            helper.make_tensor(weight, TensorProto.FLOAT, [1], [2.0]),
            helper.make_tensor("go", TensorProto.BOOL, [], [True]),
        ],
        hostile("doc"),
    )
    made = helper.make_model(
        graph,
        functions=[called],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)],
        producer_name=hostile("producer"),
        doc_string=hostile("doc"),
    )
    made.ir_version = 9
    helper.set_model_props(made, {hostile("key"): hostile("value")})
    path = folder / f"model{ATTACK}.onnx".replace("/", "")
    path.write_bytes(made.SerializeToString())
    np.save(folder / "x.npy", np.ones(3, np.float32))
    return path
