"""The installed example package of `examples/plugin`: a front-end, a backend, an op and a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
MODEL = EXAMPLE / "area.calc"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the installed package; the installation needs no network."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "install", *options, str(EXAMPLE)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(
    folder: Path, *arguments: str, typed: str = "", program: tuple[str, ...] = ("-m", "nncdbg")
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *program, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def result(done: subprocess.CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stderr
    (small,) = json.loads(done.stdout)["outputs"]
    return float(small["stats"]["max"])


def test_the_front_end_reads_its_files_and_the_op_runs(installed: Path) -> None:
    done = run(installed, "run", str(MODEL), "--input", "r=2.0", "--json")
    assert result(done) == pytest.approx(8.5013, abs=1e-4)


def test_a_file_that_the_front_end_cannot_read_is_an_error(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.calc"
    file.write_text("input r\ns = r + q\noutput s\n")
    done = run(installed, "run", str(file))
    assert done.returncode == 3
    assert f'the extension "calc" cannot read {file}: ValueError: could not convert' in done.stderr
    assert "report this error to nncdbg_calculator.frontend" in done.stderr


def test_the_backend_runs_the_program(installed: Path) -> None:
    done = run(installed, "run", str(MODEL), "--input", "r=2.0", "--json", "--backend", "rounding")
    assert result(done) == pytest.approx(8.5, abs=1e-6)


def test_the_prompt_lists_and_runs_the_command(installed: Path) -> None:
    done = run(installed, str(MODEL), typed="help\ntally\nquit\n")
    assert done.returncode == 0, done.stderr
    listed_commands = done.stdout.partition("Program and values")[2].partition("Edits, marks, branches")[0]
    assert "tally" in listed_commands
    assert "   2  Mul" in done.stdout


def test_the_op_has_a_gradient(installed: Path) -> None:
    code = """
import nncdbg
from nncdbg.engine.differentiation.backward_pass import GradientRequest, gradient_graph
program = nncdbg.load("area.calc")
types = {value.name: value.type for value in program.graph.inputs}
request = GradientRequest("small", ("r",), ("r",))
gradient = gradient_graph("gradient", program.graph.nodes, request, types, {}, {})
assert not any(node.op == "nncdbg.NoGradientRule" for node in gradient.nodes), gradient
print(program.graph.nodes[2].location)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "area.calc:4\n"


def test_an_error_in_a_file_has_its_line(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.calc").write_text("input r\nb = r * r\nb = r + r\noutput b\n")
    done = run(installed, "run", str(tmp_path / "wrong.calc"))
    assert done.returncode == 3
    assert "%b is defined twice" in done.stderr
    assert "wrong.calc:3" in done.stderr


def test_a_broken_package_is_reported_and_other_commands_work(tmp_path: Path) -> None:
    metadata = tmp_path / "broken_calculator-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-calculator\nVersion: 1.0\n")
    groups = {"frontends": "calc", "backends": "rounding", "ops": "org.broken", "commands": "tally"}
    lines = [f"[nncdbg.{group}]\n{name} = no_such_module:load\n" for group, name in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    text = tmp_path / "model.nnc"
    text.write_text("graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = Relu(%x)\n  return %y\n}\n")
    failure = "of broken-calculator failed: ModuleNotFoundError: No module named 'no_such_module'"
    assert run(tmp_path, "run", str(text)).returncode == 0
    refused = run(tmp_path, "run", str(MODEL))
    assert (refused.returncode, refused.stderr.startswith('error: the extension "calc"')) == (3, True)
    assert failure in refused.stderr
    assert "pip uninstall broken-calculator" in refused.stderr
    assert failure in run(tmp_path, "run", str(text), "--backend", "rounding").stderr
    listed = run(tmp_path, "ops")
    assert listed.returncode == 0
    assert failure in listed.stderr
    assert "Relu" in listed.stdout
    prompt = run(tmp_path, str(text), typed="help\nnext\nquit\n")
    assert prompt.returncode == 0
    assert failure in prompt.stdout + prompt.stderr


def test_built_in_names_read_no_metadata(tmp_path: Path) -> None:
    code = (
        "import sys, nncdbg; nncdbg.run(nncdbg.load(sys.argv[1]), backend='numpy'); "
        "print('nncdbg.extensions' in sys.modules); "
        "from nncdbg import extensions; print(extensions._installed.cache_info().currsize)"
    )
    text = tmp_path / "model.nnc"
    text.write_text("graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = Relu(%x)\n  return %y\n}\n")
    done = run(tmp_path, str(text), program=("-c", code))
    assert done.stdout.split() == ["True", "0"], done.stderr
