"""`nncdbg ops` for PyTorch's operators."""

import json
import subprocess
import sys

import pytest

from nncdbg.terminal.main import main

pytest.importorskip("torch", reason="torch is not installed")


def test_plain_list_has_no_operators_of_torch_and_does_not_import_it():
    code = (
        "import sys; from nncdbg.terminal.main import main; code = main(['ops']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Softmax" in run.stdout
    assert not any(line.startswith(("aten.", "prims.", "torch.")) for line in run.stdout.splitlines())


def test_domain_lists_its_operators(capsys):
    assert main(["ops", "aten"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3000
    assert all(line.startswith("aten.") and "--backend torch" in line for line in lines)
    (dropout,) = [line for line in lines if line.startswith("aten.native_dropout.default ")]
    assert "random" in dropout


def test_domain_as_json(capsys):
    assert main(["ops", "torch", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == [
        "torch.number",
        "torch.read",
        "torch.recorded",
        "torch.view",
        "torch.write",
    ]
    assert all(entry["torch"] and not entry["kernel"] for entry in listed)


def test_operator_has_its_signature_and_documentation(capsys):
    assert main(["ops", "aten.add.Tensor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("aten.add.Tensor(self")
    assert "-> (result: Tensor)\n  --backend torch; since 1\n" in out
    assert "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" in out
    assert "Adds :attr:`other`" in out


def test_unknown_operator_has_a_near_one_as_hint(capsys):
    assert main(["ops", "aten.ad.Tensor"]) == 2
    captured = capsys.readouterr()
    assert 'there is no op "aten.ad.Tensor"' in captured.err
    assert "did you mean aten.add.Tensor?" in captured.err


def test_without_torch_its_domain_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr("nncdbg.text.torch_names.installed", lambda: False)
    assert main(["ops", "aten"]) == 2
    assert "need the package torch, which is not installed" in capsys.readouterr().err
