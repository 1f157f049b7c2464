"""`run`, `print`, `ops`, and the options that the prompt shares with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg import extensions
from nncdbg.terminal.main import COMMANDS, main

Capture = pytest.CaptureFixture[str]
STATISTICS = ["min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "subnormal", "count"]


@pytest.fixture
def example(repository: Path) -> Callable[[str], str]:
    return lambda name: str(repository / "examples" / f"{name}.nnc")


def test_run_prints_a_line_per_output(example: Callable[[str], str], capsys: Capture) -> None:
    assert main(["run", example("first_steps")]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["%probs", "%steps"]
    assert err.startswith("note: input %x f32[2,4] drawn at random from seed 0")


def test_run_names_the_command_for_nan_in_an_output(example: Callable[[str], str], capsys: Capture) -> None:
    assert main(["run", example("nan_softmax")]) == 0
    assert "note: %loss has NaN: `nncdbg watch` finds the origin" in capsys.readouterr().err
    assert main(["run", example("first_steps")]) == 0
    assert "finds the origin" not in capsys.readouterr().err


def test_run_json_is_one_document(example: Callable[[str], str], capsys: Capture, tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    folder = tmp_path / "made" / "here"
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--save-outputs", str(folder)]
    assert main(["run", example("first_steps"), "--json", *given]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["status"], document["notes"], err) == ("ok", [], "")
    assert document["ops"] > 10
    assert document["seconds"] > 0
    probs = document["outputs"][0]
    assert (probs["name"], probs["type"], list(probs["stats"])) == ("probs", "f32[2,3]", STATISTICS)
    debugger = nncdbg.Debugger(nncdbg.load(example("first_steps")), {"x": x})
    debugger.run()
    assert debugger.outputs is not None
    np.testing.assert_array_equal(np.load(probs["file"]), debugger.outputs["probs"])


def test_seed_dim_and_generated_inputs_change_the_outputs(capsys: Capture, tmp_path: Path) -> None:
    model = tmp_path / "m.nnc"
    model.write_text(
        "#nncdbg 1\n\ngraph @main(%x: f32[N,2]) -> (%y: f32[N,2]) {\n  %y = Relu(%x)\n  return %y\n}\n"
    )
    outputs = []
    for arguments in (
        ["--dim", "N=3"],
        ["--dim", "N=3", "--seed", "1"],
        ["--dim", "N=3", "--input", "x=ones"],
    ):
        assert main(["run", str(model), *arguments]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 3
    assert all("f32[3,2]" in out for out in outputs)
    assert main(["run", str(model), "--dim", "N=3"]) == 0
    assert capsys.readouterr().out == outputs[0]


def test_an_uninitialized_read_fails_the_run(example: Callable[[str], str], capsys: Capture) -> None:
    assert main(["run", example("uninitialized"), "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "failed"
    assert "Relu reads %buffer, which has been uninitialized" in err


@pytest.mark.parametrize("options", [["--full"], ["--full", "--no-loc"], ["--full", "--flat"]])
def test_printed_text_parses_to_the_same_program(
    example: Callable[[str], str], capsys: Capture, options: list[str]
) -> None:
    assert main(["print", example("attention"), *options]) == 0
    assert nncdbg.parse(capsys.readouterr().out) == nncdbg.load(example("attention"))


def test_a_print_leaves_out_locations_and_defaults(tmp_path: Path, capsys: Capture) -> None:
    statement = '  %y = Gemm(%x, %x, alpha=1.0, transB=1) loc("a.py":3)'
    text = f"graph @main(%x: f32[2,2]) -> (%y) {{\n{statement}\n  return %y\n}}\n"
    (tmp_path / "m.nnc").write_text(text)
    assert main(["print", str(tmp_path / "m.nnc")]) == 0
    assert "  %y = Gemm(%x, %x, transB=1)\n" in capsys.readouterr().out
    assert main(["print", str(tmp_path / "m.nnc"), "--full"]) == 0
    assert '  %y = Gemm(%x, %x, alpha=1.0, transB=1) loc("a.py":3)\n' in capsys.readouterr().out


def test_print_json_lists_inputs_outputs_and_symbolic_sizes(tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "m.nnc"
    model.write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[N,3], %m: f32[N,K], %u) -> (%y: f32[N,3]) {\n"
        "  %y: f32[N,3] = Relu(%x)\n  return %y\n}\n"
    )
    assert main(["print", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "inputs": [
            {"name": "x", "type": "f32[N,3]"},
            {"name": "m", "type": "f32[N,K]"},
            {"name": "u", "type": None},
        ],
        "outputs": [{"name": "y", "type": "f32[N,3]"}],
        "dims": ["N", "K"],
    }
    assert main(["print", str(model), "--json", "-o", str(tmp_path / "out.nnc")]) == 2
    assert "--json and --output cannot be combined" in capsys.readouterr().err


def test_printed_text_finds_its_store_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    for name in ("models/deep", "out"):
        (tmp_path / name).mkdir(parents=True)
    weight = numpy_helper.from_array(np.arange(4096, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4096]) for name in "xy")
    body = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "main", [x], [y], [weight])
    model = tmp_path / "models" / "deep" / "m.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), model)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path / "models")
    assert main(["print", "deep/m.onnx", "-o", "../out/m.nnc"]) == 0
    assert 'store "../models/deep/m.onnx"' in (tmp_path / "out" / "m.nnc").read_text()
    assert not list((tmp_path / "out").glob("*.part"))
    monkeypatch.chdir(tmp_path)
    seen = []
    for path in ("out/m.nnc", "models/deep/m.onnx"):
        assert main(["run", path, "--input", "x=arange"]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1] != ""
    assert main(["print", "models/deep/m.onnx"]) == 0
    assert f'store "{model}"' in capsys.readouterr().out, "a pipe has no folder, so the path is absolute"
    for target, store in (("out/g.nnc", "../models/deep/m.onnx"), ("models/g.nnc", "deep/m.onnx")):
        with (tmp_path / target).open("w") as file:
            command = [sys.executable, "-m", "nncdbg", "print", "models/deep/m.onnx"]
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=True)
        assert f'store "{store}"' in (tmp_path / target).read_text()
        assert ("--allow-store" in done.stderr) == (target == "out/g.nnc")
    capsys.readouterr()
    for target in ("models/g.nnc", "out/g.nnc"):
        assert main(["run", target, "--input", "x=arange"]) == 0
        assert capsys.readouterr().out == seen[0]


def test_only_the_printed_file_of_the_same_user_opens_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for folder in ("models", "out"):
        (tmp_path / folder).mkdir()
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for name in ("m", "other"):
        save_file({"w": np.ones(4096, np.float32)}, tmp_path / "models" / f"{name}.safetensors")
    text = tmp_path / "models" / "m.nnc"
    text.write_text(
        'store "m.safetensors"\ngraph @main(%x: f32[4096]) -> (%y: f32[4096]) {\n'
        '  %w: f32[4096] = data("w")\n  %y: f32[4096] = Add(%x, %w)\n  return %y\n}\n'
    )
    printed = tmp_path / "out" / "g.nnc"
    assert main(["print", "models/m.nnc", "-o", str(printed)]) == 0
    assert main(["run", str(printed)]) == 0
    nncdbg.load(printed)
    (note,) = (tmp_path / "state" / "nncdbg" / "printed").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    copy = printed.with_name("copy.nnc")
    copy.write_text(printed.read_text())
    assert main(["run", str(copy)]) == 3, "another file has no note"
    printed.write_text(printed.read_text().replace("m.safetensors", "other.safetensors"))
    assert main(["run", str(printed)]) == 3, "the note is about one store"
    assert main(["print", "models/m.nnc", "-o", str(printed)]) == 0
    note.write_text("{broken")
    assert main(["run", str(printed)]) == 3
    note.unlink()
    assert main(["run", str(printed)]) == 3
    assert "--allow-store" in capsys.readouterr().err
    (tmp_path / "state" / "nncdbg").rename(tmp_path / "gone")
    (tmp_path / "state" / "nncdbg").write_text("no folder")
    assert main(["print", "models/m.nnc", "-o", str(printed)]) == 0
    assert "to open the text, use --allow-store" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["nowhere", "file.txt"])
def test_an_invalid_store_folder_is_refused(
    folder: str, example: Callable[[str], str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file.txt").write_text("")
    assert main(["run", example("attention"), "--allow-store", str(tmp_path / folder)]) == 2
    assert f"--allow-store {tmp_path / folder}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["run", "--json"], ["diff", "m.onnx", "--json"], ["watch", "m.onnx", "--json", "--runs", "0"]],
)
def test_wrong_usage_is_one_json_document_too(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    seen = capsys.readouterr()
    document = json.loads(seen.out)
    assert document["status"] == "failed"
    assert f"error: {document['error']['message']}" in seen.err


def test_ops_prints_the_table_or_one_op(capsys: Capture) -> None:
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert "kernel, in place" in rows["Add"]
    assert "formula" in rows["Softmax"]
    assert "random" in rows["RandomNormal"]
    assert "block" in rows["If"]
    assert "nncdbg.Empty" in rows
    assert main(["ops", "Softmax"]) == 0
    softmax = capsys.readouterr().out
    assert softmax.startswith("Softmax(input: T) -> (output: T)\n")
    assert "  axis=-1\n" in softmax
    assert "  gradient: its own rule\n" in softmax
    assert "gradient" in rows["Tanh"]
    assert "gradient" not in rows["BitCast"]
    assert main(["ops", "Gelu"]) == 0
    assert "  gradient: through its formula" in capsys.readouterr().out
    assert main(["ops", "BitCast"]) == 0
    assert "  gradient: none: it reinterprets the bits of floats\n" in capsys.readouterr().out
    assert main(["ops", "Conv", "--json"]) == 0
    conv = json.loads(capsys.readouterr().out)
    assert conv["attributes"]["group"] == {"required": False, "default": 1}
    assert main(["ops", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines)


@pytest.mark.parametrize("command", [[], *[[name] for name in COMMANDS]], ids=str)
def test_every_command_has_help(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--help"]) == 0
    assert "usage: nncdbg" in capsys.readouterr().out


def test_every_command_has_one_line_of_help_and_a_function() -> None:
    assert [*COMMANDS] == [*extensions.BUILT_IN[extensions.ONE_SHOT]]
    assert all(callable(extensions.find(extensions.ONE_SHOT, name)) for name in COMMANDS)
    assert all(callable(extensions.find(extensions.SCRIPTS, name)) for name in ("prompt", "exit", "end"))


def test_no_command_builds_its_own_parser(repository: Path) -> None:
    texts = {path: path.read_text("utf-8") for path in (repository / "nncdbg").rglob("*.py")}
    assert [path.name for path, text in texts.items() if re.search(r"= \w*\.?ArgumentParser\(", text)] == [
        "command_line.py"
    ]


def test_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nncdbg {nncdbg.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "onnx", "numba", "rich", "prompt_toolkit", "ml_dtypes")
    code = (
        "import sys; from nncdbg.terminal.main import main; code = main(['--help']); "
        f"print([name for name in {heavy!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stderr.strip() == "[] 0"


def test_broken_pipe_is_silent(example: Callable[[str], str]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "nncdbg", example("first_steps")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    assert child.stderr
    child.stdout.close()
    child.stdin.write("list\n" * 100)
    child.stdin.close()
    assert [line for line in child.stderr.read().splitlines() if not line.startswith("note: ")] == []
    assert child.wait(timeout=600) == 0
    child.stderr.close()


def test_start_commands_run_before_piped_lines(
    example: Callable[[str], str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    from nncdbg.commands.recording.entries import read_recording

    script, recorded = tmp_path / "start.cmd", tmp_path / "typed.cmd"
    script.write_text("# comment\nbreak Softmax\n")
    typed = "continue\n\nnext\n\nlog 18 x\nquit\nnever\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert (
        main([example("first_steps"), "-x", str(script), "--break", "@layer", "--record", str(recorded)]) == 0
    )
    out, err = capsys.readouterr()
    assert "Breakpoint 2: op Softmax" in out
    assert "Breakpoint 1, graph @layer" in out
    assert "Breakpoint 2, op Softmax" in out
    assert "never" not in err
    commands = [each.command.text for each in read_recording(str(recorded)).commands]
    assert commands[:2] == ["break @layer", f"source {script}"]
    assert commands[2:] == ["continue", "continue", "next", "next", "log 18 x", "quit"]
    assert main(["replay", str(recorded)]) == 0
    assert "(nncdbg) next\n" in capsys.readouterr().out


def test_exit_code_of_a_script_is_that_of_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    model = tmp_path / "m.nnc"
    model.write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2], %k: i64[1]) -> (%y: f32[?]) {\n"
        "  %y = Reshape(%x, %k)\n  return %y\n}\n"
    )
    np.save(tmp_path / "k.npy", np.array([7], np.int64))
    given = [str(model), "--input", f"k={tmp_path / 'k.npy'}"]
    for typed, code in (("c\n", 4), ("c\nfoo\nset %k = 2\nc\n", 0), ("p nothing\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(given) == code


def test_trained_model_runs_as_in_onnxruntime(shared_models: Path, capsys: Capture, tmp_path: Path) -> None:
    model = str(shared_models / "silero_vad.onnx")
    given: dict[str, np.ndarray] = {
        "input": np.random.default_rng(0).normal(0, 0.1, (1, 576)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }
    arguments = []
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(["run", model, "--json", "--save-outputs", str(tmp_path / "out"), *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    session = pytest.importorskip("onnxruntime").InferenceSession(model, providers=["CPUExecutionProvider"])
    for entry, expected in zip(document["outputs"], session.run(None, given), strict=True):
        np.testing.assert_allclose(np.load(entry["file"]), expected, atol=1e-5)
