"""Loading a listing of a model loads that model; stores in other folders need permission."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import nncdbg
from nncdbg.dap_server.sources.listing_file import write_listing
from nncdbg.errors import LoadError
from tests.engine.frontends.onnx_models import info, model


@pytest.fixture
def made(tmp_path):
    weight = numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(4, 6), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/enc/mm"),
        helper.make_node("Relu", ["h"], ["y"], name="/enc/relu"),
    ]
    path = tmp_path / "models" / "m.onnx"
    path.parent.mkdir()
    onnx.save(model(nodes, [info("x", (2, 4))], [info("y", (2, 6))], initializer=[weight]), path)
    return path


@pytest.mark.parametrize("flat", [False, True])
def test_a_listing_is_opened_as_its_model(made, tmp_path, flat):
    program = nncdbg.load(made, flat=flat)
    file, _ = write_listing(made, nncdbg.Debugger(program).loaded.listing, tmp_path)
    opened = nncdbg.load(file)
    assert opened == program
    assert opened.source == str(tmp_path / "models" / "m.onnx")
    debugger = nncdbg.Debugger(opened, {"x": "ones"})
    assert debugger.run().reason == "end"
    assert debugger.loaded.listing.lines == tuple(file.read_text().splitlines()[:-1])


def test_an_edited_listing_loads_the_unedited_model(made, tmp_path):
    file, _ = write_listing(made, nncdbg.Debugger(nncdbg.load(made)).loaded.listing, tmp_path)
    file.write_text(file.read_text().replace("Relu", "Neg"))
    assert "Relu" in str(nncdbg.load(file))


def test_a_missing_model_of_a_listing_is_named(made, tmp_path):
    file, _ = write_listing(made, nncdbg.Debugger(nncdbg.load(made)).loaded.listing, tmp_path)
    made.unlink()
    with pytest.raises(LoadError, match=r"is the listing of models/m\.onnx, but"):
        nncdbg.load(file)


def test_a_listing_of_a_model_outside_its_workspace_needs_permission(made, tmp_path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    file, _ = write_listing(made, nncdbg.Debugger(nncdbg.load(made)).loaded.listing, workspace)
    with pytest.raises(LoadError, match="is outside the folder of the text"):
        nncdbg.load(file)
    assert nncdbg.load(file, stores=[made.parent]) == nncdbg.load(made)


def test_a_copied_listing_is_loaded_as_text(made, tmp_path):
    file, _ = write_listing(made, nncdbg.Debugger(nncdbg.load(made)).loaded.listing, tmp_path)
    copy = made.with_name("copy.nnc")
    copy.write_text(file.read_text())
    assert nncdbg.load(copy).listing is not None


def test_an_absolute_store_below_the_folder_of_the_text_is_opened(made):
    text = str(nncdbg.load(made)).replace('store "m.onnx"', f'store "{made}"')
    file = made.with_name("g.nnc")
    file.write_text(text)
    debugger = nncdbg.Debugger(nncdbg.load(file), {"x": "ones"})
    assert debugger.run().reason == "end"
