"""Random executable ONNX models over f64[3]: elementwise, reduce and shape nodes, `If`, `Loop`, `Scan`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

F64, I64, BOOL = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL

UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Softmax", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")
KINDS = ("unary", "binary", "binary", "reduce", "shape", "where", "branch", "loop", "scan")
SCOPES = ("", "/a", "/a/b", "/c")


def typed(name, shape=(3,), kind=F64):
    return helper.make_tensor_value_info(name, kind, shape)


class Writer:
    """Generates the nodes of a model graph by graph, with names that are unique in the model."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes = []
        self.count = 0
        self.depth = 0

    def fresh(self):
        self.count += 1
        return f"v{self.count}"

    def pick(self, visible):
        return self.draw(st.sampled_from(visible))

    def add(self, op, inputs, outputs=1, **attributes):
        """Add a node in a random scope, and return the name of its output, or of all if there are several."""
        names = [self.fresh() for _ in range(outputs)]
        scope = self.draw(st.sampled_from(SCOPES))
        name = f"{scope}/{op}_{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, *numbers, kind=np.int64, shape=None):
        array = np.array(numbers, kind)
        array = array if shape is None else array.reshape(shape)
        return self.add("Constant", [], value=numpy_helper.from_array(array))

    def block(self, visible, size):
        """Add `size` nodes over the visible values, all f64[3]; return the old and new values."""
        visible = list(visible)
        for _ in range(size):
            kind = self.draw(st.sampled_from(KINDS))
            if self.depth >= 2 and kind in ("branch", "loop", "scan"):
                kind = "binary"
            visible.append(getattr(self, kind)(visible))
        return visible

    def inner(self, visible, size, inputs, outputs):
        """A subgraph; `outputs` returns the typed outputs from the values that are visible at its end."""
        nodes, self.nodes = self.nodes, []
        self.depth += 1
        results = outputs(self.block(visible, size))
        self.depth -= 1
        nodes, self.nodes = self.nodes, nodes
        return helper.make_graph(nodes, f"body_{self.count}", inputs, results)

    def unary(self, visible):
        return self.add(self.draw(st.sampled_from(UNARY)), [self.pick(visible)])

    def binary(self, visible):
        return self.add(self.draw(st.sampled_from(BINARY)), [self.pick(visible), self.pick(visible)])

    def reduce(self, visible):
        op, keep = self.draw(st.sampled_from(REDUCE)), self.draw(st.integers(0, 1))
        return self.add("Add", [self.add(op, [self.pick(visible)], keepdims=keep), self.pick(visible)])

    def shape(self, visible):
        v, w, k = self.pick(visible), self.pick(visible), self.draw(st.integers(0, 2))
        match self.draw(st.integers(0, 4)):
            case 0:
                both = self.add("Concat", [v, w], axis=0)
                return self.add("Slice", [both, self.constant(k), self.constant(k + 3)])
            case 1:
                left, right = self.add("Split", [v, self.constant(1, 2)], outputs=2)
                return self.add("Concat", [right, left], axis=0)
            case 2:
                return self.add("Gather", [v, self.constant(2, k, 0)])
            case 3:
                column = self.add("Reshape", [v, self.constant(3, 1)])
                row = self.add("Transpose", [column], perm=[1, 0])
                wide = self.add("Expand", [row, self.constant(k + 1, 3)])
                return self.add("ReduceSum", [wide, self.constant(0)], keepdims=0)
            case _:
                mean = self.add("ReduceMean", [v], keepdims=1)
                return self.add("Expand", [mean, self.add("Shape", [w])])

    def where(self, visible):
        v, w = self.pick(visible), self.pick(visible)
        return self.add("Where", [self.add("Less", [v, w]), w, v])

    def below(self, value, number):
        """Add a test whether the largest element is below a number that no exact result equals."""
        peak = self.add("ReduceMax", [value], keepdims=0)
        return self.add("Less", [peak, self.constant(number, kind=np.float64, shape=())])

    def branch(self, visible):
        condition = self.below(self.pick(visible), 0.4837)

        def arm():
            return self.inner(visible, self.draw(st.integers(1, 2)), [], lambda seen: [typed(seen[-1])])

        return self.add("If", [condition], then_branch=arm(), else_branch=arm())

    def loop(self, visible):
        """Add a loop with two carried values, the second the previous first, and a collected one."""
        number, going, first, second = (self.fresh() for _ in range(4))
        bounded = self.draw(st.booleans())

        def outputs(seen):
            go = self.below(first, 1.9137) if bounded else self.add("Identity", [going])
            old = self.add("Identity", [first])
            kept = self.add("Identity", [self.pick(seen)])
            return [typed(go, (), BOOL), typed(seen[-1]), typed(old), typed(kept)]

        inputs = [typed(number, (), I64), typed(going, (), BOOL), typed(first), typed(second)]
        size = self.draw(st.integers(1, 3))
        times = self.constant(self.draw(st.integers(0, 4)), shape=())
        start = "" if self.draw(st.booleans()) else self.constant(True, kind=bool, shape=())
        given = [times, start, self.pick(visible), self.pick(visible)]
        body = self.inner([*visible, first, second], size, inputs, outputs)
        last, old, kept = self.add("Loop", given, outputs=3, body=body)
        collected = self.add("ReduceSum", [kept, self.constant(0)], keepdims=0)
        return self.add("Add", [self.add("Add", [last, old]), collected])

    def scan(self, visible):
        """Add a scan with one state over the rows of two values."""
        state, row = self.fresh(), self.fresh()

        def outputs(seen):
            return [typed(seen[-1]), typed(self.add("Identity", [self.pick(seen)]))]

        rows = [self.add("Unsqueeze", [self.pick(visible), self.constant(0)]) for _ in range(2)]
        given = [self.pick(visible), self.add("Concat", rows, axis=0)]
        direction = self.draw(st.integers(0, 1))
        body = self.inner([*visible, state, row], 2, [typed(state), typed(row)], outputs)
        last, seen = self.add(
            "Scan", given, outputs=2, body=body, num_scan_inputs=1, scan_input_directions=[direction]
        )
        return self.add("Sub", [self.add("ReduceMax", [seen, self.constant(0)], keepdims=0), last])


@st.composite
def models(draw):
    """An ONNX model with inputs x and z and output y, f64[3]; its nodes have scopes in their names."""
    writer = Writer(draw)
    values = writer.block(["x", "z"], draw(st.integers(1, 5)))
    writer.nodes.append(helper.make_node("Identity", [values[-1]], ["y"]))
    graph = helper.make_graph(writer.nodes, "main", [typed("x"), typed("z")], [typed("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


OTHER_OPS = (
    *(
        "Add",
        "Cast",
        "Concat",
        "Constant",
        "Conv",
        "Einsum",
        "Gather",
        "Gemm",
        "If",
        "LSTM",
        "Loop",
        "MaxPool",
    ),
    *("MaxRoiPool", "NonMaxSuppression", "OneHot", "Optional", "Pad", "QuantizeLinear", "Range", "Reshape"),
    *(
        "Resize",
        "Scan",
        "SequenceAt",
        "Shape",
        "Slice",
        "Split",
        "SplitToSequence",
        "StringNormalizer",
        "TopK",
    ),
)


def graphs_of(graph):
    """The graph and all its subgraphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)


def damage(model, rng):
    """Make one random change in a model, which usually makes it invalid."""
    graph = rng.choice(list(graphs_of(model.graph)))
    if not graph.node or rng.random() < 0.1:
        _damage_signature(graph, rng)
        return
    node = rng.choice(graph.node)
    place = rng.randrange(8)
    if place == 0:
        graph.node.remove(node)
    elif place == 1:
        node.op_type = rng.choice(OTHER_OPS)
    elif place == 2:
        names = rng.choice([node.input, node.output])
        names.append(rng.choice(["x", "", "more"]))
    elif place == 3:
        names = rng.choice([node.input, node.output])
        del names[rng.randrange(len(names) + 1) :]
    elif place == 4 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", "x", "undefined", *node.output])
    elif place == 5 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(["", "x", "y", "fresh"])
    elif node.attribute:
        _damage_attribute(node, rng)


def _damage_signature(graph, rng):
    values = [*graph.input, *graph.output]
    if values:
        value = rng.choice(values)
        tensor = value.type.tensor_type
        change = rng.randrange(4)
        if change == 0:
            tensor.elem_type = rng.randrange(26)
        elif change == 1:
            tensor.shape.dim.add().dim_value = rng.choice([-1, 3])
        elif change == 2:
            value.type.Clear()
        else:
            value.name = rng.choice(["", "x", "undefined"])


def _damage_attribute(node, rng):
    attribute = rng.choice(node.attribute)
    change = rng.randrange(5)
    if change == 0:
        node.attribute.remove(attribute)
    elif change == 1 and attribute.type == attribute.INT:
        attribute.i = rng.choice([-9, 0, 7, 2**62])
    elif attribute.HasField("t"):
        if change == 2:
            attribute.t.raw_data = attribute.t.raw_data[:-1]
        elif change == 3:
            attribute.t.dims.append(rng.choice([0, 2, -1]))
        else:
            attribute.t.data_type = rng.randrange(30)
