"""`nncdbg diff`, `--check micro` and `--max-ops` on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.terminal.main import main
from tests.engine.planted import Planted, bumped

Capture = pytest.CaptureFixture[str]

NET = """#nncdbg 1
opset 18

graph @main(%x: f32[2,3]) -> (%y: f32[2,3]) {
  %a = Softmax(%x, axis=-1)
  %b = Mul(%a, FACTOR)
  %y = Add(%b, %x)
  return %y
}
"""

FOREVER = """#nncdbg 1

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while (%h: f32[4] = %x) count %i: i64[] {
    %g = Add(%h, 1.0)
    next %h = %g
  } -> (%y = %h)
  return %y
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes graph text to a file and returns its path."""

    def write(name: str, text: str = NET, factor: str = "2.0") -> str:
        path = tmp_path / f"{name}.nnc"
        path.write_text(text.replace("FACTOR", factor), encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize(("size", "side"), [(2, "B"), (3, "A")])
def test_inputs_that_do_not_fit_name_the_side(
    model: Callable[..., str], capsys: Capture, size: int, side: str
) -> None:
    a, b = model("a", NET.replace("2,3", "2")), model("b", NET.replace("2,3", "3"))
    assert main(["diff", a, b, "--input", f"x=ones[{size}]"]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: side {side}: input %x has the wrong shape: axis 0 must have"
    )
    with pytest.raises(nncdbg.InputError, match=f"side {side}: input %x has the wrong shape"):
        nncdbg.diff(a, b, {"x": np.ones(size, np.float32)})


def test_agreement_exits_with_0_and_divergence_with_1(model: Callable[..., str], capsys: Capture) -> None:
    a, b, c = model("a"), model("b"), model("c", factor="2.5")
    assert main(["diff", a, b]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "the sides agree",
        "3 values paired (3 by place), 0 beyond the tolerance",
    ]
    assert "note: input %x" in err
    assert main(["diff", a, c]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "the outputs differ"
    assert lines[2:4] == ["first: %b f32[2,3] = Mul, line 6 of @main", "  B of Mul differs: 2 / 2.5"]
    assert "6 of 6 elements beyond the tolerance" in out
    assert [line.split()[-4:] for line in lines if "(line " in line] == [
        ["Softmax", "%a", "(line", "5)"],
        ["Mul", "%b", "(line", "6)"],
        ["Add", "%y", "(line", "7)"],
    ]
    assert f"nncdbg diff {a} {c} --stop" in err
    assert main(["diff", a, c, "--rtol", "1"]) == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "both sides are the same"),
        (["--dtype-b", "i8"], 2, "cannot be cast to 'i8'"),
        (["--backend-b", "abacus"], 2, "unknown backend 'abacus'"),
        (["--kernel-b", "Mul=abacus"], 2, "unknown backend 'abacus'"),
        (["--kernel-b", "Conv=onnxruntime"], 2, "Conv"),
        (["--kernel-b", "Mul"], 2, "is not OP|%VALUE|LINE=BACKEND"),
        (["--kernel", "Mul=onnxruntime"], 2, "both sides are the same"),
        (["--allocator-b", "heap"], 2, "unknown allocator 'heap'"),
        (["--dtype-b", "f16", "--rtol", "-1"], 2, "rtol cannot be -1.0"),
        (["--dtype-b", "f16", "--stop", "--json"], 2, "choose one"),
        (["--dtype-b", "f16", "--replay", "x"], 2, "--stop opens"),
        (["missing.onnx"], 3, "there is no file missing.onnx"),
        (["--golden", "missing.npz"], 3, "missing.npz does not exist"),
        (["--golden", "x.npz", "--dtype-b", "f16"], 2, "cannot be combined"),
        (["--golden", "x.npz", "--stop"], 2, "--stop needs a side B"),
        (["--names", "x"], 2, "add --golden"),
    ],
)
def test_wrong_usage_is_refused(
    model: Callable[..., str], capsys: Capture, options: list[str], code: int, message: str
) -> None:
    assert main(["diff", model("a"), *options]) == code
    assert message in capsys.readouterr().err


def test_a_failing_side_exits_with_4(model: Callable[..., str], capsys: Capture) -> None:
    broken = NET.replace("Mul(%a, FACTOR)", "Reshape(%a, [7])")
    assert main(["diff", model("a"), model("b", broken), "--json"]) == 4
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["status"] == "failed"
    assert document["error"]["message"].startswith("side B: Reshape")
    assert "side B: Reshape" in err


def test_kernels_of_single_statements_are_compared(model: Callable[..., str], capsys: Capture) -> None:
    a = model("a")
    code = main(["diff", a, "--kernel", "%y=onnxruntime", "--kernel-b", "Softmax=onnxruntime", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["sides"]["a"]["kernels"] == {"%y": "onnxruntime"}
    assert document["sides"]["b"]["kernels"] == {"%y": "onnxruntime", "Softmax": "onnxruntime"}


def test_json_has_the_same_keys_for_every_result(model: Callable[..., str], capsys: Capture) -> None:
    documents = []
    for arguments in ([model("b"), "--seed", "4"], [model("c", factor="2.5")], ["--dtype-b", "bf16"]):
        main(["diff", model("a"), *arguments, "--json"])
        documents.append(json.loads(capsys.readouterr().out))
    keys = [
        "status", "cause", "causes", "differences", "first", "worst", "diverging", "marginal", "ties",
        "matched", "unmatched", "gone", "only", "growth", "outputs", "lacking", "ops", "sides", "tolerance",
        "seconds", "notes",
    ]  # fmt: skip
    assert [list(document) for document in documents] == [keys] * 3
    equal, diverged, narrow = documents
    assert (equal["status"], equal["first"], diverged["status"]) == ("equal", None, "diverged")
    assert equal["matched"] == {"place": 3, "structure": 0, "value": 0, "name": 0, "position": 0}
    assert diverged["matched"] == {"place": 0, "structure": 3, "value": 0, "name": 0, "position": 0}
    assert (diverged["cause"]["kind"], diverged["cause"]["text"]) == (
        "parameter",
        "B of Mul differs: 2 / 2.5",
    )
    assert diverged["cause"]["match"] == diverged["first"]
    assert [each["kind"] for each in diverged["differences"]] == ["parameter"]
    first = diverged["first"]
    assert list(first) == [
        "a", "b", "matched_by", "diverges", "marginal", "beyond", "times_tolerance", "unmeasured", "where",
        "elements", "ulps", "comparison", "detail",
    ]  # fmt: skip
    assert list(first["a"]) == ["value", "op", "type", "line", "graph", "iteration", "node", "tick", "source"]
    assert (first["a"]["value"], first["a"]["line"], first["b"]["line"]) == ("b", 6, 6)
    assert len(first["where"]) == 2
    assert list(first["comparison"])[:5] == ["max_abs", "max_rel", "mean_abs", "cosine", "max_ulp"]
    assert [row["value"] for row in diverged["growth"]] == ["a", "b", "y"]
    assert narrow["sides"]["b"] == {**narrow["sides"]["a"], "dtype": "bf16"}
    assert narrow["outputs"][0]["b"]["type"] == "bf16[2,3]"


# The input is in the middle of the range, so a wider Clip changes only %c.
INTERMEDIATE = NET.replace(
    "%y = Add(%b, %x)", "%c = Clip(%b, -0.001, FACTOR)\n  %d = Sign(%c)\n  %y = Add(%d, %x)"
)


def test_intermediate_differences_fail_only_with_strict(model: Callable[..., str], capsys: Capture) -> None:
    text = INTERMEDIATE.replace("Mul(%a, FACTOR)", "Mul(%a, 2.0)")
    a, c = model("a", text, "0.1"), model("c", text, "0.2")
    assert main(["diff", a, c]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "the outputs agree, intermediate values differ"
    assert "max of Clip differs: 0.1 / 0.2" in out
    assert main(["diff", a, c, "--strict"]) == 1
    capsys.readouterr()
    assert main(["diff", a, c, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "intermediate"


@pytest.fixture
def golden(model: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes all values of NET to a golden file and returns its path."""

    def save(names: dict[str, str], **changed: Any) -> str:
        debugger = nncdbg.Debugger(nncdbg.load(model("golden")), {"x": "normal"})
        debugger.run()
        arrays = {name: np.array(debugger.value(name)) for name in ("x", "a", "b", "y")}
        for name, change in changed.items():
            arrays[name] = change(arrays[name])
        renamed: dict[str, Any] = {names.get(name, name): array for name, array in arrays.items()}
        np.savez(tmp_path / "ref.npz", **renamed)
        return str(tmp_path / "ref.npz")

    return save


def test_golden_values_take_the_place_of_side_b(
    model: Callable[..., str], golden: Callable[..., str], capsys: Capture, tmp_path: Path
) -> None:
    a = model("a")
    assert main(["diff", a, "--golden", golden({})]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == "3 values paired (3 by name), 0 beyond the tolerance"
    assert "input %x comes from the golden file" in err
    wrong = golden({}, b=bumped)
    assert main(["diff", a, "--golden", wrong, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["cause"]["a"]["value"]) == ("intermediate", "b")
    assert [cause["a"]["value"] for cause in document["causes"]] == ["b"]
    assert document["sides"]["b"] == {"golden": wrong, "names": None}


def test_golden_names_come_from_a_file_or_from_shape_and_order(
    model: Callable[..., str], golden: Callable[..., str], capsys: Capture, tmp_path: Path
) -> None:
    other = {"a": "softmax", "b": "scaled", "y": "result"}
    path = golden(other, y=lambda y: y + 1)
    names = tmp_path / "names.txt"
    names.write_text("softmax %a  # comment\n\nresult y\n")
    arguments = ["diff", model("a"), "--golden", path, "--json"]
    assert main([*arguments, "--names", str(names)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["matched"]["name"], document["matched"]["position"]) == (2, 1)
    assert document["cause"]["a"]["value"] == "y"
    names.write_text(json.dumps({"softmax": "a", "scaled": "b", "result": "y"}))
    assert main([*arguments, "--names", str(names)]) == 1
    assert json.loads(capsys.readouterr().out)["matched"]["name"] == 3
    assert main(arguments) == 1
    assert json.loads(capsys.readouterr().out)["matched"]["position"] == 3
    with np.load(path) as archive:
        np.savez(path, **archive, extra=np.zeros(7))
    assert main(["diff", model("a"), "--golden", path]) == 1
    assert "1 of side B have no counterpart: %extra" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        ("a b c", 3, "line 1: expected 2 names, got 3"),
        ('{"a": 1}', 3, "each golden name must map to one value name"),
        ("{", 3, "is not JSON"),
        ("a nothing", 2, "no statement computes %nothing"),
        ("nothing a", 2, 'has no array "nothing"'),
    ],
)
def test_wrong_golden_names_are_refused(
    model: Callable[..., str],
    golden: Callable[..., str],
    capsys: Capture,
    tmp_path: Path,
    names: str,
    code: int,
    message: str,
) -> None:
    path = tmp_path / "names"
    path.write_text(names)
    assert main(["diff", model("a"), "--golden", golden({}), "--names", str(path)]) == code
    assert message in capsys.readouterr().err


def test_stop_opens_the_prompt_at_the_divergence_with_both_values(
    model: Callable[..., str], capsys: Capture, tmp_path: Path
) -> None:
    script = tmp_path / "commands"
    script.write_text("diff %b\ndiff %b[0]\nnext\ndiff %y\ndiff %x\n")
    a, c = model("a"), model("c", factor="2.5")
    assert main(["diff", a, c, "--stop", "--replay", str(script)]) == 1
    out = capsys.readouterr().out
    assert " -> 7   %y = Add(%b, %x)" in out
    assert "(side A)" in out
    assert "(side B)" in out
    assert "side B:\n[0, :] of f32[2,3]" in out
    assert out.count("6 of 6 elements differ") == 2
    assert out.rstrip().endswith("all elements are equal")


def test_output_fits_a_narrow_terminal(
    model: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["diff", model("a"), model("c", factor="2.5")]) == 1
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 20
    assert "the outputs differ" in lines


# -- micro programs beside kernels ---------------------------------------------------------------


def test_run_reports_the_checked_statements(model: Callable[..., str], capsys: Capture) -> None:
    assert main(["run", model("a"), "--check", "micro"]) == 0
    assert "micro programs ran beside 1 statement, 1 time; no micro program: Mul 1, Add 1" in (
        capsys.readouterr().err.replace("\n", " ")
    )
    assert main(["run", model("a"), "--check", "micro", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    checks = document["check"].pop("checks")
    assert [each["check"] for each in checks if each["result"] == "not applicable"] == [
        "micro Mul",
        "micro Add",
    ]
    assert {"check": "micro", "result": "passed", "reason": None} in checks
    assert document["check"] == {"statements": 1, "runs": 1, "without": {"Mul": 1, "Add": 1}, "failed": {}}


def test_a_wrong_kernel_fails_the_run_and_stops_the_prompt(
    model: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nncdbg.engine.backends.numpy import NumPy
    from tests.engine.planted import Planted

    def planted(chosen: Any) -> Any:
        return Planted("Softmax", bumped) if chosen == "numpy" else NumPy()

    monkeypatch.setattr("nncdbg.engine.backends.backend", planted)
    assert main(["run", model("a"), "--check", "micro"]) == 4
    err = capsys.readouterr().err
    assert "%a: the kernel of Softmax and its micro program disagree in 2 elements" in err
    assert "(line 5)" in err
    script = tmp_path / "commands"
    script.write_text("continue\ndiff %a\ncontinue\n")
    assert main([model("a"), "--check", "micro", "--replay", str(script)]) == 0
    out = capsys.readouterr().out
    assert "catch micro: %a: the kernel of Softmax" in out
    assert "(the kernel)" in out
    assert "(the micro program)" in out
    assert "elements differ" in out
    assert "The program has ended" in out


# -- endless loops -------------------------------------------------------------------------------


def test_an_endless_loop_fails_the_run(model: Callable[..., str], capsys: Capture) -> None:
    path = model("forever", FOREVER)
    assert main(["run", path, "--max-ops", "50", "--json"]) == 4
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["status"] == "failed"
    assert document["ops"] == 50
    assert "has not ended after 50 statements" in err
    assert "--max-ops" in document["error"]["hint"]
    assert main(["diff", path, "--allocator-b", "arena", "--max-ops", "50"]) == 4
    assert "side A: the program has not ended after 50 statements" in capsys.readouterr().err
    assert main(["run", path, "--max-ops", "0"]) == 2


def test_the_prompt_pauses_at_max_ops_and_continues(
    model: Callable[..., str], capsys: Capture, tmp_path: Path
) -> None:
    script = tmp_path / "commands"
    script.write_text("continue\np $iter\ncontinue\np $iter\n")
    assert main([model("forever", FOREVER), "--max-ops", "50", "--replay", str(script)]) == 0
    out, err = capsys.readouterr()
    assert out.count("Paused: the program has not ended after") == 2
    assert [int(line) for line in out.splitlines() if line.isdigit()] == [24, 49]
    assert "interrupted" not in err


def test_f16_overflow_is_reported(model: Callable[..., str], capsys: Capture, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 3), 300, np.float32))
    square = NET.replace("Softmax(%x, axis=-1)", "Mul(%x, %x)")
    arguments = ["--input", f"x={tmp_path / 'x.npy'}", "--dtype-b", "f16"]
    assert main(["diff", model("square", square), *arguments]) == 1
    out = capsys.readouterr().out
    assert "first at [0, 0]: 90000 against inf" in out
    assert "on one side only: infinite 6" in out


@pytest.mark.parametrize(
    ("dtype", "one", "other", "options", "word", "words"),
    [
        ("f32", [1, 2], [1, np.nan], {}, "NaN", "2 against nan, NaN on one side only"),
        ("f32", [1, np.inf], [1, -np.inf], {}, "Inf", "inf against -inf, not the same infinity"),
        ("f32", [1, np.inf], [1, 2], {}, "Inf", "inf against 2, Inf on one side only"),
        ("i64", [1, 2], [1, 3], {}, "unequal", "2 against 3, which must be equal"),
        ("bool", [0, 1], [1, 1], {}, "unequal", "false against true, which must be equal"),
        ("f32", [1, 2], [1, 3], {"ulp": 0}, "zero", "2 against 3, with a tolerance of 0"),
        ("f32", [1, 2], [1, 3], {"rtol": 0.0, "atol": 0.0}, "zero", "with a tolerance of 0"),
    ],
)
def test_a_distance_that_is_no_number_of_tolerances_has_a_reason_instead(
    dtype: str, one: list[Any], other: list[Any], options: dict[str, Any], word: str, words: str
) -> None:
    text = f"#nncdbg 1\ngraph @main(%x: {dtype}[2]) -> (%y: {dtype}[2]) {{\n"
    text += "  %y = Identity(%x)\n  return %y\n}\n"
    kind = {"f32": np.float32, "i64": np.int64, "bool": np.bool_}[dtype]

    def spoiled(array: Any) -> Any:
        return np.array(other, kind)

    report = nncdbg.diff(
        nncdbg.parse(text),
        inputs={"x": np.array(one, kind)},
        backend_b=Planted("Identity", spoiled),
        allocator_b="plain",
        **options,
    )
    printed, document = str(report), report.as_dict()
    assert words in printed
    row = next(line for line in printed.splitlines() if "Identity %y" in line and "of 2" in line)
    assert row.startswith(f"{'-':>9}  {'-':>7}  {'-':>8}  ")
    index = int(np.flatnonzero(~np.equal(one, other))[0])
    assert row.endswith(f" in 1 of 2, the first at [{index}]")
    assert "inf times" not in printed
    for place in (document["first"], document["worst"], document["growth"][0], document["outputs"][0]):
        assert (place["times_tolerance"], place["unmeasured"]) == (None, word)
    json.dumps(document, allow_nan=False)


def test_a_report_without_differences_has_five_lines_and_all_shows_the_table(
    model: Callable[..., str], capsys: Capture
) -> None:
    a, b = (
        model("a"),
        model("b", NET.replace("%b =", "%c = Identity(%a)\n  %b =").replace("(%a, F", "(%c, F")),
    )
    assert main(["diff", a, b]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 5
    assert main(["diff", a, b, "--all"]) == 0
    assert "times tol" in capsys.readouterr().out


def test_rows_after_the_first_nan_are_folded(model: Callable[..., str], capsys: Capture) -> None:
    layers = "".join(f"  %t{i} = Tanh(%{f't{i - 1}' if i else 'b'})\n" for i in range(20))
    text = NET.replace("  %y = Add(%b", layers + "  %y = Add(%t19").replace(
        "Softmax(%x, axis=-1)", "Sqrt(%x)"
    )
    a, b = model("a", text), model("b", text, factor="nan")
    assert main(["diff", a, b]) == 1
    out = capsys.readouterr().out
    assert "and 21 later rows; --all prints all" in out
    assert main(["diff", a, b, "--all"]) == 1
    assert "Tanh %t19 (line " in capsys.readouterr().out


@pytest.mark.parametrize("swapped", [False, True])
def test_each_side_runs_on_the_backend_of_its_own_program(
    tmp_path: Path, model: Callable[..., str], capsys: Capture, swapped: bool
) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    exported = str(tmp_path / "layer.pt2")
    torch.export.save(torch.export.export(layer, (torch.ones(4, 3),)), exported)
    text = """#nncdbg 1
opset 18

graph @main(%input: f32[4,3]) -> (%y: f32[4,2]) {
  %y = Gemm(%input, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [0.5, -0.5], transB=1)
  return %y
}
"""
    sides = [exported, model("gemm", text)]
    backends = ["torch", "numpy"]
    if swapped:
        sides, backends = sides[::-1], backends[::-1]
    assert main(["diff", *sides, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [document["sides"][side]["backend"] for side in "ab"] == backends
    assert document["matched"]["value"] == 1
    a, b = sides
    assert nncdbg.diff(a, b).equal
    data = tmp_path / "cases"
    data.mkdir()
    np.savez(data / "1.npz", input=np.ones((4, 3), np.float32))
    assert nncdbg.diff_corpus(a, b, inputs_dir=data).equal
