"""A recorded step has the text of its source lines: later edits and other folders do not change it."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.presentation.source_files import source_file, source_text  # noqa: E402

SCRIPT = """import torch, nncdbg.torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with nncdbg.torch.record(model, optimizer) as step:
    y = model(torch.ones(3, 2))
    loss = y.exp().mean()      # the loss
    loss.backward()
step.save("step")
"""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A step that a script has saved; its folder is the current one."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)  # y is below 1, so its acosh is NaN.
    runpy.run_path("train.py")
    return tmp_path / "step"


def line_of_exp(step):
    program = nncdbg.load(step)
    node = next(n for g in program.graphs.values() for n in g.nodes if n.op == "aten.exp.default")
    return program, node.location


def test_the_text_of_a_line_is_the_recorded_one_after_an_edit(saved):
    program, location = line_of_exp(saved)
    assert source_text(program, location) == "loss = y.exp().mean()      # the loss"
    assert source_file(program, "train.py") == Path("train.py")
    Path("train.py").write_text("# a new first line\n" + SCRIPT)
    program, location = line_of_exp(saved)
    assert (location.file, location.line) == ("train.py", 6)
    assert source_text(program, location) == "loss = y.exp().mean()      # the loss"
    assert source_file(program, "train.py") is None


def test_a_file_of_another_folder_is_not_shown(saved, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("\n".join(f"wrong = {n}" for n in range(20)))
    monkeypatch.chdir(other)
    text = str(nncdbg.execute(nncdbg.Debugger(saved), "break aten.exp\nrun\nbt\nlist train.py:6"))
    assert "train.py is not here as it was recorded: these are the lines that were recorded" in text
    assert "loss = y.exp().mean()      # the loss" in text
    assert "wrong" not in text


def test_sources_survive_saving_again(saved, tmp_path):
    from nncdbg.opening.folder_writing import write_folder

    program = nncdbg.load(saved)
    write_folder(tmp_path / "again", program, program.saved.inputs)
    assert nncdbg.load(tmp_path / "again").saved.sources == program.saved.sources
    assert set(program.saved.sources["train.py"].lines) >= {"5", "6", "7"}


def test_a_report_has_the_recorded_line(saved):
    Path("train.py").unlink()
    program = nncdbg.load(saved)
    text = program.text().replace("aten.exp(%addmm)", "aten.acosh(%addmm)")
    assert text != program.text()
    broken = replace(nncdbg.parse(text), saved=program.saved)
    report = str(nncdbg.watch(replace(broken, readers=program.readers)))
    assert 'File "train.py", line 6, in <module>\n      loss = y.exp().mean()      # the loss\n' in report
    assert "  from train.py:6\n" in report
