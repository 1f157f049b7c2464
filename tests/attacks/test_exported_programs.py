"""Attacks by a `.pt2` file: no byte of it reaches an unrestricted unpickler, `eval` or `sympify`."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import sympy  # type: ignore[import-untyped] # noqa: E402
import torch  # noqa: E402
from torch._export.serde.serialize import serialize  # noqa: E402

import nncdbg  # noqa: E402
from tests.attacks.conftest import MARKER  # noqa: E402

Command = Callable[..., tuple[int, str, str]]
Members = dict[str, bytes]

CODE = f"open('{MARKER}', 'w')"


class Opens:
    """Creates the marker when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (MARKER, "w")


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.relu, torch.neg, (self.fc(x) + self.shift,))


@pytest.fixture(scope="module")
def exported() -> Any:
    torch.manual_seed(0)
    sizes = {"x": {0: torch.export.Dim("N", min=2, max=64)}}
    return torch.export.export(Net(), (torch.randn(3, 4),), dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def good(exported: Any) -> Members:
    data = io.BytesIO()
    torch.export.save(exported, data)
    with zipfile.ZipFile(data) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


def save(members: Members, root: str = "m/", compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile("m.pt2", "w", compression) as file:
        for name, data in members.items():
            file.writestr(root + name, data)


def pickled(content: Any) -> bytes:
    data = io.BytesIO()
    torch.save(content, data)
    return data.getvalue()


PROGRAM, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS, INPUTS = "data/constants/model_constants_config.json", "data/sample_inputs/model.pt"


def edited(member: str, change: Callable[[Any], Any]) -> Callable[[Members], None]:
    """Return an attack that changes the JSON of a member."""

    def attack(members: Members) -> None:
        content = json.loads(members[member])
        change(content)
        members[member] = json.dumps(content).encode()

    return attack


def graph(change: Callable[[Any], Any]) -> Callable[[Members], None]:
    return edited(PROGRAM, lambda program: change(program["graph_module"]["graph"]))


def size(text: str) -> Callable[[Members], None]:
    """Return an attack by a symbolic size."""
    value = {"as_expr": {"expr_str": text, "hint": {"as_int": 3}}}
    return graph(lambda made: made["tensor_values"]["x"]["sizes"].__setitem__(0, value))


def target(name: str) -> Callable[[Members], None]:
    return graph(lambda made: made["nodes"][0].update(target=name))


def argument(value: Any) -> Callable[[Members], None]:
    return graph(lambda made: made["nodes"][0]["inputs"].append({"name": "x", "arg": value, "kind": 1}))


def payload(member: str, **fields: Any) -> Callable[[Members], None]:
    """Return an attack that changes the description of the first weight or constant."""
    return edited(member, lambda made: next(iter(made["config"].values())).update(fields))


def shape(**fields: Any) -> Callable[[Members], None]:
    return edited(WEIGHTS, lambda made: next(iter(made["config"].values()))["tensor_meta"].update(fields))


def put(**members: bytes) -> Callable[[Members], None]:
    return lambda made: made.update({name.replace("__", "/"): data for name, data in members.items()})


def constant(path: str, data: bytes) -> Callable[[Members], None]:
    """Return an attack by a constant that is unpickled."""

    def attack(members: Members) -> None:
        described = {"path_name": path, "is_param": False, "use_pickle": True, "tensor_meta": None}
        members[CONSTANTS] = json.dumps({"config": {"c": described}}).encode()
        members[f"data/constants/{path}"] = data

    return attack


def both(*attacks: Callable[[Members], None]) -> Callable[[Members], None]:
    def attack(members: Members) -> None:
        for each in attacks:
            each(members)

    return attack


def deep_branches(members: Members) -> None:
    """Put the graph of a branch into itself 400 times."""
    program = json.loads(members[PROGRAM])
    (branch,) = (each for each in program["graph_module"]["graph"]["nodes"] if "cond" in each["target"])
    inner = json.dumps(branch["inputs"][1]["arg"]["as_graph"]["graph"])
    opening = '{"as_graph": {"name": "g", "graph": {"inputs": [], "outputs": [], "tensor_values": {}, '
    opening += (
        '"sym_int_values": {}, "sym_bool_values": {}, "nodes": [{"target": "torch.ops.higher_order.cond", '
    )
    opening += '"outputs": [], "metadata": {}, "inputs": [{"name": "", "arg": '
    closing = ', "kind": 1}]}]}}}'
    nested = opening * 400 + f'{{"as_graph": {{"name": "g", "graph": {inner}}}}}' + closing * 400
    members[PROGRAM] = json.dumps(program).replace(json.dumps(branch["inputs"][1]["arg"]), nested).encode()


TREE = json.dumps(
    [1, {"type": "builtins.dict", "context": '{"__enum__": true, "fqn": "evil:E", "name": "A"}',
         "children_spec": []}]
)  # fmt: skip
CALL = {"inputs": [], "outputs": [], "in_spec": TREE, "out_spec": TREE}

SIZE, NAME = "a size may not contain", "is not a name"
OPERATOR, KEPT = "is not an operator that nncdbg can open", "the saved inputs are not used"
CODE_INSIDE = "it contains more than tensors and numbers"

ATTACKS: dict[str, tuple[Callable[[Members], Any], int, str]] = {
    "pickle in the inputs": (lambda made: made.update({INPUTS: pickled(((Opens(),), {}))}), 0, KEPT),
    "bare pickle in the inputs": (lambda made: made.update({INPUTS: pickle.dumps(Opens())}), 0, KEPT),
    "function in the inputs": (lambda made: made.update({INPUTS: pickled(((os.system,), {}))}), 0, KEPT),
    "no archive in the inputs": (lambda made: made.update({INPUTS: b"\x80\x02."}), 0, KEPT),
    "pickled weight": (
        both(payload(WEIGHTS, use_pickle=True), put(data__weights__weight_0=pickled(Opens()))),
        3,
        CODE_INSIDE,
    ),
    "pickled constant": (constant("tensor_0", pickled(Opens())), 3, CODE_INSIDE),
    "bare pickled constant": (constant("tensor_0", pickle.dumps(Opens())), 3, CODE_INSIDE),
    "object of C++": (constant("custom_obj_0", pickle.dumps(Opens())), 3, "an object of Python or C++"),
    "opaque object": (constant("opaque_obj_0", pickle.dumps(Opens())), 3, "an object of Python or C++"),
    "weights in the old form": (put(**{"data__weights__model.pt": pickled({"w": Opens()})}), 3, CODE_INSIDE),
    "constants in the old form": (
        put(**{"data__constants__model.pt": pickled({"w": Opens()})}),
        3,
        CODE_INSIDE,
    ),
    "weights that are a list": (put(**{"data__weights__model.pt": pickled([1])}), 3, "other objects"),
    "path of a weight": (payload(WEIGHTS, path_name="../../../etc/passwd"), 3, NAME),
    "code as a size": (size(CODE), 3, SIZE),
    "import in a size": (size("__import__('os').system('touch " + MARKER + "')"), 3, SIZE),
    "attribute in a size": (size("s77.__class__.__mro__"), 3, SIZE),
    "lambda in a size": (size("(lambda: 1)()"), 3, SIZE),
    "text in a size": (size("'x' * 10"), 3, SIZE),
    "comprehension in a size": (size("[i for i in range(9)]"), 3, SIZE),
    "function of sympy in a size": (size("lambdify(x, y)"), 3, SIZE),
    "keyword in a size": (size("Symbol('s', integer=open)"), 3, SIZE),
    "code as a symbol": (size(f'Symbol("{CODE}", integer=True)'), 3, "is not the name of a size"),
    "tower of powers": (size("9**9**9**9"), 3, "a power above"),
    "huge shift": (size("LShift(1, 10**9)"), 3, "a size"),
    "huge power of a symbol": (size("Symbol('s77')**999999999"), 3, "a power above"),
    "huge number in a size": (size("9" * 4000), 3, SIZE),
    "huge float in a size": (size("Float('1e99999')"), 3, "not finite"),
    "deep parentheses": (size("(" * 9000 + "1" + ")" * 9000), 3, "is not an expression"),
    "deep signs": (size("-" * 40000 + "1"), 3, "is not an expression"),
    "deep calls": (size("Add(" * 150 + "1" + ")" * 150), 3, "nested more than"),
    "long sum": (size("+".join(["s77"] * 30000)), 3, "the limit is"),
    "wrong number of arguments": (size("FloorDiv(1)"), 3, "cannot be computed"),
    "division by zero in a size": (size("FloorDiv(1, 0)"), 3, "cannot be computed"),
    "null byte in a size": (size("\0"), 3, "the size is"),
    "import by a tree": (
        edited(
            PROGRAM,
            lambda made: made["graph_module"].update(module_call_graph=[{"fqn": "", "signature": CALL}]),
        ),
        0,
        "",
    ),
    "code as a guard": (edited(PROGRAM, lambda made: made.update(guards_code=[CODE])), 0, ""),
    "code as an input": (
        lambda made: made.update({PROGRAM: made[PROGRAM].replace(b'"x"', f'"x={CODE}"'.encode())}),
        3,
        NAME,
    ),
    "code as a node": (graph(lambda made: made["nodes"][0].update(name=f"a:{CODE}")), 3, NAME),
    "newline in a name": (graph(lambda made: made["nodes"][0].update(name="a\n" + CODE)), 3, NAME),
    "code as a branch": (
        argument({"as_graph": {"name": f'g"]+{CODE}', "graph": {}}}),
        3,
        NAME,
    ),
    "quote in the name of a weight": (
        edited(WEIGHTS, lambda made: made["config"].update({f'a")+{CODE}+("': {}})),
        3,
        "is not the name of a module or tensor",
    ),
    "os.system": (target("torch.os.system"), 3, OPERATOR),
    "torch.load": (target("torch.load"), 3, OPERATOR),
    "torch.hub.load": (target("torch.hub.load"), 3, OPERATOR),
    "load_library": (target("torch.ops.load_library"), 3, OPERATOR),
    "attribute of an operator": (target("torch.ops.aten.add.Tensor.__class__"), 3, OPERATOR),
    "class of the operators": (target("torch.ops.__class__.x.y"), 3, OPERATOR),
    "methodcaller": (target("_operator.methodcaller"), 3, OPERATOR),
    "module of math": (target("math.__loader__.load_module"), 3, OPERATOR),
    "extension": (target("#evil:op"), 3, OPERATOR),
    "builtin": (target("builtins.open"), 3, OPERATOR),
    "operator that opens a file": (target("torch.ops.aten.from_file.default"), 3, OPERATOR),
    "collective": (target("torch.ops._c10d_functional.all_reduce.default"), 3, OPERATOR),
    "operator of C++ objects": (target("torch.ops.higher_order.call_torchbind"), 3, OPERATOR),
    "kernel of Triton": (target("torch.ops.higher_order.triton_kernel_wrapper_mutation"), 3, OPERATOR),
    "operator as an argument": (argument({"as_operator": "torch.os.system"}), 3, OPERATOR),
    "object as an argument": (
        argument({"as_custom_obj": {"name": "c", "class_fqn": "__torch__.X"}}),
        3,
        NAME,
    ),
    "hostile metadata": (
        graph(lambda made: made["nodes"][0]["metadata"].update(source_fn_stack=f"x,{CODE}", custom="[" * 99)),
        0,
        "",
    ),
    "compiled code": (put(**{"data__aotinductor__model__model.so": b"\x7fELF"}), 0, ""),
    "only compiled code": (
        lambda made: [made.pop(PROGRAM), made.update({"data/aotinductor/model/model.so": b"\x7fELF"})],
        3,
        "contains no graph",
    ),
    "path outside the archive": (put(**{"..__..__OWNED": b"x"}), 0, ""),
    "deep JSON": (lambda made: made.update({PROGRAM: b"[" * 10**6}), 3, "deep"),
    "JSON cut off": (lambda made: made.update({PROGRAM: made[PROGRAM][:-9]}), 3, "truncated"),
    "JSON that is no text": (lambda made: made.update({PROGRAM: b"\xff\xfe"}), 3, "malformed"),
    "JSON of another kind": (lambda made: made.update({PROGRAM: b"[1]"}), 3, "an object is expected"),
    "empty JSON": (lambda made: made.update({PROGRAM: b"{}"}), 3, "is missing"),
    "deep branches": (deep_branches, 3, "deep"),
    "wrong type": (graph(lambda made: made.update(nodes={"a": 1})), 3, "a list is expected"),
    "number for a name": (graph(lambda made: made["nodes"][0].update(name=7)), 3, "a text is expected"),
    "unknown dtype": (graph(lambda made: made["tensor_values"]["x"].update(dtype=999)), 3, "unknown number"),
    "unknown argument": (argument({"as_tomorrow": 1}), 3, "unknown kind 'as_tomorrow' of Argument"),
    "two kinds of argument": (argument({"as_int": 1, "as_none": True}), 3, "unknown kind"),
    "unknown device": (
        graph(lambda made: made["tensor_values"]["x"].update(device={"type": "evil", "index": None})),
        3,
        "torch cannot read",
    ),
    "size of 2^62": (
        graph(lambda made: made["tensor_values"]["x"].update(sizes=[{"as_int": 2**62}, {"as_int": 2**62}])),
        3,
        "torch cannot read",
    ),
    "reference to nothing": (
        graph(lambda made: made.update(outputs=[{"as_tensor": {"name": "nowhere"}}])),
        3,
        "torch cannot read",
    ),
    "name twice": (graph(lambda made: made["nodes"].append(made["nodes"][0])), 3, "torch cannot read"),
    "range of 10^12 symbols": (
        edited(
            PROGRAM,
            lambda made: made["range_constraints"].update(u999999999999={"min_val": 0, "max_val": 1}),
        ),
        3,
        "is not a size",
    ),
    "huge weight": (shape(sizes=[{"as_int": 2**62}, {"as_int": 4}]), 3, "elements, but only"),
    "expanded weight": (
        shape(sizes=[{"as_int": 2**40}], strides=[{"as_int": 0}]),
        3,
        "elements, but only",
    ),
    "negative size": (shape(sizes=[{"as_int": -1}]), 3, "no constant sizes"),
    "stride outside": (shape(strides=[{"as_int": 2**40}, {"as_int": 1}]), 3, "does not fit"),
    "offset outside": (shape(storage_offset={"as_int": 2**62}), 3, "does not fit"),
    "symbolic size of a weight": (
        shape(sizes=[{"as_expr": {"expr_str": CODE, "hint": None}}]),
        3,
        SIZE,
    ),
    "weight without bytes": (put(data__weights__weight_0=b""), 3, "does not fit into its 0 bytes"),
    "weight without a shape": (payload(WEIGHTS, tensor_meta=None), 3, "is missing"),
    "missing weight": (lambda made: made.pop("data/weights/weight_0"), 3, "is missing"),
    "version of tomorrow": (put(archive_version=b"7"), 3, "is not known"),
    "no format": (lambda made: made.pop("archive_format"), 3, "no member archive_format"),
    "schema of tomorrow": (
        edited(PROGRAM, lambda made: made["schema_version"].update(major=9)),
        3,
        "has version 9 of torch's schema",
    ),
    "field of tomorrow": (edited(PROGRAM, lambda made: made.update(tomorrow={"x": CODE})), 0, ""),
    "minor version of tomorrow": (
        edited(PROGRAM, lambda made: made["schema_version"].update(minor=99)),
        0,
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attack", "code", "message"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_by_a_member_is_one_error_or_a_note(
    command: Command, good: Members, attack: Callable[[Members], Any], code: int, message: str
) -> None:
    members = dict(good)
    attack(members)
    save(members)
    got, out, err = command("print", "m.pt2")
    assert message in err
    assert got == code, err
    assert ("graph @main" in out) == (code == 0)
    assert len(err) < 2000


def bomb() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(10**7))
    return data.getvalue()


def test_compressed_members_are_refused(command: Command, good: Members) -> None:
    save({**good, "data/weights/weight_0": bytes(10**8)}, compression=zipfile.ZIP_DEFLATED)
    code, _, err = command("print", "m.pt2")
    assert code == 3
    assert "it is compressed" in err


def test_compressed_data_inside_a_member_is_refused(command: Command, good: Members) -> None:
    save({**good, INPUTS: bomb()})
    code, out, err = command("print", "m.pt2")
    assert (code, "graph @main" in out) == (0, True)
    assert "it contains compressed data" in err


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_archive_is_one_error(command: Command, good: Members, share: float) -> None:
    save(good)
    Path("m.pt2").write_bytes(Path("m.pt2").read_bytes()[: int(os.path.getsize("m.pt2") * share)])
    code, _, err = command("print", "m.pt2")
    assert code == 3
    assert "is not an archive of torch.export.save" in err


def test_damaged_bytes_of_a_weight_are_one_error(command: Command, good: Members) -> None:
    save(good)
    data = Path("m.pt2").read_bytes()
    Path("m.pt2").write_bytes(data.replace(good["data/weights/weight_0"], bytes(32)))
    code, _, err = command("print", "m.pt2")
    assert code == 3
    assert "Bad CRC" in err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_is_not_opened(command: Command, make: Callable[[str], None]) -> None:
    make("m.pt2")
    assert command("print", "m.pt2")[0] == 3


def old_layout(exported: Any) -> Members:
    made = serialize(exported)
    return {
        "version": b"8.8",
        "serialized_exported_program.json": made.exported_program,
        "serialized_state_dict.pt": made.state_dict,
        "serialized_constants.pt": made.constants,
        "serialized_example_inputs.pt": made.example_inputs,
    }


def test_the_layout_of_torch_2_7_is_read(command: Command, exported: Any) -> None:
    save(old_layout(exported), root="")
    code, out, _ = command("print", "m.pt2")
    assert (code, "%fc.weight" in out) == (0, True)


@pytest.mark.parametrize("member", ["state_dict", "constants"])
def test_a_pickle_in_the_layout_of_torch_2_7_is_refused(command: Command, exported: Any, member: str) -> None:
    save({**old_layout(exported), f"serialized_{member}.pt": pickled({"a": Opens()})}, root="")
    code, _, err = command("print", "m.pt2")
    assert code == 3
    assert CODE_INSIDE in err


def test_no_text_of_the_file_is_parsed_by_sympy_and_nothing_is_unpickled(
    good: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes reach sympy as expressions, and only the restricted unpickler of torch is used."""
    save(good)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("an unrestricted reader was called")

    parsed: list[Any] = []
    real = sympy.sympify

    def sympify(given: Any, *others: Any, **options: Any) -> Any:
        parsed.append(given)
        return real(given, *others, **options)

    monkeypatch.setattr(sympy, "sympify", sympify)
    for name in ("Unpickler", "load", "loads"):
        monkeypatch.setattr(pickle, name, refused)
    program = nncdbg.load("m.pt2")
    assert str(program.graph.inputs[0].type) == "f32[s77,4]"
    assert program.saved is not None
    assert program.saved.inputs["x"].shape == (3, 4)
    assert parsed
    assert not any(isinstance(each, str) for each in parsed)
