"""Scripts with tensors on the device meta, which have sizes and no data."""

import io
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.finiteness import is_finite, not_finite, suspicious  # noqa: E402

REASON = "a tensor on the device meta has no data"

PARTLY = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
shape = torch.nn.Linear(3, 2, device="meta")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(3):
    target = torch.ones_like(shape(torch.empty(4, 3, device="meta")), device="cpu")
    loss = (net(torch.ones(4, 3)) - target).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WHOLLY = PARTLY.replace("import torch\n", "import torch\ntorch.set_default_device('meta')\n").replace(
    ', device="cpu"', ""
)

WATCHES = ["watch", "watch --tier hooks", "watch --tier live", "watch --keep-update", "debug --catch nan,inf"]


@pytest.mark.parametrize("text", [PARTLY, WHOLLY], ids=["partly", "wholly"])
@pytest.mark.parametrize("command", WATCHES)
def test_script_is_watched(tmp_path: Path, monkeypatch, capfd, command, text):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    try:
        assert main([*command.split(), "train.py"]) == 0, capfd.readouterr().err
    finally:
        torch.set_default_device(None)
    assert capfd.readouterr().out == ("training: ok, 3 updates\n" if "watch" in command else "")


def test_operators_on_meta_tensors_are_left_out_of_a_recorded_step(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARTLY)
    assert main(["record", "--step", "2", "-o", "step", "train.py"]) == 0
    assert f"have results that cannot be shown: {REASON}" in capfd.readouterr().err
    program = nncdbg.load("step")
    nodes = [node for graph in program.graphs.values() for node in graph.nodes]
    assert not [node for node in nodes if "meta" in str(node.attributes.get("device"))]
    recorded = [node for node in nodes if node.op == "torch.recorded"]
    assert [node.attributes["op"] for node in recorded] == ["aten.ones_like.default"]
    debugger = nncdbg.Debugger(program)
    debugger.run()
    assert debugger.stop.reason == "end"
    assert not any("another" in str(note) for note in debugger.notes)


def test_step_without_data_is_refused(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WHOLLY)
    try:
        assert main(["record", "train.py"]) == 4
    finally:
        torch.set_default_device(None)
    error = capfd.readouterr().err
    assert error.startswith("error: the step cannot be recorded: ")
    assert REASON in error
    assert "hint: record a step on tensors with data" in error
    assert not Path("step1").exists()


def test_stop_at_an_operator_on_meta_tensors_says_why_it_has_no_values(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARTLY)
    monkeypatch.setattr(sys, "stdin", io.StringIO("quit\n"))
    assert main(["debug", "--break", "aten.addmm hits 1", "train.py"]) == 0
    output = capfd.readouterr().out
    assert f"aten.addmm.default has results that cannot be shown: {REASON}" in output
    assert "step 1, forward" in output


def test_meta_tensor_has_no_nan():
    tensor = torch.empty(3, device="meta")
    assert is_finite(tensor)
    assert not suspicious([tensor])
    assert not_finite(tensor) == ""
