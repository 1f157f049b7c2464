"""The extension in a real VS Code: its extension host runs tests, and others go through the screen.

`make e2e-editor` installs what it needs, and runs this.  A theme is a file of `exthost/` or `screen/`;
`-k tensor` runs one.  NNCDBG_VSIX names another package than the one that `make vsix` has built.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.vscode.installed import FOLDER, ROOT, VSIX, end_of, missing

pytestmark = pytest.mark.editor

PICTURES = FOLDER / "pictures"

LISTENING = """\
import nncdbg

dbg = nncdbg.Debugger(nncdbg.load("first_steps.nnc"))
host, port = nncdbg.listen(("127.0.0.1", 0))
print(port, flush=True)
nncdbg.wait_for_client()
dbg.run()
print("the program has ended", flush=True)
"""


@pytest.fixture(scope="session", autouse=True)
def all_is_there() -> None:
    """Skips, with the reason, where something is missing."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


def themes(kind: str, suffix: str) -> list[str]:
    """The files with tests of one kind; a new one is found by being there."""
    return sorted(each.stem for each in (FOLDER / kind).glob(f"*{suffix}"))


THEMES = {"exthost": themes("exthost", ".js"), "screen": themes("screen", ".mjs")}

Results = dict[str, list[dict[str, Any]]]
"""Of each theme the tests that ran: `name`, `milliseconds`, and `error` where one failed."""


@pytest.fixture(scope="session")
def in_the_host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The chosen themes of `exthost/`, run in one editor."""
    return run("run_exthost.mjs", tmp_path_factory.mktemp("host"), chosen(request, "exthost"))


@pytest.fixture(scope="session")
def on_the_screen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The chosen themes of `screen/`, run in one editor."""
    return run("run_screen.mjs", tmp_path_factory.mktemp("screen"), chosen(request, "screen"))


def chosen(request: pytest.FixtureRequest, kind: str) -> list[str]:
    """The themes that the command line has left, by `-k` or by name."""
    ids = [each.name for each in request.session.items]
    return [each for each in THEMES[kind] if f"test_{kind}[{each}]" in ids]


@pytest.mark.parametrize("theme", THEMES["exthost"])
def test_exthost(theme: str, in_the_host: Results) -> None:
    judge(in_the_host[theme])


@pytest.mark.parametrize("theme", THEMES["screen"])
def test_screen(theme: str, on_the_screen: Results) -> None:
    judge(on_the_screen[theme])


def judge(found: list[dict[str, Any]]) -> None:
    for each in found:
        print("FAIL" if each.get("error") else "ok  ", each["milliseconds"], "ms", each["name"])
    failed = [f"{each['name']}: {each['error']}" for each in found if each.get("error")]
    assert not failed, "\n".join(failed)
    assert found


def make_workspace(base: Path) -> Path:
    """A folder with blanks and other letters in its name: the examples, and models with odd names."""
    folder = base / "graph größe ws"
    shutil.copytree(ROOT / "examples", folder)
    save(folder / "model.onnx", ["Relu", "Neg"])
    save(folder / "changed.bin", ["Relu", "Tanh"])
    save(folder / "logarithm.bin", ["Log", "Neg"])
    save(folder / "odd.onnx", ["Relu", "Neg"], 'say "hi"', "two\nlines שלום")
    (folder / "junk.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "broken.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
        "  %y: f32[2] = Relu(%nothing)\n  return %y\n}\n"
    )
    (folder / "listening.py").write_text(LISTENING)
    return folder


def save(path: Path, ops: list[str], first: str = "conv:0", second: str = "sum + 1") -> None:
    """x through two ops, and a sum, with names that have to be quoted."""
    nodes = [
        helper.make_node(ops[0], ["x"], [first], name="/layer/conv"),
        helper.make_node("Add", [first, first], [second]),
        helper.make_node(ops[1], [second], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "main", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def run(script: str, scratch: Path, themes: list[str]) -> Results:
    """What came of the tests of the themes."""
    result = scratch / "result.json"
    workspace = make_workspace(scratch)
    PICTURES.mkdir(exist_ok=True)
    plan = {
        "scratch": str(scratch),
        "workspace": str(workspace),
        "vsix": str(VSIX),
        "python": sys.executable,
        "result": str(result),
        "pictures": str(PICTURES),
        "themes": themes,
    }
    (scratch / "plan.json").write_text(json.dumps(plan))
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tests.json").write_text(json.dumps(plan))
    returned, said = end_of(FOLDER / script, scratch / "plan.json")
    part = result.with_name("result.json.part")
    seen = result if result.is_file() else part
    listed = json.loads(seen.read_text(encoding="utf-8")) if seen.is_file() else []
    assert returned == 0, said
    assert seen is result, f"not all tests came to an end: {listed}\n{said}"
    return {theme: [each for each in listed if each["theme"] == theme] for theme in themes}
