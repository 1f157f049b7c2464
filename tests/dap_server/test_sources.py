"""Source texts, definitions of values, and modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nncdbg
from nncdbg.dap_server.sources.listing_file import write_listing
from nncdbg.text.listing import Listing
from tests.dap_server.client import Client, stdio_client
from tests.dap_server.test_moving import FIRST_STEPS, line


def model(path: Path, ops: list[str]) -> Path:
    """Save an ONNX model: a chain of ops on x."""
    names = ["x", *(f"v{number}" for number in range(1, len(ops))), "y"]
    nodes = [helper.make_node(op, [names[at]], [names[at + 1]]) for at, op in enumerate(ops)]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "main", tensors[:1], tensors[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.parent.mkdir(exist_ok=True)
    onnx.save(made, path)
    return path


def text_of(client: Client) -> str:
    source = client.top_frame()["source"]
    reference = source.get("sourceReference", 0)
    body = client.request("source", {"source": source, "sourceReference": reference})
    assert body["mimeType"] == "text/x-nnc"
    content: str = body["content"]
    return content


def test_the_text_of_the_program_and_of_micro_programs(client: Client, tmp_path: Path) -> None:
    client.start(FIRST_STEPS)
    assert text_of(client) == FIRST_STEPS.read_text(encoding="utf-8")
    assert client.request("loadedSources")["sources"] == [
        {"name": "first_steps.nnc", "path": str(FIRST_STEPS)}
    ]
    client.expect_event("loadedSource", reason="new")
    for _ in range(2):
        client.move("next")
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    client.expect_event("loadedSource", reason="new", source=client.top_frame()["source"])
    assert "ReduceMax" in text_of(client)
    micro = client.request("loadedSources")["sources"][1]
    assert micro["name"] == "Softmax.nnc"
    client.move("stepOut")
    for wrong in (
        {"sourceReference": 99},
        {"sourceReference": -1},
        {"sourceReference": 0, "source": {"path": str(tmp_path / "other.nnc")}},
        {"sourceReference": 0, "source": {"name": "main"}},
        {"sourceReference": 0, "source": {}},
    ):
        assert "not part of this program" in client.refused("source", wrong)
    old = client.request("source", {"sourceReference": micro["sourceReference"]})["content"]
    assert "Softmax" in old


def test_a_micro_program_has_one_source_reference(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "twice.nnc"
    path.write_text(
        "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
        "  %a: f32[2] = Softmax(%x)\n  %y: f32[2] = Softmax(%a)\n  return %y\n}\n",
        encoding="utf-8",
    )
    client.start(path)
    client.move("stepIn", granularity="instruction")
    first = client.top_frame()["source"]
    client.move("stepOut")
    client.move("stepIn", granularity="instruction")
    assert client.top_frame()["source"] == first
    assert len(client.request("loadedSources")["sources"]) == 2


def test_the_listing_of_a_model_has_a_stable_file(tmp_path: Path) -> None:
    path = model(tmp_path / "relu.onnx", ["Relu", "Neg"])
    file = tmp_path / ".nncdbg" / "relu.nnc"
    with stdio_client(cwd=tmp_path) as client:
        client.start(path)
        assert client.top_frame()["source"] == {"name": "relu.nnc", "path": str(file)}
        assert file.read_text(encoding="utf-8").startswith(text_of(client))
    before = file.stat()
    assert str(nncdbg.load(str(file))) == str(nncdbg.load(str(path)))
    wanted = next(
        n for n, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if "Neg" in text
    )
    with stdio_client(cwd=tmp_path) as client:
        client.launch(path, initialize={"pathFormat": "uri"})
        arguments = {"source": {"path": file.as_uri()}, "breakpoints": [{"line": wanted}]}
        (bound,) = client.request("setBreakpoints", arguments)["breakpoints"]
        assert (bound["verified"], bound["line"]) == (True, wanted)
        client.request("configurationDone")
        client.expect_stop("breakpoint")
        assert line(client) == wanted
        assert client.top_frame()["source"]["path"] == file.as_uri()
    assert file.stat() == before


def test_two_models_of_the_same_name_have_two_files(tmp_path: Path) -> None:
    paths = [model(tmp_path / folder / "net.onnx", [op]) for folder, op in (("a", "Relu"), ("b", "Neg"))]
    listings = [
        nncdbg.Debugger(nncdbg.load(str(path)), {"x": np.ones(2, np.float32)}).loaded.listing
        for path in paths
    ]
    first, no_note = write_listing(paths[0], listings[0], tmp_path)
    second, note = write_listing(paths[1], listings[1], tmp_path)
    assert first == tmp_path / ".nncdbg" / "net.nnc"
    assert no_note is None
    assert second.name.startswith("net-")
    assert note == f"{first} shows a/net.onnx; the listing of b/net.onnx is in {second}"
    for _ in range(2):
        assert write_listing(paths[0], listings[0], tmp_path)[0] == first
        assert write_listing(paths[1], listings[1], tmp_path)[0] == second
    assert "Relu" in first.read_text(encoding="utf-8")
    assert "Neg" in second.read_text(encoding="utf-8")
    assert {each.name for each in first.parent.iterdir()} == {first.name, second.name, ".gitignore"}
    paths[0].unlink()  # its listing has no model now
    assert write_listing(paths[1], listings[1], tmp_path) == (first, None)


@pytest.fixture
def shown(tmp_path: Path) -> tuple[Path, Listing]:
    """A model and its listing."""
    path = model(tmp_path / "net.onnx", ["Relu"])
    return path, nncdbg.Debugger(nncdbg.load(str(path)), {"x": np.ones(2, np.float32)}).loaded.listing


def test_git_ignores_the_folder_of_listings(shown: tuple[Path, Listing], tmp_path: Path) -> None:
    write_listing(*shown, tmp_path)
    ignore = tmp_path / ".nncdbg" / ".gitignore"
    assert ignore.read_text() == "*\n"
    ignore.write_text("mine\n")
    write_listing(*shown, tmp_path)
    assert ignore.read_text() == "mine\n"


def test_other_files_are_not_overwritten(shown: tuple[Path, Listing], tmp_path: Path) -> None:
    folder = tmp_path / ".nncdbg"
    folder.mkdir()
    (folder / "net.nnc").write_text("notes of mine\n")
    file, note = write_listing(*shown, tmp_path)
    assert (folder / "net.nnc").read_text() == "notes of mine\n"
    assert file.name.startswith("net-")
    assert note == f"{folder}/net.nnc is not a listing; the listing of net.onnx is in {file}"
    file.unlink()
    (tmp_path / "precious").write_text("precious")
    file.symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError, match="is not a listing"):
        write_listing(*shown, tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_of_listings_that_is_a_link_is_not_followed(
    shown: tuple[Path, Listing], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".nncdbg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        write_listing(*shown, tmp_path)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_a_listing_without_a_file_has_a_source_reference(client: Client, tmp_path: Path) -> None:
    path = model(tmp_path / "relu.onnx", ["Relu", "Neg"])
    (tmp_path / ".nncdbg").write_text("in the way", encoding="utf-8")
    client.start(path)
    event = client.wait_for(
        lambda m: m.get("event") == "output" and "cannot write the listing" in m["body"]["output"]
    )
    assert "the listing has no file" in event["body"]["output"]
    source = client.top_frame()["source"]
    assert source["name"] == "relu.nnc"
    assert "path" not in source
    assert "Relu" in text_of(client)
    found = client.request("gotoTargets", {"source": source, "line": line(client) + 1})["targets"]
    assert "Neg" in found[0]["label"]


def test_modules_are_graphs_stores_and_libraries(client: Client) -> None:
    client.start(FIRST_STEPS)
    body = client.request("modules", {})
    assert client.request("modules") == body, "all arguments are optional"
    by_id = {each["id"]: each for each in body["modules"]}
    assert len(by_id) == body["totalModules"] == len(body["modules"])
    main, layer = by_id["graph:main"], by_id["graph:layer"]
    assert (main["name"], main["nncdbgKind"], main["symbolStatus"]) == ("@main", "entry graph", "compiled")
    assert (layer["nncdbgStatements"], layer["symbolStatus"]) == (4, "not entered yet")
    assert by_id["library:numpy"]["version"] == np.__version__
    assert by_id["library:numpy"]["nncdbgKind"] == "backend"
    assert by_id["library:nncdbg"]["version"]
    columns = client.messages[0]["body"]["additionalModuleColumns"]
    assert all(column["attributeName"] in main for column in columns)
    pages = [
        client.request("modules", {"startModule": start, "moduleCount": 2})["modules"]
        for start in range(0, body["totalModules"] + 2, 2)
    ]
    assert [each for page in pages for each in page] == body["modules"]
    assert pages[-1] == []
    assert client.request("modules", {"startModule": 1, "moduleCount": 0})["modules"] == body["modules"][1:]
    assert "0 or more" in client.refused("modules", {"startModule": -1})
    for each in body["modules"]:
        client.expect_event("module", reason="new", module=each)
    client.move("stepIn")
    entered = client.expect_event("module", reason="changed")["module"]
    assert entered == {**layer, "symbolStatus": "compiled"}
    client.move("stepIn", granularity="instruction")
    assert client.expect_event("module", reason="new")["module"]["name"] == "micro program ReduceMean.nnc"
    client.none_of("module")


def test_a_store_is_a_module_and_the_model_a_source(client: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "unused.npy", np.ones(2))
    (tmp_path / "net.py").write_text("h = x.relu()\n", encoding="utf-8")
    path = tmp_path / "net.nnc"
    path.write_text(
        "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
        '  %h: f32[2] = Relu(%x)  loc("net.py":1)\n'
        '  %y: f32[2] = Neg(%h)  loc("gone.py":7)\n'
        "  return %y\n}\n",
        encoding="utf-8",
    )
    client.start(path)
    sources = client.request("loadedSources")["sources"]
    assert [each["path"] for each in sources] == [str(path), str(tmp_path / "net.py")]
    assert sources[1]["presentationHint"] == "deemphasize"
    client.move("next")
    assert located(client, "h") == [(str(path), 2), (str(tmp_path / "net.py"), 1)]
    client.move("next")
    assert located(client, "y") == [(str(path), 3)]
    assert located(client, "x") == [(str(path), 1)]
    assert "unknown or expired location" in client.refused("locations", {"locationReference": 424242})


def located(client: Client, name: str) -> list[tuple[str, int]]:
    """Return (path, line) of each definition of a value: in the program, and in the model's source."""
    frame = client.top_frame()
    for scope in client.request("scopes", {"frameId": frame["id"]})["scopes"]:
        listed = client.request("variables", {"variablesReference": scope["variablesReference"]})["variables"]
        for each in listed:
            if each["name"].lstrip("%") == name and "declarationLocationReference" in each:
                keys = ("declarationLocationReference", "valueLocationReference")
                found = [
                    client.request("locations", {"locationReference": each[key]})
                    for key in keys
                    if key in each
                ]
                return [(place["source"]["path"], place["line"]) for place in found]
    raise AssertionError(f"{name} is in no scope")


def test_values_of_blocks_are_found_where_they_are_defined(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.request("setBreakpoints", {"source": {"path": str(FIRST_STEPS)}, "breakpoints": [{"line": 18}]})
    client.move("continue", "breakpoint")
    wanted = {"s": 12, "i": 12, "p": 13, "s.1": 17, "limit": 8}
    assert {name: located(client, name)[0][1] for name in wanted} == wanted


def test_a_listing_is_launched_as_its_model_and_its_breakpoints_bind(client: Client, tmp_path: Path) -> None:
    path = model(tmp_path / "models" / "chain.onnx", ["Relu", "Neg", "Abs"])
    file, _ = write_listing(path, nncdbg.Debugger(nncdbg.load(path)).loaded.listing, tmp_path)
    text = file.read_text(encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    client.launch(file, cwd=str(elsewhere))
    wanted = next(number for number, each in enumerate(text.splitlines(), 1) if "= Neg(" in each)
    arguments = {"source": {"path": str(file)}, "breakpoints": [{"line": wanted}]}
    (bound,) = client.request("setBreakpoints", arguments)["breakpoints"]
    assert (bound["verified"], bound["line"]) == (True, wanted)
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    frame = client.top_frame()
    assert (frame["source"]["path"], frame["line"]) == (str(file), wanted)
    assert file.read_text(encoding="utf-8") == text
    assert not (elsewhere / ".nncdbg").exists()
