"""Each hint shows text that repairs the line: the test pastes it, and the program parses and compiles."""

from __future__ import annotations

import numpy as np
import pytest

from nncdbg.engine.debugger import Debugger
from nncdbg.errors import NncdbgError, ParseError
from nncdbg.ir.records import TensorType, tensor_only
from nncdbg.textual_repr import parse

SCALAR = TensorType("f32", ())

# (a wrong line, the text that its hint shows, the line with this text)
OUTSIDE = [
    ('opset "18"', "opset 18", "opset 18"),
    ("opset = 18", "opset 18", "opset 18"),
    ("opset ai.onnx", "opset 18", "opset 18"),
    ("store weights.npz", '"weights.npz"', 'store "weights.npz"'),
    ("store 'w.npz'", '"w.npz"', 'store "w.npz"'),
    ("prefix enc /model/", '"/model/"', 'prefix enc "/model/"'),
    ("stream 2 'cuda:0'", 'stream s2 "cuda:0"', 'stream s2 "cuda:0"'),
    ("state %b = zeros", "zeros for %w", "state %b: f32[2] = zeros for %w"),
    ("state %b: f32[N] = zeros", "f32[4]", "state %b: f32[4] = zeros"),
    (
        "state %b: f32[2] = 0",
        "ConstantOfShape([2], value=f32[1] [0.0])",
        "state %b: f32[2] = ConstantOfShape([2], value=f32[1] [0.0])",
    ),
    ("state %b: f32[2] = zeros for w", "%w", "state %b: f32[2] = zeros for %w"),
    ("state b: f32[2] = zeros for %w", "%b", "state %b: f32[2] = zeros for %w"),
    ("state %b: float32[2] = zeros for %w", "f32", "state %b: f32[2] = zeros for %w"),
    ("state %b: f32(2) = zeros for %w", "f32[2]", "state %b: f32[2] = zeros for %w"),
    ("state %b: f32[2] = RandomNormal(shape=(2))", "[2]", "state %b: f32[2] = RandomNormal(shape=[2])"),
    ("state %b: f32[2] = RandomNormal()", "shape=[1]", "state %b: f32[1] = RandomNormal(shape=[1])"),
    ("graph f() -> () {", "@f", "graph @f() -> () {"),
    ("graph @f(x: f32[2]) -> () {", "%x", "graph @f(%x: f32[2]) -> () {"),
    ("graph @f(%x f32[2]) -> () {", "%x: f32[2]", "graph @f(%x: f32[2]) -> () {"),
    ("graph @f(%x: f32) -> () {", "f32[]", "graph @f(%x: f32[]) -> () {"),
    ("graph @f(%x: float(2)) -> () {", "f32[2]", "graph @f(%x: f32[2]) -> () {"),
    ("graph @f(%x: [2]) -> () {", "f32[2]", "graph @f(%x: f32[2]) -> () {"),
    ("graph @f(%x: f32[2]) -> ()", "-> (%y: f32[2]) {", ""),
    ("def f(%x: f32[2]) -> () {", "graph @main(%x: f32[2])", ""),
]

STATEMENTS = [
    ("y = Relu(%x)", "%y", "%y = Relu(%x)"),
    ("%y = Relu(x)", "%x", "%y = Relu(%x)"),
    ("%y = Relu %x", "Relu(%x)", "%y = Relu(%x)"),
    ("%y = Relu(%x", ")", "%y = Relu(%x)"),
    ("%y = Relu(%x) // why", "# text", "%y = Relu(%x) # text"),
    ("%y == Relu(%x)", "= Relu(%x)", "%y = Relu(%x)"),
    ("%y = %x + %x", "Add(%x, %x)", "%y = Add(%x, %x)"),
    ("%y = -%x", "Neg(%x)", "%y = Neg(%x)"),
    ("%y = %x", "Identity(%x)", "%y = Identity(%x)"),
    ("if Not(%go) {\nyield\n} else {\nyield\n}", "%t = Not(%go)", "%t = Not(%go)"),
    ("%y = Relu(%x[0])", "%t = Gather(%x, 0)", "%t = Gather(%x, 0)"),
    ("%y = 5", "%y: i64[]", "%y: i64[] = 5"),
    ("%y = [1.0, 2.0]", "%y: f32[2]", "%y: f32[2] = [1.0, 2.0]"),
    ("%y: f32[2] = [1.0, 2.0, 3.0]", "f32[3]", "%y: f32[3] = [1.0, 2.0, 3.0]"),
    ("%y: f32[2] = (1.0, 2.0)", "[1.0, 2.0]", "%y: f32[2] = [1.0, 2.0]"),
    ("%y: bool[] = True", "true", "%y: bool[] = true"),
    ("%y: bool[] = 1", "true", "%y: bool[] = true"),
    ("%y: i64[] = 5.0", "5", "%y: i64[] = 5"),
    ("%y: f32[] = NaN", "nan", "%y: f32[] = nan"),
    ("%y: f32[] = 1_000.0", "1000.0", "%y: f32[] = 1000.0"),
    ("%y: f32[] = 0x10", "16", "%y: f32[] = 16"),
    ("%y: str[] = 'a'", '"a"', '%y: str[] = "a"'),
    ("%y: str[] = abc", '"abc"', '%y: str[] = "abc"'),
    ("%y = Add(%x, f32[2] [1.0, 2.0])", "%c: f32[2] = [1.0, 2.0]", "%c: f32[2] = [1.0, 2.0]"),
    ("%y = ReduceMean(%x, axes=[0])", "[0])", "%y = ReduceMean(%x, [0])"),
    ("%y = ReduceMean(%x, dim=0)", "[0])", "%y = ReduceMean(%x, [0])"),
    ("%y = ReduceMean(%x, [0], keepdim=1)", "keepdims", "%y = ReduceMean(%x, [0], keepdims=1)"),
    ('%y = ReduceMean(%x, [0], keepdims="1")', "keepdims=1", "%y = ReduceMean(%x, [0], keepdims=1)"),
    ("%y = ReduceMean(%x, [0], keepdims=True)", "true", "%y = ReduceMean(%x, [0], keepdims=true)"),
    ("%y: f32[] = ReduceMean(%x, [0])", "keepdims=0", "%y: f32[] = ReduceMean(%x, [0], keepdims=0)"),
    ("%y = Softmax(%x, dim=-1)", "axis", "%y = Softmax(%x, axis=-1)"),
    ("%y = Softmax(%x, axis=1.0)", "axis=", "%y = Softmax(%x, axis=0)"),
    ("%y = Softmax(%x, axis: 0)", "axis=", "%y = Softmax(%x, axis=0)"),
    ("%y = Transpose(%x, [0])", "perm=", "%y = Transpose(%x, perm=[0])"),
    ("%y = Cast(%x, to=f16)", "10", "%y = Cast(%x, to=10)"),
    ('%y = Cast(%x, to="f16")', "to=10", "%y = Cast(%x, to=10)"),
    ("%y: f32[3] = Relu(%x)", "%y: f32[2]", "%y: f32[2] = Relu(%x)"),
    ("%y, %z = Relu(%x)", "%y = Relu(", "%y = Relu(%x)"),
    ("%y = relu(%x)", "Relu", "%y = Relu(%x)"),
    ("%y = torch.relu(%x)", "Relu", "%y = Relu(%x)"),
    ("%y = SGD(%x, %x, lr=0.1)", "nncdbg.SGD", "%y = nncdbg.SGD(%x, %x, lr=0.1)"),
    ("%y = FusedMatMul(%x, %x)", "com.microsoft.FusedMatMul", "%y = com.microsoft.FusedMatMul(%x, %x)"),
    ("%y = @f(%x, %x)", "@f(%a)", "%a = Relu(%x)\n%y = @f(%a)"),
    ("%l, %s = @loss(%x)", ", saved %s", "%l, saved %s = @loss(%x)"),
    ("%l, saved s = @loss(%x)", "%l, saved %s", "%l, saved %s = @loss(%x)"),
    ("%l = @loss(%x) saved %s", "%l, saved %s", "%l, saved %s = @loss(%x)"),
    ("%l = @loss(%x, saved)", "%l, saved %s", "%l, saved %s = @loss(%x)"),
    (
        "%l, saved %saved = @loss(%x)\n%d_b: f32[] = 1.0\n%d = @g(1.0)",
        "@g(%d_b, %saved)",
        "%l, saved %saved = @loss(%x)\n%d_b: f32[] = 1.0\n%d = @g(%d_b, %saved)",
    ),
    ("update %w", "update %w = ", "update %w = %w"),
    ("for %i in 10 {\n}", "while (%s: f32[2] = %x) count %i: i64[] times 10 {", ""),
    ("if (%go) {\nyield\n} else {\nyield\n}", "%go", "if %go {\nyield\n} else {\nyield\n}"),
    ("if %go:\nyield\n} else {\nyield\n}", "if %c @then {", ""),
    (
        "while (%s = %x) {\nyield\n}",
        "next %s = %s",
        "while (%s = %x) times 1 {\nnext %s = %s\n}",
    ),
    ("return", "return %q", ""),
    ("yield %x", "return %q", ""),
]


def of_statement(line: str) -> str:
    return f"""\
state %w: f32[2] = [1.0, 2.0]
graph @main(%x: f32[2]) -> (%q: f32[2]) {{
%go: bool[] = true
{line}
%q = Neg(%x)
return %q
}}
graph @f(%a: f32[2]) -> (%b: f32[2]) {{
%b = Relu(%a)
return %b
}}
graph @loss(%a: f32[2]) -> (%b: f32[]) {{
%b = ReduceSum(%a, keepdims=0)
return %b
}}
backward @g of @loss by (%a)
"""


MAIN = "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n%y = Relu(%x)\nreturn %y\n}\n"


def of_program(line: str) -> str:
    before = "state %w: f32[2] = [1.0, 2.0]\n" if line.startswith("state") else ""
    body = "return\n}\n" if line.startswith(("graph", "def")) else ""
    return f"{before}{line}\n{body}{MAIN}"


def run(text: str) -> None:
    program = parse(text)
    if not program.stores:
        types = {value.name: tensor_only(value.type) for value in program.graph.inputs}
        inputs = {name: np.ones([2] if type != SCALAR else [], "f4") for name, type in types.items()}
        stop = Debugger(program, inputs).run()
        if stop.error is not None:
            raise stop.error


ROWS = [(of_program(wrong), shown, of_program(right)) for wrong, shown, right in OUTSIDE] + [
    (of_statement(wrong), shown, right and of_statement(right)) for wrong, shown, right in STATEMENTS
]


@pytest.mark.parametrize(
    ("wrong", "shown", "right"), ROWS, ids=[row[0].replace("\n", " ")[:40] for row in OUTSIDE + STATEMENTS]
)
def test_the_text_of_a_hint_repairs_the_line(wrong: str, shown: str, right: str) -> None:
    with pytest.raises(NncdbgError) as caught:
        run(wrong)
    errors = caught.value.errors if isinstance(caught.value, ParseError) else (caught.value,)
    assert any(shown in (error.hint or "") for error in errors), [error.hint for error in errors]
    assert all(error.excerpt is not None for error in errors)
    if right:
        assert shown in right
        run(right)


def test_an_error_in_a_header_is_the_only_one_of_its_graph() -> None:
    with pytest.raises(ParseError) as caught:
        parse("graph main:\n%y = Relu(%x)\nreturn %y\n}\n")
    assert len(caught.value.errors) == 1
