"""The extension in a real VS Code: its extension host runs tests, and others go through the screen.

`make e2e-editor` installs what it needs, and runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

pytestmark = pytest.mark.editor

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
EXTENSION = ROOT / "vscode-extension"
VSIX = ROOT / "dist" / "nncdbg.vsix"
INSTALLED = Path(os.environ.get("NNCDBG_EDITOR") or FOLDER)
PICTURES = FOLDER / "pictures"

LISTENING = """\
import nncdbg

dbg = nncdbg.Debugger(nncdbg.load("first_steps.nnc"))
host, port = nncdbg.listen(("127.0.0.1", 0))
print(port, flush=True)
nncdbg.wait_for_client()
dbg.run()
"""


@pytest.fixture(scope="module")
def node() -> str:
    """Node.js, where all that these tests need is there."""
    for command in ("node", "rg"):
        if shutil.which(command) is None:
            pytest.skip(f"there is no {command} on the path")
    if chromium() is None:
        pytest.skip("there is no chromium on the path")
    if not (INSTALLED / "node_modules" / "code-server").is_dir():
        pytest.skip(
            f"there is no code-server in {INSTALLED.name}/node_modules; `make e2e-editor` installs it"
        )
    if not VSIX.is_file() or not (EXTENSION / "out" / "extension.js").is_file():
        pytest.skip("the extension is not built; `make vsix` builds it")
    return str(shutil.which("node"))


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with blanks and other letters in its name: the examples, and models with odd names."""
    folder = tmp_path / "graph größe ws"
    shutil.copytree(ROOT / "examples", folder)
    save(folder / "model.onnx", ["Relu", "Neg"])
    save(folder / "changed.bin", ["Relu", "Tanh"])
    (folder / "junk.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "broken.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
        "  %y: f32[2] = Relu(%nothing)\n  return %y\n}\n"
    )
    (folder / "listening.py").write_text(LISTENING)
    return folder


def save(path: Path, ops: list[str]) -> None:
    """x through two ops, and a sum, with names that have to be quoted."""
    nodes = [
        helper.make_node(ops[0], ["x"], ["conv:0"], name="/layer/conv"),
        helper.make_node("Add", ["conv:0", "conv:0"], ["sum + 1"]),
        helper.make_node(ops[1], ["sum + 1"], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "main", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def run(node: str, script: str, tmp_path: Path, workspace: Path, limit: float) -> dict[str, str | None]:
    """The error, or None, of each test that a script has run."""
    result = tmp_path / "result.json"
    PICTURES.mkdir(exist_ok=True)
    plan = {
        "scratch": str(tmp_path),
        "workspace": str(workspace),
        "extension": str(EXTENSION),
        "vsix": str(VSIX),
        "python": sys.executable,
        "result": str(result),
        "pictures": str(PICTURES),
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tests.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [node, str(FOLDER / script), str(tmp_path / "plan.json")],
        env={**os.environ, "NNCDBG_CHROMIUM": str(chromium())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    part = result.with_name("result.json.part")
    listed: list[dict[str, Any]] = []
    for file in filter(Path.exists, (result, part)):
        listed = json.loads(file.read_text(encoding="utf-8"))
    for each in listed:
        print("FAIL" if each.get("error") else "ok  ", each["milliseconds"], "ms", each["name"])
    assert result.is_file(), f"the tests did not come to their end:\n{done.stdout}"
    assert done.returncode == 0, done.stdout
    return {each["name"]: each.get("error") for each in listed}


def failures(found: dict[str, str | None]) -> str:
    return "\n".join(f"{name}: {error}" for name, error in found.items() if error is not None)


def test_in_the_extension_host(node: str, tmp_path: Path, workspace: Path) -> None:
    found = run(node, "run_exthost.mjs", tmp_path, workspace, 360)
    assert not failures(found), failures(found)
    assert len(found) >= 23


def test_through_the_screen(node: str, tmp_path: Path, workspace: Path) -> None:
    found = run(node, "run_screen.mjs", tmp_path, workspace, 480)
    assert not failures(found), failures(found)
    assert len(found) >= 8
