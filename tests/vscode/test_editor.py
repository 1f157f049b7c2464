"""The extension in VS Code: tests in its extension host, and tests on the screen.

`make e2e-editor` installs the requirements and runs this.  A theme is a file of `exthost/` or `screen/`;
`-k tensor` runs one.  NNCDBG_VSIX is the package to test (default: the one that `make vsix` builds).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.vscode.installed import FOLDER, LIMIT, ROOT, VSIX, command, environment, missing

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


def themes(kind: str, suffix: str) -> list[str]:
    """Return the names of the test files of one kind."""
    return sorted(each.stem for each in (FOLDER / kind).glob(f"*{suffix}"))


class Editor:
    """A VS Code that runs themes one after the other."""

    def __init__(self, scratch: Path) -> None:
        PICTURES.mkdir(exist_ok=True)
        self._scratch = scratch
        self._errors = scratch / "errors.txt"
        plan = {
            "scratch": str(scratch),
            "workspace": str(make_workspace(scratch)),
            "vsix": str(VSIX),
            "python": sys.executable,
            "pictures": str(PICTURES),
        }
        (scratch / "plan.json").write_text(json.dumps(plan))
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command(FOLDER / "run_themes.mjs", scratch / "plan.json"),
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, theme: str) -> None:
        """Run the tests of a theme, such as `screen/tensor`; each must pass."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        result = self._scratch / f"{theme.replace('/', '-')}.json"
        self._process.stdin.write(json.dumps({"theme": theme, "result": str(result)}) + "\n")
        self._process.stdin.flush()
        limit = threading.Timer(LIMIT, self._process.terminate)
        limit.start()
        done = self._process.stdout.readline().strip()
        limit.cancel()
        seen = result if result.is_file() else result.with_name(f"{result.name}.part")
        tests = json.loads(seen.read_text(encoding="utf-8")) if seen.is_file() else []
        for each in tests:
            print("FAIL" if each.get("error") else "ok  ", each["milliseconds"], "ms", each["name"])
        print(self._errors.read_text(encoding="utf-8"))
        assert done == theme, "the editor has ended"
        assert tests
        assert seen is result, "not all tests have ended"
        failed = [f"{each['name']}: {each['error']}" for each in tests if each.get("error")]
        assert not failed, "\n".join(failed)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(30)


@pytest.fixture(scope="session")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """The editor of this pytest process, or a skip if a requirement is missing."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    opened = Editor(tmp_path_factory.mktemp("editor"))
    yield opened
    opened.close()


@pytest.mark.parametrize("theme", themes("exthost", ".js"))
def test_exthost_theme_passes(theme: str, editor: Editor) -> None:
    editor.run(f"exthost/{theme}")


@pytest.mark.parametrize("theme", themes("screen", ".mjs"))
def test_screen_theme_passes(theme: str, editor: Editor) -> None:
    editor.run(f"screen/{theme}")


def make_workspace(base: Path) -> Path:
    """Make a workspace, with spaces and umlauts in its name: the examples, and models with unusual names."""
    folder = base / "graph größe ws"
    shutil.copytree(ROOT / "examples", folder)
    (folder / ".vscode").mkdir()
    save(folder / "model.onnx", ["Relu", "Neg"])
    save(folder / "changed.bin", ["Relu", "Tanh"])
    save(folder / "logarithm.bin", ["Log", "Neg"])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [64], bytes(256), raw=True)
    save(folder / "weights.onnx", ["Relu", "Neg"], initializer=weights)
    save(folder / "odd.onnx", ["Relu", "Neg"], 'say "hi"', "two\nlines שלום")
    (folder / "junk.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "broken.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
        "  %y: f32[2] = Relu(%nothing)\n  return %y\n}\n"
    )
    (folder / "listening.py").write_text(LISTENING)
    return folder


def save(
    path: Path,
    ops: list[str],
    first: str = "conv:0",
    second: str = "sum + 1",
    initializer: TensorProto | None = None,
) -> None:
    """Save a model of two ops and a sum, with value names that need quotes."""
    nodes = [
        helper.make_node(ops[0], ["x"], [first], name="/layer/conv"),
        helper.make_node("Add", [first, first], [second]),
        helper.make_node(ops[1], [second], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    initializers = [] if initializer is None else [initializer]
    graph = helper.make_graph(nodes, "main", tensors[:1], tensors[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
