"""A recorded step in a notebook: its HTML, its plot, and the cell magic `%%nncdbg`."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

torch: Any = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.target.statistics import statement_statistics  # noqa: E402
from tests.notebook.test_rendering import read_html  # noqa: E402


def recorded(scale: float = 1.0) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(5, 3) * scale
    with nncdbg.torch.record(model, optimizer) as step:
        model(batch).square().mean().backward()
        optimizer.step()
    return step


def test_a_step_has_its_phases_and_inputs_as_html() -> None:
    text = read_html(recorded()).text
    for name in ("@forward", "@backward", "@optimizer", "%0.weight", "test_recorded_step.py:"):
        assert name in text


def test_a_step_that_is_not_complete_says_so() -> None:
    with nncdbg.torch.record() as step:
        shown = step._repr_html_()
    assert "not complete" in shown


def test_statistics_of_statements_are_those_of_numpy() -> None:
    step = recorded()
    found = statement_statistics(step.program, step.inputs)
    assert list(dict.fromkeys(each.phase for each in found)) == ["forward", "backward", "optimizer"]
    assert all(each.finite for each in found)
    debugger = nncdbg.Debugger(step)
    loss = next(each for each in found if each.name == "loss")
    debugger.break_at(line=loss.line)
    debugger.run()
    debugger.step_over()
    assert math.isclose(loss.norm, float(debugger.value("%loss")), rel_tol=1e-6)
    weight = next(each for each in found if each.name == "0.weight.grad")
    gradient = nncdbg.run(step)["0.weight.grad"]
    assert math.isclose(weight.norm, float((gradient.astype("f8") ** 2).sum()) ** 0.5, rel_tol=1e-6)
    assert math.isclose(weight.largest, float(abs(gradient).max()), rel_tol=1e-6)


def test_statements_with_nan_are_marked() -> None:
    step = recorded(math.inf)
    assert not all(each.finite for each in statement_statistics(step.program, step.inputs))


def test_memory_that_was_only_allocated_is_no_result() -> None:
    torch.set_num_threads(1)
    with nncdbg.torch.record() as step:
        torch.nn.functional.dropout(torch.ones(3, 4))
    assert "aten.empty_like(" in step.program.text()
    found = statement_statistics(step.program, step.inputs)
    assert found
    assert all(each.finite for each in found)


def test_a_plot_has_a_line_for_each_phase() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib").use("agg")
    step = recorded(math.inf)
    axes = step.plot()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:4] == ["@forward", "@backward", "@optimizer", "NaN or Inf"]
    first = next(each for each in statement_statistics(step.program, step.inputs) if not each.finite)
    assert labels[4:] == [f"the first: %{first.name}, line {first.line}"]
    assert recorded().plot(axes) is axes


def test_a_plot_without_matplotlib_is_an_error_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UsageError, match="needs the package matplotlib") as raised:
        recorded().plot()
    assert raised.value.hint == "pip install nncdbg[plots]"


def test_importing_nncdbg_for_its_magic_imports_no_torch() -> None:
    code = (
        "import sys, nncdbg\n"
        "class Shell:\n"
        "    def register_magic_function(self, function, kind): print(function.__name__, kind)\n"
        "nncdbg.load_ipython_extension(Shell())\n"
        "print('torch' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["nncdbg", "cell", "False"]


TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """%%nncdbg{name}
loss = model(torch.ones(2, 3)).square().mean()
loss.backward()
optimizer.step()
"""


def test_the_cell_magic_records_and_shows_the_cell(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    cells = [
        "%load_ext nncdbg",
        TRAINING,
        STEP.format(name=""),
        "step.program.text()",
        STEP.format(name=" second"),
        "%%nncdbg\nmodel(torch.ones(2, 3))\nraise ValueError('in the cell')",
        "type(step).__name__, [*step.program.graphs]",
        "%%nncdbg not a name\n1",
    ]
    made: Any = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    shown = [cell.outputs for cell in notebook.cells]
    assert shown[0] == shown[1] == []
    assert '<div class="nncdbg">' in shown[2][0].data["text/html"]
    program = shown[3][0].data["text/plain"]
    assert "%weight.grad" in program
    assert "@optimizer" in program
    assert 'loc("In[3]":2' in program
    assert "In[3]:2" in shown[2][0].data["text/html"]
    assert "In[5]:2" in shown[4][0].data["text/html"]
    assert "@optimizer" in shown[4][0].data["text/html"]
    failed = [each for each in shown[5] if each.output_type == "error"]
    assert [each.ename for each in failed] == ["ValueError"]
    assert "RecordedStep" in shown[6][0].data["text/plain"]
    assert "optimizer" not in shown[6][0].data["text/plain"]
    (error,) = shown[7]
    assert "is not the name of a variable" in str(error)
    assert "Traceback" not in str(error)
