"""The recipes of docs/CI.md and the pre-commit hook, run locally as far as possible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "CI.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
YAML = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
BIN = Path(sys.executable).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's checkout with a model that computes the logarithm of a zero from Relu."""
    graph = onnx.parser.parse_graph("net (float[1,4] x) => (float[1,4] y) { p = Relu(x) y = Log(p) }")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "models").mkdir()
    onnx.save(model, tmp_path / "models" / "net.onnx")
    return tmp_path


def _shell(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "GIT_"))}
    environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | more
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _yaml(key: str) -> Any:
    (found,) = [document for document in YAML if key in document]
    return found


def _validated(schema: str, content: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "checked.yml").write_text(content)
    return _shell(f"check-jsonschema --builtin-schema vendor.{schema} checked.yml", folder)


@pytest.mark.parametrize(("schema", "key"), [("github-workflows", "jobs"), ("gitlab-ci", "nan-watch")])
def test_a_recipe_is_valid(schema: str, key: str, tmp_path: Path) -> None:
    (text,) = [
        text for language, text in BLOCKS if language == "yaml" and re.search(rf"^{key}:", text, re.MULTILINE)
    ]
    done = _validated(schema, text, tmp_path)
    assert done.returncode == 0, done.stdout
    assert _validated(
        schema, text.replace("script:", "srcipt:").replace("runs-on", "run-on"), tmp_path
    ).returncode


def test_the_github_steps_run(project: Path) -> None:
    steps = _yaml("jobs")["jobs"]["watch"]["steps"]
    (command,) = [step["run"] for step in steps if "nncdbg watch" in step.get("run", "")]
    summary = project / "summary.md"
    done = _shell(command, project, GITHUB_STEP_SUMMARY=str(summary), GITHUB_WORKSPACE=str(project))
    assert done.returncode == 1, done.stderr
    assert re.search(
        r"^::error file=models/net\.onnx,title=Inf.*::the first Inf is in %25y: Log",
        done.stdout,
        re.MULTILINE,
    )
    assert "| **1** | inf (birth) |" in summary.read_text(encoding="utf-8")
    (upload,) = [step["with"] for step in steps if "upload-sarif" in step.get("uses", "")]
    log = json.loads((project / upload["sarif_file"]).read_text(encoding="utf-8"))
    assert log["runs"][0]["results"][0]["ruleId"].startswith("inf")


def test_the_gitlab_script_runs(project: Path) -> None:
    job = _yaml("nan-watch")["nan-watch"]
    (command,) = [line for line in job["script"] if "nncdbg watch" in line]
    assert _shell(command, project).returncode == 1
    suite = ElementTree.parse(project / job["artifacts"]["reports"]["junit"]).getroot()
    assert suite.get("failures") == "1"


def test_the_jenkins_stage_runs(project: Path) -> None:
    (text,) = [text for language, text in BLOCKS if language == "groovy"]
    (command,) = re.findall(r"sh '(.*?)'", text)
    (report,) = re.findall(r"junit '(.*?)'", text)
    assert _shell(command, project).returncode == 1
    assert ElementTree.parse(project / report).getroot().tag == "testsuites"


def test_the_commands_of_the_page_have_the_expected_exit_codes(project: Path) -> None:
    commands = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    codes = {command: _shell(command, project).returncode for command in commands}
    assert codes == {
        "nncdbg watch models/net.onnx": 1,
        "nncdbg watch models/net.onnx --write-baseline nan-baseline.json": 0,
        "nncdbg watch models/net.onnx --baseline nan-baseline.json": 0,
        "pytest --nan-watch models/": 1,
    }


def test_the_test_of_the_page_runs(project: Path) -> None:
    (text,) = [text for language, text in BLOCKS if language == "python"]
    (project / "test_page.py").write_text(text)
    done = _shell("pytest -q test_page.py", project)
    assert done.returncode == 0, done.stdout
    (project / "test_page.py").write_text(text.replace("np.ones", "np.zeros"))
    assert "the first Inf is in %y" in _shell("pytest -q test_page.py", project).stdout


def test_the_hook_of_the_repository_is_valid(project: Path) -> None:
    manifest = ROOT / ".pre-commit-hooks.yaml"
    done = _shell(f"pre-commit validate-manifest {manifest}", project, PRE_COMMIT_HOME=str(project / "cache"))
    assert done.returncode == 0, done.stdout
    (hook,) = yaml.safe_load(manifest.read_text())
    (ours,) = _yaml("repos")["repos"][0]["hooks"]
    for field in ("id", "entry", "files", "require_serial"):
        assert hook[field] == ours[field], field


@pytest.mark.parametrize(("model", "code"), [("models/net.onnx", 1), ("models/fine.nnc", 0)])
def test_the_hook_of_the_page_runs(model: str, code: int, project: Path) -> None:
    (project / "models" / "fine.nnc").write_text((ROOT / "examples" / "first_steps.nnc").read_text())
    (text,) = [text for language, text in BLOCKS if language == "yaml" and text.startswith("repos:")]
    (project / ".pre-commit-config.yaml").write_text(text)
    # The hook ignores the user's pytest settings.
    (project / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    home = {"HOME": str(project), "PRE_COMMIT_HOME": str(project / "cache")}
    done = _shell(f"git init -q . && git add -A && pre-commit run --files {model}", project, **home)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("the first Inf is in %y" in done.stdout) is bool(code)
    assert ("Passed" in done.stdout) is not bool(code)
