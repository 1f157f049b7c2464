"""Sample statements of every op: ONNX's own cases of one node, and the table `STATEMENTS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from nncdbg.engine.ops import Op, declared, lookup, names
from nncdbg.engine.ops.influence import EVERYTHING
from nncdbg.engine.ops.schema import complete
from tests.engine.ops.onnx_cases import all_cases
from tests.engine.ops.reference_samples import first_versions

MOST_ELEMENTS = 600
"""Maximum number of elements in the operands of a sample; larger cases add no coverage."""


@dataclass(frozen=True)
class Sample:
    """An executable statement: op, opset version, attributes with the schema's defaults, operands."""

    op: Op
    version: int
    attributes: Mapping[str, Any]
    operands: Sequence[Any]
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op.name} {self.op.since}"

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The keyword arguments of the kernel."""
        extra = dict(self.op.arguments(self.attributes, self.version, self.outputs))
        return {**extra, "rng": np.random.default_rng(0)} if self.op.random else extra

    def run(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Run the op's kernel on other operands and return its results."""
        with np.errstate(all="ignore"):
            found = self.op.bind(np, self.arguments)(*operands)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(np.asarray(each) if isinstance(each, np.generic) else each for each in results)


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Distinct random f32 numbers."""
    return np.random.default_rng(len(shape)).uniform(low, high, shape).astype(np.float32)


def i(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


X, ROW, STEP = f(3, 4), f(4), np.array(2)
BROADCAST = {"broadcast": 1, "axis": 1}
HEADS = {"q_num_heads": 1, "kv_num_heads": 1}
IMAGE = f(1, 2, 4, 4)

STATEMENTS: list[tuple[Any, ...]] = [
    *((name, 1, BROADCAST, (f(2, 3, 4), f(3))) for name in ("Add", "Sub", "Mul", "Div")),
    ("Pow", 1, BROADCAST, (f(2, 3, 4, low=0.5), f(3))),
    *((name, 1, BROADCAST, (f(2, 3, 4), f(3))) for name in ("Equal", "Greater", "Less")),
    *((name, 1, BROADCAST, (f(2, 3, 4) > 0, f(3) > 0)) for name in ("And", "Or", "Xor")),
    *((f"Reduce{name}", 1, {"axes": (1,)}, (X,)) for name in ("L1", "L2", "Max", "Mean", "Min", "Prod")),
    *((f"Reduce{name}", 1, {"axes": (1,), "keepdims": 0}, (abs(X),)) for name in ("Sum", "LogSum")),
    *((f"Reduce{name}", 1, {}, (X,)) for name in ("SumSquare", "LogSumExp")),
    *((name, version, {}, (IMAGE, *[f(2, low=0.5)] * 4)) for name, version in (
        ("BatchNormalization", 6), ("BatchNormalization", 7),
    )),
    *((name, 1, {"axis": 1}, (f(2, 3, 2),)) for name in ("Hardmax", "LogSoftmax", "Softmax")),
    ("Clip", 1, {"min": -1.0, "max": 1.0}, (X,)),
    ("ConcatFromSequence", 11, {"axis": 0}, ([X, X + 1],)),
    ("Dropout", 1, {}, (X,)),
    ("Dropout", 7, {}, (X,)),
    ("Gemm", 1, {"broadcast": 1, "transB": 1}, (f(2, 3), f(4, 3), ROW)),
    ("GlobalLpPool", 2, {}, (IMAGE,)),
    ("GroupNormalization", 18, {"num_groups": 1}, (IMAGE, f(1, low=0.5), f(1))),
    ("LayerNormalization", 1, {}, (X, ROW, ROW + 1)),
    ("SimplifiedLayerNormalization", 1, {}, (X, ROW)),
    ("MaxRoiPool", 1, {"pooled_shape": (2, 2)}, (IMAGE, np.array([[0, 0, 0, 3, 3]], np.float32))),
    ("Multinomial", 7, {"sample_size": 3}, (X,)),
    ("Optional", 15, {}, (X,)),
    ("PRelu", 6, {}, (IMAGE, f(2))),
    ("Pad", 1, {"paddings": (0, 1, 1, 0)}, (X,)),
    ("Pad", 2, {"pads": (0, 1, 1, 0)}, (X,)),
    ("RandomNormal", 1, {"shape": (2, 2)}, ()),
    ("RandomUniform", 1, {"shape": (2, 2)}, ()),
    ("RandomNormalLike", 1, {}, (X,)),
    ("RandomUniformLike", 1, {}, (X,)),
    ("Reshape", 1, {"shape": (4, 3)}, (X,)),
    ("Resize", 10, {"mode": "linear"}, (IMAGE, np.array([1, 1, 2, 1.5], np.float32))),
    ("Upsample", 7, {"scales": (1.0, 1.0, 2.0, 2.0)}, (IMAGE,)),
    ("SequenceAt", 11, {}, ([X, X + 1], np.array(1))),
    ("SequenceConstruct", 11, {}, (X, X + 1)),
    ("SequenceEmpty", 11, {}, ()),
    ("SequenceErase", 11, {}, ([X, X + 1], np.array(0))),
    ("SequenceInsert", 11, {}, ([X, X + 1], X + 2, np.array(1))),
    ("SequenceLength", 11, {}, ([X, X + 1],)),
    ("SplitToSequence", 11, {"axis": 1}, (X, i(1, 3))),
    ("Slice", 1, {"starts": (1,), "ends": (3,)}, (X,)),
    ("Split", 1, {"axis": 1, "split": (1, 3)}, (X,), 2),
    ("Slice", 13, {}, (X, i(0, 1), i(3, 4), i(0, 1), i(2, 1))),
    ("Erf", 13, {}, (X,)),
    ("LRN", 13, {"size": 3}, (f(1, 4, 2),)),
    ("Mish", 18, {}, (X,)),
    ("Attention", 23, HEADS, (f(1, 2, 4), f(1, 3, 4), f(1, 3, 4), f(2, 3))),
    ("Attention", 23, HEADS, (f(1, 2, 4), f(1, 3, 4), f(1, 3, 4), f(2, 3) > -1)),
    ("Squeeze", 1, {"axes": (0,)}, (f(1, 3),)),
    ("Unsqueeze", 1, {"axes": (0,)}, (X,)),
    ("TopK", 1, {"k": 2}, (X,), 2),
    ("Affine", 1, {"alpha": 2.0, "beta": 1.0}, (X,)),
    ("ParametricSoftplus", 1, {"alpha": 1.0, "beta": 1.0}, (X,)),
    ("Scale", 1, {"scale": 2.0}, (X,)),
    ("ScaledTanh", 1, {"alpha": 1.0, "beta": 1.0}, (X,)),
    ("nncdbg.Empty", 1, {"dtype": "f32", "shape": (2,), "init": "zeros"}, ()),
    ("nncdbg.Remains", 1, {"shape": (2,), "starts": (0,), "offsets": (4,), "sizes": (8,)}, (X,)),
    ("nncdbg.FullLike", 1, {"value": 1.0}, (X,)),
    ("nncdbg.SumLike", 1, {}, (X, f(1, 4))),
    ("nncdbg.Batch", 1, {"size": 2, "shuffle": 3}, (np.array(1), f(5, 3), f(5)), 2),
    ("update", 1, {}, (X, f(3)), 2),
    ("nncdbg.Positions", 1, {}, (X,)),
    ("nncdbg.SumAt", 1, {}, (f(3), np.array([0, 5, 5]), X)),
    ("nncdbg.SequenceSum", 1, {}, ([X, f(2)], [X + 1, f(2)], [X, f(2) + 2])),
    ("nncdbg.SequencePlaced", 1, {}, (f(2), np.array(-1), [X, f(2)])),
    ("nncdbg.SequencePadded", 1, {}, ([X], np.array(-1), [X, f(2)])),
    ("nncdbg.SplitLike", 1, {"axis": 1}, (f(2, 5), [f(2, 2), f(2, 3)])),
    ("nncdbg.EmptySequenceOf", 1, {}, (X,)),
    ("nncdbg.SequenceAppend", 1, {}, ([X, X + 1], X + 2)),
    ("nncdbg.SumWindows", 1, {"kernel_shape": (2,)}, (f(1, 2, 3, 2), f(1, 2, 4))),
    ("nncdbg.Im2Col", 1, {}, (f(1, 2, 3, 4), np.array([2, 2]))),
    ("nncdbg.ResizeTransposed", 1, {}, (f(2, 6), f(2, 3), None, np.array([1.0, 2.0], np.float32))),
    ("nncdbg.KeepsCheckpoint", 1, {}, (np.array(1), np.array(5), np.array(2))),
    ("nncdbg.Cofactors", 1, {}, (f(2, 3, 3),)),
    ("nncdbg.SGD", 1, {"lr": 0.1, "momentum": 0.9, "nesterov": 1}, (X, X + 1, X - 1), 2),
    ("nncdbg.RMSProp", 1, {"lr": 0.1, "momentum": 0.9}, (X, X + 1, X * X + 5, X, X + 2), 4),
    *((f"nncdbg.{name}", 1, {"lr": 0.1}, (X, X + 1, X - 1, X * X, STEP), 4) for name in (
        "Adam", "AdamW", "LAMB",
    )),
    *((each.op, each.version, each.attributes, each.inputs, each.outputs) for each in first_versions()),
    ("nncdbg.Windows", 1, {"kernel_shape": (2,), "dilations": (1,), "strides": (1,)}, (f(1, 2, 4),)),
]  # fmt: skip
"""(op, version, attributes, operands, outputs) of versions without an ONNX case and of nncdbg's own ops."""


def _has_kernel(op: Op) -> bool:
    return op.kernel is not None or op.ufunc is not None


def sample_of(
    name: str, version: int, attributes: Mapping[str, Any], operands: Sequence[Any], outputs: int = 1
) -> Sample:
    """The sample of a row of the table."""
    op = lookup(name, version)
    assert op is not None, name
    return Sample(op, version, complete(name, version, attributes), operands, outputs)


def _own() -> Iterator[Sample]:
    return (sample for sample in (sample_of(*row) for row in STATEMENTS) if _has_kernel(sample.op))


@cache
def samples() -> tuple[Sample, ...]:
    """The samples of `STATEMENTS`, then ONNX's cases with at most `MOST_ELEMENTS` elements."""
    found = [*_own()]
    for case in all_cases():
        op = lookup(case.op, case.version)
        size = sum(np.size(value) for value in case.inputs if value is not None)
        if op is None or op.reference or not _has_kernel(op) or size > MOST_ELEMENTS:
            continue
        attributes = complete(case.op, case.version, case.attributes)
        found.append(Sample(op, case.version, attributes, case.inputs, case.output_count))
    return tuple(found)


def by_entry(most: int) -> dict[tuple[str, int], list[Sample]]:
    """Up to `most` samples per declaration, by (op, version)."""
    found: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples():
        same = found.setdefault((sample.op.name, sample.op.since), [])
        if len(same) < most:
            same.append(sample)
    return found


def entries() -> list[tuple[str, int]]:
    """The declarations with a kernel and an influence row more precise than `EVERYTHING`.

    Foreign ops are left out: tests of op libraries declare some in this process.
    """
    own = [op for name in names() for op in declared(name) if not op.foreign]
    return [(op.name, op.since) for op in own if _has_kernel(op) and op.influence is not EVERYTHING]


def composed() -> list[str]:
    """The names of ops with a formula instead of a kernel."""
    own = [op for name in names() for op in declared(name) if not op.foreign]
    return sorted({op.name for op in own if not _has_kernel(op)})
