"""Stores of a text must be below its folder or in a folder that the user allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import nncdbg
from nncdbg.engine.frontends import attach_stores
from nncdbg.errors import LoadError
from nncdbg.terminal.main import main

TEXT = """#nncdbg 1
opset 18
store "{store}"

graph @main(%x: f32[64]) -> (%y: f32[64]) {{
  %w: f32[64] = data("w")
  %y: f32[64] = Add(%x, %w)
  return %y
}}
"""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The path of a model with a weight in the folder `models`, next to an empty folder `texts`."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in ("x", "y")]
    stored = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    graph = helper.make_graph([node], "main", value[:1], value[1:], [stored])
    path = tmp_path / "models" / "net.onnx"
    path.parent.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    (tmp_path / "texts").mkdir()
    return path


def write_text_file(weights: Path, store: str) -> Path:
    path = weights.parents[1] / "texts" / "net.nnc"
    path.write_text(TEXT.format(store=store), encoding="utf-8")
    return path


def test_a_store_below_the_text_is_read(weights: Path) -> None:
    path = weights.parents[1] / "net.nnc"
    path.write_text(TEXT.format(store="models/net.onnx"), encoding="utf-8")
    assert nncdbg.load(path).readers[0].read("w")[3] == 3


@pytest.mark.parametrize("kind", ["relative", "absolute", "link", "indirect"])
def test_a_store_outside_is_refused(kind: str, weights: Path) -> None:
    link = weights.parents[1] / "texts" / "link.onnx"
    link.symlink_to(weights)
    names = {
        "relative": "../models/net.onnx",
        "absolute": str(weights),
        "link": "link.onnx",
        "indirect": "../texts/../models/net.onnx",
    }
    with pytest.raises(LoadError, match="is outside the folder of the text") as caught:
        nncdbg.load(write_text_file(weights, names[kind]))
    assert f"--allow-store {weights.parent}" in str(caught.value)
    assert "allowStores" in str(caught.value)


@pytest.mark.parametrize("store", ["a\\0b.onnx", "x" * 5000 + ".onnx", ""])
def test_a_store_with_a_bad_name_is_an_error(store: str, weights: Path) -> None:
    with pytest.raises(LoadError):
        nncdbg.load(write_text_file(weights, store))


@pytest.mark.parametrize("store", ["../models/net.onnx", "link.onnx"])
def test_the_user_may_allow_a_folder(store: str, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weights.parents[1] / "texts" / "link.onnx").symlink_to(weights)
    path = write_text_file(weights, store)
    for allowed in (weights.parent, weights.parents[1]):
        assert nncdbg.load(path, stores=[allowed]).readers[0].read("w")[3] == 3
    with pytest.raises(LoadError, match="is outside"):
        nncdbg.load(path, stores=[weights.parents[1] / "texts"])
    assert main(["run", str(path), "--input", "x=zeros"]) == 3
    assert main(["run", str(path), "--input", "x=zeros", "--allow-store", str(weights.parent)]) == 0
    assert "--allow-store" in capsys.readouterr().err


def test_a_parsed_text_is_confined_to_the_given_folder(weights: Path) -> None:
    program = nncdbg.parse(TEXT.format(store="net.onnx"))
    assert attach_stores(program, weights.parent).readers[0].read("w")[3] == 3
    with pytest.raises(LoadError, match="is outside"):
        attach_stores(nncdbg.parse(TEXT.format(store=str(weights))), weights.parents[1] / "texts")
