"""docs/GRADIENTS.md: how the gradient of each op is computed, from the declarations (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator

from nncdbg.engine.differentiation.differentiability import differentiability, takes_and_gives_floats
from nncdbg.engine.ops.schema import schema_names

HEAD = """# Gradients of ops

`Gradient` builds the backward graph of a program. Each op is differentiated by its rule, or through the
statements of its formula. The backward graph is program text: you can print it, step through it and
differentiate it again. `make docs` generates this table from the declarations of the ops (`Op.vjp`,
`Op.no_gradient`). The table lists all ops of ONNX with float operands and float results. `nncdbg ops NAME`
prints the same for one op.

`tests/engine/differentiation/test_node_gradients.py` compares the gradients with finite differences. The
operands are those of ONNX's backend tests, in f64 where ONNX permits f64 for the op. On each op, the tests
also compare second derivatives with differences of the gradient, and the forward mode with the reverse mode.
`known.txt` in the same folder lists the exceptions. `torch.txt` and `torch_blocks.txt` have the programs with
the same gradients as `torch.autograd`.

- At a jump of the slope, a rule selects one side: 0 for `Abs` and `Relu`, the first maximum for `MaxPool`,
  equal shares for `Max`, `Min`, `MaxRoiPool` and the reductions `max` and `min` of a scatter.
- `Resize` and `Upsample` have no gradient by `scales` and `roi`.
- The second derivative of `ReduceProd` and of a scatter with `mul` is exact if at most one factor is 0.
- The cotangent of a sequence is a sequence: the cotangents of its elements. All ops on sequences have a rule.
  In a loop, the reads of one sequence take time that grows with the square of its length.
- The quantized result and the zero point of `DynamicQuantizeLinear` are integers, without a cotangent. Its
  scale has the gradient 1/255 at the largest element, if it is above 0, and -1/255 at the smallest one, if it
  is below 0. So the gradient of `DequantizeLinear` of the three results is that of the scale. nncdbg adds no
  straight-through estimator.
- The gradient of `SVMClassifier` with `prob_a` passes through the iterations that compute the probabilities.

| gradient | ops |
|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for name in sorted(schema_names(["", "ai.onnx.ml"])):
        if takes_and_gives_floats(name):
            rows.setdefault(differentiability(name).description, []).append(name)
    for words, ops in sorted(rows.items(), key=lambda row: -len(row[1])):
        yield f"| {words} | {', '.join(ops)} |"
