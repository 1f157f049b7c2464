"""Micro programs of PyTorch's operators agree with the operators."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
from nncdbg.engine.ops.aten.decompositions import formula_of  # noqa: E402
from nncdbg.errors import GraphError, UnsupportedOp  # noqa: E402
from nncdbg.ir.records import TensorType  # noqa: E402

CALLS = [
    "%y: f32[3,5] = aten.mm.default(%a[3,4], %b[4,5])",
    "%y: f32[2,3,5] = aten.bmm.default(%a[2,3,4], %b[2,4,5])",
    "%y: f32[3,5] = aten.addmm.default(%c[5], %a[3,4], %b[4,5])",
    "%y: f32[3,5] = aten.addmm.default(%c[5], %a[3,4], %b[4,5], beta=0.5, alpha=2.0)",
    "%y: f32[3] = aten.addmv.default(%c[3], %a[3,4], %b[4])",
    "%y: f32[2,3,5] = aten.baddbmm.default(%c[2,3,5], %a[2,3,4], %b[2,4,5])",
    "%y: f32[2,6,4,4] = aten.convolution.default(%x[2,4,8,8], %w[6,4,3,3], %c[6], stride=[2,2], "
    "padding=[1,1], dilation=[1,1], transposed=false, output_padding=[0,0], groups=1)",
    "%y: f32[2,6,6,6] = aten.convolution.default(%x[2,4,8,8], %w[6,2,3,3], stride=[1,1], "
    "padding=[0,0], dilation=[1,1], transposed=false, output_padding=[0,0], groups=2)",
    "%y: f32[1,2,3,4], %l: f32[1,2,3] = aten._scaled_dot_product_flash_attention_for_cpu.default("
    "%a[1,2,3,4], %b[1,2,3,4], %c[1,2,3,4], is_causal=true)",
    "%y: f32[2,3], %m: f32[2,1], %r: f32[2,1] = aten.native_layer_norm.default(%a[2,3], %b[3], %c[3], "
    "normalized_shape=[3], eps=1e-05)",
    "%y: f32[2,3] = aten._softmax.default(%a[2,3], dim=-1, half_to_float=false)",
    "%y: f32[2,3] = aten._log_softmax.default(%a[2,3], dim=-1, half_to_float=false)",
    "%y: f32[2,3] = aten.gelu.default(%a[2,3])",
    "%y: f32[2,3] = aten.sigmoid.default(%a[2,3])",
    "%y: f32[2,3] = aten.sigmoid_.default(%a[2,3])",
    "%y: f32[2,3] = aten.addcdiv_.default(%a[2,3], %b[2,3], %c[2,3], value=-0.5)",
    "%y: f32[] = aten.linalg_vector_norm.default(%a[2,3])",
    '%y: f32[2,3] = aten._softmax_backward_data.default(%a[2,3], %b[2,3], dim=-1, input_dtype="f32")',
]


def program_of(call):
    """Return a program of one statement: `%a[3,4]` is an operand of that shape."""
    results, _, expression = call.partition(" = ")
    operands = {
        name: f"f32[{sizes}"
        for name, _, sizes in (
            word.partition("[")
            for word in expression.replace("(", " ").replace(",%", " %").split()
            if "%" in word
        )
    }
    inputs = {name: sizes.rstrip(",)") for name, sizes in operands.items()}
    for name, sizes in inputs.items():
        expression = expression.replace(f"{name}{sizes.removeprefix('f32')}", name)
    formal = ", ".join(f"{name}: {sizes}" for name, sizes in inputs.items())
    returned = ", ".join(part.split(":")[0] for part in results.split(", ") if part.startswith("%"))
    body = f"  {results} = {expression}\n  return {returned}\n"
    return nncdbg.Program.parse(f"#nncdbg 1\n\ngraph @main({formal}) -> ({returned}) {{\n{body}}}\n")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.partition(" = ")[2].partition("(")[0])
def test_a_micro_program_agrees_with_its_operator(call):
    program = program_of(call)
    draw = np.random.default_rng(0)
    inputs = {
        value.name: draw.uniform(0.5, 1.5, value.type.shape).astype(np.float32)
        for value in program.graph.inputs
    }
    debugger = nncdbg.Debugger(program, inputs, backend="torch", check="micro")
    debugger.catch("micro")
    assert debugger.run().reason == "end"
    assert debugger.micro is not None
    assert len(debugger.micro.coverage.statements) == 1, str(debugger.micro.coverage)


def test_stepping_into_an_operator_shows_its_statements():
    program = program_of(CALLS[0])
    debugger = nncdbg.Debugger(program, backend="torch")
    debugger.step_into(micro=True)
    assert debugger.frames[0].code.graph.name == "aten_mm_default"
    assert [node.op for node in debugger.frames[0].code.nodes] == [
        "aten.unsqueeze.default",
        "aten.unsqueeze.default",
        "aten.mul.Tensor",
        "aten.sum.dim_IntList",
    ]


def test_random_and_primitive_operators_have_no_micro_program():
    assert formula_of("aten.bernoulli.p") is None
    assert formula_of("aten.empty_like.default") is None
    assert formula_of("aten.no_such_operator.default") is None
    sqrt = formula_of("aten.sqrt.default")
    assert sqrt is not None
    assert sqrt({}, [TensorType("f32", (2,))]) == ""


def test_wrong_operands_are_an_error_that_names_the_operator():
    mm = formula_of("aten.mm.default")
    assert mm is not None
    with pytest.raises(GraphError, match="aten.mm.default has no micro program for these operands"):
        mm({}, [TensorType("f32", (2, 3)), TensorType("f32", (4, 5))])
    with pytest.raises(UnsupportedOp, match="known sizes"):
        mm({}, [TensorType("f32", None), TensorType("f32", (4, 5))])
