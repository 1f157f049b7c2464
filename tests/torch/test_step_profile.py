"""The table of the operators of a recorded step: calls, bytes, and results with NaN or Inf."""

import json

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402


def test_the_table_of_operators_has_calls_bytes_and_nan(tmp_path, capfd):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = torch.randn(8, 4)
    with nncdbg.torch.record(model, torch.optim.SGD(model.parameters(), 0.1)) as step:
        model(x).log().mean().backward()
    step.save(tmp_path / "step7")
    assert main(["profile", str(tmp_path / "step7"), "--by", "op", "--runs", "2", "--json"]) == 0
    rows = {row["op"]: row for row in json.loads(capfd.readouterr().out)["rows"]}
    wanted = {"aten.addmm.default": (4, 2, 288, 0), "aten.log.default": (2, 1, 32, 1)}
    for op, counts in wanted.items():
        assert tuple(rows[op][name] for name in ("calls", "statements", "bytes", "nonfinite")) == counts
