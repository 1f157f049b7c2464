"""`nncdbg races --schedules`, `--order`, `--output` and `--replicas`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nncdbg
from nncdbg.errors import UsageError
from nncdbg.nan_watch.commands.races import main
from tests.engine.schedules.test_search import REPLICAS

EXAMPLE = "examples/two_streams.nnc"

GATHER = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %i: i64[4] = Cast(%x, to=7) | s0
  %y: f32[4] = Gather(%x, %i) | s1 record e1
  return %y | host wait e1
}
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    return code, capsys.readouterr().out


def test_orders_are_played_and_the_first_difference_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, EXAMPLE, "--schedules", "100")
    assert code == 1
    assert "order-dependent value: other bits than without a schedule in order 2, where line 11 runs" in text
    assert "note: played all 2 outcomes in 3 orders; 1 with other values" in text
    assert "note: a host that waits for all streams between lines 10 and 11 hides the races" in text


def test_one_order_is_written_as_a_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A20: the order with this seed, as a program that gives the same values."""
    file = tmp_path / "order.nnc"
    assert printed(capsys, EXAMPLE, "--order", "2", "-o", str(file))[0] == 1
    report = nncdbg.watch(str(file))
    assert [each.site.op for each in report.findings if each.first] == ["nncdbg.Remains"]


def test_findings_are_in_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, EXAMPLE, "--schedules", "100", "--json")[1])
    assert document["findings"][-1]["cause"] == "order-dependent value"


def test_an_order_that_fails_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "gather.nnc"
    file.write_text(GATHER)
    code, text = printed(capsys, str(file), "--schedules", "20", "--input", "x=[0,1,2,3]")
    assert code == 1
    assert "where line 6 runs before line 5, and the run fails" in text.replace("\n", " ")


def test_replicas_that_differ_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "replicas.nnc"
    file.write_text(REPLICAS.replace("SCALE", "%ten"))
    data = ("--input", "x=normal[10,4]", "--input", "t=zeros[10,2]")
    code, text = printed(capsys, str(file), "--replicas", *data)
    assert code == 1
    assert "a replica that differs: %d_h at Mul" in text
    assert "the norm is 10 times that of other calls" in text.replace("\n", " ")


@pytest.mark.parametrize(
    "arguments", [("--schedules", "0"), ("-o", "order.nnc"), ("--order", "first"), ("--schedules", "x")]
)
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        main([EXAMPLE, *arguments])
