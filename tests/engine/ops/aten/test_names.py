"""What the name of a statement in the user's model is called."""

import pytest

from nncdbg.ir.records import Location, Node
from nncdbg.text.torch_names import named_place, origin_text


@pytest.mark.parametrize(
    ("op", "name", "text"),
    [
        ("Conv", "/conv1/Conv", 'node "/conv1/Conv"'),
        ("aten.addmm.default", "blocks.0.fc", 'module "blocks.0.fc"'),
        ("torch.view", "fc", 'module "fc"'),
        ("update", "fc", 'module "fc"'),
        ("aten.mm.default", "blocks.0.fc AddmmBackward0", 'module "blocks.0.fc", node "AddmmBackward0"'),
        ("aten.div.Tensor", "SqrtBackward0", 'node "SqrtBackward0"'),
        ("aten.mul.Tensor", "net FunctionBackward", 'module "net", node "FunctionBackward"'),
        ("aten.copy.default", "net CopyBackwards", 'module "net", node "CopyBackwards"'),
        ("aten.detach.default", "fc.weight AccumulateGrad", 'parameter "fc.weight", node "AccumulateGrad"'),
        ("aten.add.Tensor", "AccumulateGrad", 'node "AccumulateGrad"'),
    ],
)
def test_name_of_a_recorded_statement_is_a_module_or_an_autograd_node(op, name, text):
    assert named_place(op, name) == text
    assert origin_text(Node(op, (), (), location=Location("net.py", 3, name))) == f"net.py:3, {text}"


def test_statement_without_a_name_has_its_line():
    assert origin_text(Node("aten.mm.default", (), (), location=Location("net.py", 3))) == "net.py:3"
    assert origin_text(Node("aten.mm.default", (), ())) == ""
