"""Code that uses the public API passes a strict type checker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nncdbg

SAMPLE = Path(__file__).with_name("sample.py")


def errors_of(folder: Path, source: str) -> list[str]:
    """Return the errors that pyright reports in strict mode for a file with this source."""
    pytest.importorskip("basedpyright", reason="basedpyright cannot be installed on this platform")
    (folder / "sample.py").write_text(source)
    settings = {"include": ["."], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(folder)]
    command += ["--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    document = json.loads(found.stdout)
    assert document["summary"]["filesAnalyzed"] == 1
    return [
        f"{each['range']['start']['line'] + 1}: {each['message']}" for each in document["generalDiagnostics"]
    ]


def test_the_sample_has_no_error(tmp_path: Path) -> None:
    assert errors_of(tmp_path, SAMPLE.read_text()) == []


def test_a_wrong_name_and_a_wrong_type_are_errors(tmp_path: Path) -> None:
    found = errors_of(tmp_path, 'import nncdbg\n\nnncdbg.wach("m.onnx")\nnncdbg.Debugger(3)\n')
    assert any(each.startswith("3: ") and '"wach"' in each for each in found)
    assert any(each.startswith("4: ") and '"program"' in each for each in found)


def test_the_sample_uses_every_public_name() -> None:
    used = set(re.findall(r"\bnncdbg\.(\w+)", SAMPLE.read_text()))
    used |= {"Debugger", "Program", "TensorType"}
    assert set(nncdbg.__all__) <= used
