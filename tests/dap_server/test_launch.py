"""Launch configurations: keys, and errors for invalid values."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.dap_server.client import Client
from tests.models.colour_classifier import picture, save_classifier

TWICE = """#nncdbg 1

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a: f32[2] = com.example.Twice(%x)
  %y: f32[2] = com.example.Twice(%a)
  return %y
}
"""

LIBRARY = '''
import nncdbg

@nncdbg.op("com.example.Twice")
def twice(xp, x):
    """x and x again."""
    return x + x
'''

PROGRAM = """#nncdbg 1

graph @main(%x: f32[N,2], %k: i64[]) -> (%y: f32[N,2]) {
  %r: f32[N,2] = Relu(%x)
  %y: f32[N,2] = Softmax(%r)
  return %y
}
"""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"program": "none.nnc"}, "there is no file"),
    ({"program": "x" * 300}, "there is no file"),
    ({"program": ""}, "is a folder"),
    ({"program": "."}, "is a folder"),
    ({"program": "~nobody-at-all/g.nnc"}, "is not a path"),
    ({"program": "plain.txt"}, "plain.txt"),
    ({"program": 3}, "arguments.program"),
    ({"program": None}, "arguments.program"),
    ({"inputs": ["x"]}, "arguments.inputs"),
    ({"inputs": {"q": "zeros"}}, 'has no input "q"'),
    ({"inputs": {"x": "none.npy"}}, "none.npy"),
    ({"inputs": {"x": "x" * 300 + ".npy"}}, "x.npy"),
    ({"inputs": {"x": "zeroes"}}, "did you mean zeros?"),
    ({"inputs": {"x": "text.npy"}}, "text.npy"),
    ({"inputs": {"x": "flat.npy"}}, "needs 2 axes, not 1"),
    ({"inputs": {"x": "double.npy"}}, "it needs f32, not f64"),
    ({"inputs": {"x": "none.png:/255"}}, "none.png"),
    ({"inputs": {"x": "text.png:/255"}}, "is not an image"),
    ({"inputs": {"x": "grey.png"}}, "the scale from 0..255 to f32 is missing"),
    ({"inputs": {"x": "grey.png:/25x"}}, '"/25x" is not a valid step'),
    ({"dims": {"M": 3}}, 'has the size "M"'),
    ({"dims": {"N": -1}}, "invalid size N=-1"),
    ({"dims": {"N": "3"}}, "arguments.dims"),
    ({"seed": 1.5}, "arguments.seed"),
    ({"stopOnEntry": "yes"}, "arguments.stopOnEntry"),
    ({"backend": "abacus"}, "unknown backend 'abacus'"),
    ({"allocator": "heap"}, "heap"),
    ({"history": "plenty"}, "'plenty' is not a size"),
    ({"history": [1]}, "arguments.history"),
    ({"check": "all"}, "unknown check 'all'"),
    ({"seed": -1}, "invalid seed -1"),
    ({"maxOps": 0}, "max_ops cannot be 0"),
    ({"opLibrary": ["none.py"]}, "does not exist"),
    ({"opLibrary": ["raises.py"]}, "ZeroDivisionError"),
    ({"cwd": "nowhere"}, "there is no folder"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "graph.nnc").write_text(PROGRAM)
    (tmp_path / "plain.txt").write_text("no graph")
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.png").write_text("no image")
    Image.new("L", (2, 3), 51).save(tmp_path / "grey.png")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    np.save(tmp_path / "x.npy", np.ones((3, 2), "f4"))
    np.save(tmp_path / "flat.npy", np.ones(2, "f4"))
    np.save(tmp_path / "double.npy", np.ones((3, 2)))
    return tmp_path


def test_each_invalid_value_is_reported_and_the_next_launch_works(client: Client, folder: Path) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    for wrong, expected in WRONG:
        response = client.expect_response(client.send("launch", {"program": "graph.nnc", **wrong}))
        assert not response["success"], wrong
        error = response["body"]["error"]
        assert expected in error["variables"]["text"] + response["message"], (wrong, response)
        assert error["showUser"], wrong
        assert "Traceback" not in response["message"]
    client.request("launch", {"program": "graph.nnc", "stopOnEntry": True, "aKeyOfTheClient": 1})
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        ({"inputs": {"x": "nothing"}}, 2003),
        ({"inputs": {"x": "normal[1]"}}, 2003),
        ({"inputs": {"x": "flat.npy"}}, 2003),
        ({"inputs": {"x": "grey.png"}}, 2003),
        ({"inputs": {"y": 1}}, 2003),
        ({"dims": {"Z": 4}}, 2003),
        ({"backend": "abacus"}, 2000),
    ],
)
def test_an_invalid_input_or_size_has_its_own_error_number(
    client: Client, folder: Path, wrong: dict[str, Any], number: int
) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    response = client.expect_response(client.send("launch", {"program": "graph.nnc", **wrong}))
    assert response["body"]["error"]["id"] == number


def test_an_input_without_a_shape_must_be_given(client: Client, tmp_path: Path) -> None:
    (tmp_path / "free.nnc").write_text(
        "#nncdbg 1\nopset 18\ngraph @main(%x) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n"
    )
    client.request("initialize", {"adapterID": "nncdbg"})
    response = client.expect_response(client.send("launch", {"program": str(tmp_path / "free.nnc")}))
    assert response["body"]["error"]["id"] == 2003
    client.request("launch", {"program": str(tmp_path / "free.nnc"), "inputs": {"x": "normal[2,3]"}})


def test_of_many_errors_the_first_are_reported(client: Client, tmp_path: Path) -> None:
    statements = "".join(f"  %v{number} = Neg(%none{number})\n" for number in range(1000))
    (tmp_path / "wrong.nnc").write_text(
        f"#nncdbg 1\ngraph @main(%x: f32[4]) -> (%v0) {{\n{statements}  return %v0\n}}\n"
    )
    client.request("initialize", {"adapterID": "nncdbg"})
    response = client.expect_response(client.send("launch", {"program": str(tmp_path / "wrong.nnc")}))
    text = response["body"]["error"]["variables"]["text"]
    assert text.startswith("1000 errors in ")
    assert text.endswith("\nand 997 more")
    assert [number for number in range(1000) if f"%none{number} is not defined" in text] == [0, 1, 2]


def test_every_key_of_a_configuration_is_accepted(client: Client, folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    client.start(
        "../graph.nnc",
        cwd=str(below),
        inputs={"x": "../x.npy", "%k": 4},
        dims={"N": 3},
        seed=7,
        backend="numpy",
        allocator="arena",
        history="100MB",
        flat=True,
        maxOps=50,
    )
    assert client.evaluate("%k").endswith(" 4")
    assert client.evaluate("sum(%x)") == "6.0"
    client.none_of("output")


def test_randomly_drawn_inputs_are_reported(client: Client, folder: Path) -> None:
    client.start("graph.nnc", inputs={"k": 1})
    reported = client.expect_event("output", category="console")["output"]
    assert "size N of input %x" in reported
    assert reported.endswith('1 is used (set "dims": {"N": 4})\n')
    reported = client.expect_event("output", category="console")["output"]
    assert reported.endswith('drawn at random from seed 0 (set "inputs": {"x": "x.npy"})\n')


def test_an_image_is_an_input_and_its_conversion_is_reported(client: Client, folder: Path) -> None:
    client.start("graph.nnc", inputs={"x": "grey.png:/255", "k": 1})
    assert client.evaluate("max(abs(%x - 0.2)) < 1e-7") == "true"
    note = client.expect_event("output", category="console")["output"]
    assert note == "input %x: grey.png, 2x3 gray, /255, HW\n"
    client.request("next", {"threadId": 1})
    client.expect_stop("step")
    client.request("setExpression", {"expression": "%r", "value": "grey.png:/127.5-1"})
    assert (
        client.expect_event("output", category="console")["output"]
        == "%r: grey.png, 2x3 gray, /127.5-1, HW\n"
    )
    assert client.evaluate("max(abs(%r + 0.6)) < 1e-6") == "true"


def test_a_classifier_runs_on_a_picture(client: Client, tmp_path: Path) -> None:
    spec = f"{picture(tmp_path, 'green')}:imagenet,resize"
    client.start(str(save_classifier(tmp_path)), inputs={"image": spec})
    note = client.expect_event("output", category="console")["output"]
    assert note == "input %image: green.png, 64x48 RGB, resized to 16x16, imagenet, NCHW\n"
    for _ in range(3):
        client.request("next", {"threadId": 1})
        client.expect_stop("step")
    assert client.evaluate("argmax(%logits)") == "1"


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_a_fallback_to_numpy_is_reported_once_per_op(client: Client, tmp_path: Path) -> None:
    (tmp_path / "twice.nnc").write_text(TWICE)
    (tmp_path / "twice.py").write_text(LIBRARY)
    client.launch("twice.nnc", backend="onnxruntime", fallback=True, opLibrary=["twice.py"])
    client.request("configurationDone")
    client.expect_event("exited", exitCode=0)
    reported = [each["body"]["output"] for each in client.messages if each.get("event") == "output"]
    fallbacks = [text for text in reported if "runs on numpy" in text]
    assert len(fallbacks) == 1, reported
    assert fallbacks[0].startswith("com.example.Twice has no kernel on onnxruntime")


def test_a_repro_bundle_stops_at_its_finding(client: Client, tmp_path: Path) -> None:
    import nncdbg
    from nncdbg.nan_watch.configuration import WatchConfiguration
    from nncdbg.nan_watch.reduction.finding_identity import found_first
    from nncdbg.nan_watch.reduction.reducing import bundle_finding

    program = nncdbg.parse(
        "#nncdbg 1\ngraph @main(%x: f32[2]) -> (%y) {\n  %a = Neg(%x)\n  %y = Log(%a)\n  return %y\n}\n"
    )
    inputs, settings = {"x": np.ones(2, np.float32)}, WatchConfiguration(seed=3)
    finding = found_first(program, inputs, settings)
    bundle_finding(tmp_path / "repro", program, inputs, finding, settings)
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("launch", {"program": str(tmp_path / "repro")})
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("goto")
    frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]
    assert frame["source"]["path"].endswith("repro/program.nnc")
    text = (tmp_path / "repro" / "program.nnc").read_text().splitlines()
    assert "Log(%a)" in text[frame["line"] - 1]
    assert client.evaluate("max(%a)") == "-1.0"


def test_a_program_folder_stops_on_entry_with_its_inputs(client: Client, tmp_path: Path) -> None:
    import nncdbg
    from nncdbg.opening.folder_writing import write_folder

    program = nncdbg.parse(
        "#nncdbg 1\ngraph @main(%x: f32[2]) -> (%y) {\n  %a = Neg(%x)\n  %y = Log(%a)\n  return %y\n}\n"
    )
    inputs = {"x": np.full(2, -3, np.float32)}
    write_folder(tmp_path / "step7", program, inputs, title="recorded step 7", notes=["batch 7"])
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("launch", {"program": str(tmp_path / "step7"), "stopOnEntry": True})
    for line in ("recorded step 7", "batch 7"):
        assert client.expect_event("output")["output"].strip() == line
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")
    frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]
    assert frame["source"]["path"].endswith("step7/program.nnc")
    assert client.evaluate("max(%x)") == "-3.0"
    client.request(
        "setBreakpoints", {"source": frame["source"], "breakpoints": [{"line": frame["line"] + 1}]}
    )
    client.request("continue", {"threadId": 1})
    client.expect_stop("breakpoint")
    assert client.evaluate("max(%a)") == "3.0"


def test_a_damaged_bundle_is_reported(client: Client, tmp_path: Path) -> None:
    (tmp_path / "nncdbg.json").write_text("{")
    client.request("initialize", {"adapterID": "nncdbg"})
    response = client.expect_response(client.send("launch", {"program": str(tmp_path)}))
    assert "nncdbg.json is damaged" in response["body"]["error"]["variables"]["text"]
