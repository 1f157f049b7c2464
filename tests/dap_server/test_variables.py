"""Variables: types, statistics, elements of every kind, and availability at each stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES


def children(client: Client, variable: dict[str, Any], **arguments: Any) -> list[dict[str, Any]]:
    """Return the children of a variable."""
    reference = variable["variablesReference"]
    assert reference, f"{variable['name']} does not open"
    found: list[dict[str, Any]] = client.request("variables", {"variablesReference": reference, **arguments})[
        "variables"
    ]
    return found


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in found}


def values(found: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in found}


def program(folder: Path, text: str) -> Path:
    """Write graph text to a file; `text` is @main from its parameters on."""
    file = folder / "program.nnc"
    file.write_text(f"#nncdbg 1\nopset 18\n\ngraph @main{text}\n")
    return file


def test_scopes_follow_the_current_statement(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    frame = client.top_frame()
    scopes = client.request("scopes", {"frameId": frame["id"]})["scopes"]
    assert [scope["name"] for scope in scopes if not scope["expensive"]] == ["Inputs", "Outputs", "Values"]
    assert {scope["name"]: scope["expensive"] for scope in scopes}["Memory"]
    for scope in scopes:
        listed = client.request("variables", {"variablesReference": scope["variablesReference"]})["variables"]
        assert len(listed) == scope.get("namedVariables", 0), scope
    before = client.variables("Values")
    client.move("next")
    after = client.variables("Values")
    assert after.keys() == before.keys(), "uncomputed values are listed too"
    (new,) = (name for name in after if after[name]["value"] != before[name]["value"])
    assert before[new]["value"] == "<not computed>"
    assert next(iter(after)) == new, "the newest comes first"
    assert list(client.variables("Outputs")) == [new]
    there = {name: variable for name, variable in before.items() if variable["value"] != "<not computed>"}
    assert there, "the inputs at least"
    for name, variable in there.items():
        assert after[name]["variablesReference"] == variable["variablesReference"], "the same place"


def test_a_tensor_shows_its_type_and_statistics_and_opens_axis_by_axis(
    client: Client, tmp_path: Path
) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.save(tmp_path / "x.npy", array)
    file = program(
        tmp_path, "(%x: f32[2,3,4]) -> (%y: f32[2,3,4]) {\n  %y: f32[2,3,4] = Neg(%x)\n  return %y\n}"
    )
    flags = {"supportsVariableType": True, "supportsVariablePaging": True, "supportsMemoryReferences": True}
    client.start(file, inputs={"x": "x.npy"}, initialize=flags)
    whole = client.variables("Inputs")["%x"]
    assert whole["value"] == "f32[2,3,4] min 0 mean 11.5 max 23 std 6.922"
    assert whole["type"] == "f32[2,3,4]"
    assert whole["evaluateName"] == "%x"
    assert whole["memoryReference"].startswith("0x")
    assert (whole["namedVariables"], whole["indexedVariables"]) == (3, 2)
    parts = by_name(children(client, whole))
    assert list(parts) == ["shape", "dtype", "statistics", "[0]", "[1]"]
    assert parts["shape"]["value"] == "[2, 3, 4]"
    assert parts["dtype"]["value"] == "f32"
    assert values(children(client, parts["statistics"])) == {
        "min": "0", "max": "23", "mean": "11.5", "std": "6.92218655", "nan": "0", "posinf": "0",
        "neginf": "0", "zero": "1", "subnormal": "0", "count": "24",
    }  # fmt: skip
    assert parts["[1]"]["value"] == "f32[3,4] min 12 mean 17.5 max 23 std 3.452"
    rows = by_name(children(client, parts["[1]"]))
    assert list(rows) == ["statistics", "[0]", "[1]", "[2]"]
    assert rows["[2]"]["value"] == "f32[4] [20. 21. 22. 23.]"
    elements = children(client, rows["[2]"])
    assert [each["value"] for each in elements] == ["20.0", "21.0", "22.0", "23.0"]
    assert elements[3]["evaluateName"] == "%x[1, 2, 3]"
    assert elements[3]["variablesReference"] == 0


ELEMENTS = [
    ("f32[4]", "[nan, inf, -inf, 0.333333343]", ["nan", "inf", "-inf", "0.33333334"]),
    ("bf16[2]", "[0.1, nan]", ["0.100098", "nan"]),
    ("f16[2]", "[0.1, -0.0]", ["0.1", "-0.0"]),
    ("i4[3]", "[-8, 7, 0]", ["-8", "7", "0"]),
    ("u8[2]", "[255, 0]", ["255", "0"]),
    ("bool[2]", "[true, false]", ["true", "false"]),
    ("str[2]", '["a", "two\\nlines"]', ["'a'", "'two\\nlines'"]),
    ("c64[2]", "[(1.0, 2.0), (nan, -1.0)]", ["(1+2j)", "(nan-1j)"]),
]


def test_elements_of_every_kind_are_spelled_in_full(client: Client, tmp_path: Path) -> None:
    constants = "\n".join(f"  %c{n}: {kind} = {data}" for n, (kind, data, _) in enumerate(ELEMENTS))
    head = "(%x: f32[1]) -> (%y: f32[1]) {\n"
    file = program(tmp_path, f"{head}{constants}\n  %y: f32[1] = Neg(%x)\n  return %y\n}}")
    client.start(file)
    parameters = client.variables("Parameters")
    for number, (kind, _, expected) in enumerate(ELEMENTS):
        variable = parameters[f"%c{number}"]
        assert variable["value"].startswith(f"{kind} ["), variable
        found = [each["value"] for each in children(client, variable, filter="indexed")]
        assert found == expected, kind


def test_integers_are_in_base_16_on_request(client: Client, tmp_path: Path) -> None:
    body = """(%x: f32[2]) -> (%y: f32[2]) {
  %n: i64[3] = [255, -16, 0]
  %y: f32[2] = Neg(%x)
  return %y
}"""
    client.start(program(tmp_path, body), inputs={"x": "ones"})
    whole = client.variables("Parameters")["%n"]
    shown = children(client, whole, filter="indexed", format={"hex": True})
    assert [each["value"] for each in shown] == ["0xff", "-0x10", "0x0"]
    assert [each["value"] for each in children(client, whole, filter="indexed")] == ["255", "-16", "0"]
    floats = children(client, client.variables("Inputs")["%x"], filter="indexed", format={"hex": True})
    assert [each["value"] for each in floats] == ["1.0", "1.0"]


def test_sequences_scalars_unusual_names_and_inline_operands_are_shown(
    client: Client, tmp_path: Path
) -> None:
    body = """(%x: f32[3]) -> (%y: f32[3]) {
  %"odd name": f32[3] = Mul(%x, 2.5)
  %list: seq(f32[3]) = SequenceConstruct(%x, %"odd name")
  %one: f32[] = ReduceSum(%x, keepdims=0)
  %flags: bool[9] = [true, true, true, false, false, false, false, false, false]
  %y: f32[3] = SequenceAt(%list, 1)
  return %y
}"""
    client.start(program(tmp_path, body), inputs={"x": "arange"})
    assert values(list(client.variables("Inputs").values())) == {
        "%x": "f32[3] [0. 1. 2.]",
        "operand 2": "f32[] 2.5",
    }
    for _ in range(3):
        client.move("next")
    found = client.variables("Values")
    assert found['%"odd name"']["evaluateName"] == '%"odd name"'
    assert found["%one"]["value"] == "f32[] 3"
    assert found["%one"]["variablesReference"] == 0
    assert found["%list"]["value"] == "seq(f32[3]) 2 items"
    items = children(client, found["%list"])
    assert [each["value"] for each in items] == ["f32[3] [0. 1. 2.]", "f32[3] [0. 2.5 5. ]"]
    assert [each["value"] for each in children(client, items[1])] == ["0.0", "2.5", "5.0"]
    assert client.variables("Parameters")["%flags"]["value"] == "bool[9] 3 of 9 true"


@pytest.mark.parametrize(
    ("labels", "keys"),
    [('classlabels_strings=["a b", "c"]', ["a b", "c"]), ("classlabels_int64s=[3, 5]", ["3", "5"])],
)
def test_maps_open_to_their_entries(client: Client, tmp_path: Path, labels: str, keys: list[str]) -> None:
    (tmp_path / "maps.nnc").write_text(
        f"""#nncdbg 1
opset 18
opset ai.onnx.ml 1
graph @main(%x: f32[2,2]) -> (%l: i64[2,1], %m: seq(map({"str" if "strings" in labels else "i64"},f32))) {{
  %m = ai.onnx.ml.ZipMap(%x, {labels})
  %l: i64[2,1] = ArgMax(%x, axis=1)
  return %l, %m
}}
"""
    )
    client.start(tmp_path / "maps.nnc", inputs={"x": "arange"})
    client.move("next")
    maps = client.variables("Values")["%m"]
    assert maps["indexedVariables"] == 2
    first, second = children(client, maps)
    assert first["value"] == f"{{{keys[0]}: 0, {keys[1]}: 1}}"
    entries = children(client, first)
    assert values(entries) == {keys[0]: "0.0", keys[1]: "1.0"}
    assert [each["value"] for each in children(client, second, start=1, count=1)] == ["3.0"]
    assert entries[0]["variablesReference"] == 0


def test_a_loop_shows_carried_values_and_their_previous_values(client: Client) -> None:
    client.start(EXAMPLES / "refine_loop.nnc", inputs={"x": "ones"})
    for _ in range(3):
        client.move("stepIn")
    first = client.variables("Loop")
    assert values(list(first.values()))["iteration"] == "0"
    assert values(list(first.values()))["times"] == "30"
    for _ in range(10):
        client.move("stepIn")
    again = client.variables("Loop")
    assert again["iteration"]["value"] == "1"
    assert again["collect[0]"]["value"] == "1 values so far"
    assert again["%guess"]["variablesReference"] == first["%guess"]["variablesReference"]
    before = by_name(children(client, again["%guess"], filter="named"))["prev"]
    assert before["value"] == first["%guess"]["value"]
    assert before["evaluateName"] == "prev(%guess)"
    assert [each["value"] for each in children(client, before, filter="indexed", count=1)] == ["1.5"]
    assert "prev" not in by_name(children(client, first["%guess"], filter="indexed"))


def test_an_exception_stop_shows_operands_and_results_of_its_statement(client: Client) -> None:
    client.launch(EXAMPLES / "overflow_f16.nnc")
    client.request("setExceptionBreakpoints", {"filters": ["overflow", "inf", "nan"]})
    client.request("configurationDone")
    client.expect_stop("exception")
    frame = client.top_frame()
    line = Path(frame["source"]["path"]).read_text().splitlines()[frame["line"] - 1]
    ((output, variable),) = client.variables("Outputs", frame).items()
    assert line.strip().startswith(f"{output} ="), "the frame is at the op with the finding"
    assert "inf" in variable["value"]
    inputs = client.variables("Inputs", frame)
    assert inputs
    for name in inputs:
        assert name in line


def test_evicted_values_are_marked_and_recomputed_when_opened(client: Client, tmp_path: Path) -> None:
    steps = "\n".join(f"  %v{n + 1}: f32[20000] = Add(%v{n}, 1.0)" for n in range(40))
    body = f"(%v0: f32[20000]) -> (%v40: f32[20000]) {{\n{steps}\n  return %v40\n}}"
    client.start(program(tmp_path, body), inputs={"v0": "zeros"}, history=500_000)
    for _ in range(39):
        client.move("next")
    found = client.variables("Values")
    evicted = [each for each in found.values() if "was evicted" in each["value"]]
    assert evicted, "the budget keeps only some of the values"
    for each in evicted[:2]:
        assert each["presentationHint"]["lazy"]
        (again,) = children(client, each)
        number = int(each["name"].removeprefix("%v"))
        assert again["value"].startswith(f"f32[20000] min {number} mean {number} max {number}")
        assert children(client, again, filter="indexed", start=19_999)[0]["value"] == f"{number}.0"


def test_values_freed_by_the_arena_are_marked(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc", allocator="arena")
    for _ in range(6):
        client.move("next")
    texts = [each["value"] for each in client.variables("Values").values()]
    assert any("is no longer valid" in each for each in texts)
    assert any("min" in each for each in texts)
    memory = client.variables("Memory")
    assert memory["allocator"]["value"] == "arena"


def test_the_memory_scope_lists_buffers(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    client.move("next")
    memory = client.variables("Memory")
    assert memory["allocator"]["value"] == "debug"
    buffers = values(children(client, memory["buffers"]))
    assert "256 bytes, f32[8,8], computed by RandomNormal at line" in buffers["%wq"]
    assert buffers["%tokens"].endswith("given")


def test_stale_and_unknown_references_are_empty(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    assert client.request("variables", {"variablesReference": 424242})["variables"] == []
    assert client.request("scopes", {"frameId": 424242})["scopes"] == []
    for _ in range(6):
        client.move("next")
    client.move("stepIn")
    frame = client.top_frame()
    inner = client.variables("Values", frame)["%queries"]
    assert children(client, inner)
    client.move("stepOut")
    assert children(client, inner) == []
    assert client.request("scopes", {"frameId": frame["id"]})["scopes"] == []


def test_a_value_is_not_available_after_a_step_back(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    client.move("next")
    known = client.variables("Values")["%wq"]
    client.move("stepBack", "entry")
    assert client.variables("Values")["%wq"]["value"] == "<not computed>"
    assert children(client, known) == []


@pytest.mark.parametrize("allocator", ["debug", "plain"])
def test_the_end_of_the_program_shows_its_outputs(client: Client, allocator: str) -> None:
    client.start(EXAMPLES / "attention.nnc", stopOnExit=True, allocator=allocator)
    client.move("continue", "exit")
    assert list(client.variables("Outputs")) == ["%out"]
    assert "%mixed" in client.variables("Values")


LONG = "/model/decoder/layers.{}/self_attn/{}_output_0"


def test_long_names_are_shortened_and_stay_editable(client: Client, tmp_path: Path) -> None:
    add, relu, other = LONG.format(0, "Add"), LONG.format(0, "Relu"), LONG.format(1, "Relu")
    text = (
        f"(%x: f32[2]) -> (%{other}: f32[2]) {{\n"
        f"  %{add}: f32[2] = Add(%x, %x)\n  %{relu}: f32[2] = Relu(%{add})\n"
        f"  %{other}: f32[2] = Relu(%{relu})\n  return %{other}\n}}\n"
    )
    client.start(program(tmp_path, text))
    client.move("next")
    client.move("next")
    found = client.variables("Values")
    assert list(found) == [
        "%layers.0/self_attn/Relu_output_0",
        "%Add_output_0",
        "%x",
        "%layers.1/self_attn/Relu_output_0",
    ]
    assert found["%Add_output_0"]["evaluateName"] == f"%{add}"
    for name in ("%self_attn/Add_output_0", "%Add_output_0", f"%{add}", "%layers.0…Add_output_0"):
        frame = client.top_frame()["id"]
        assert client.request("evaluate", {"expression": name, "frameId": frame})["result"].startswith(
            "f32[2] ["
        )
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    values = next(scope["variablesReference"] for scope in scopes if scope["name"] == "Values")
    arguments = {"variablesReference": values, "name": "%Add_output_0"}
    watched = client.request("dataBreakpointInfo", arguments)
    assert watched["description"] == f"%{add} is written"
    client.request("setVariable", {**arguments, "value": "[3, -4]"})
    assert client.variables("Values")["%layers.0/self_attn/Relu_output_0"]["value"] == "f32[2] [3. 0.]"


def test_completion_finds_parts_of_names(client: Client, tmp_path: Path) -> None:
    add, relu = LONG.format(0, "Add"), LONG.format(0, "Relu")
    text = (
        f"(%x: f32[2]) -> (%{relu}: f32[2]) {{\n  %{add}: f32[2] = Add(%x, %x)\n"
        f"  %{relu}: f32[2] = Relu(%{add})\n  return %{relu}\n}}\n"
    )
    client.start(program(tmp_path, text))
    typed = "print %Relu"
    found = client.request("completions", {"text": typed, "column": len(typed) + 1})["targets"]
    assert [(each["label"], each["start"], each["length"]) for each in found] == [("%Relu_output_0", 7, 5)]
