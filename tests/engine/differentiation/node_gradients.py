"""Gradients of ONNX's node cases against two-sided differences along random directions.

A case is cast to f64 where the op's schema permits it.  The loss is the sum of all float results, weighted by
fixed random numbers.  Float operands are moved slightly, away from ties and from the corners of Abs and Relu.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto

import nncdbg
from nncdbg.dtypes import name_of
from nncdbg.ir.records import Constant, Inline, Node, Program, Value, type_of
from tests.conformance.cases import Case, cases
from tests.engine.differentiation.gradients import run, with_gradient

LOSS, SECOND = "weighted_total", "weighted_gradient"

WITHOUT = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "OneHot": (0, 1),
    "QuantizeLinear": (1,),
    "MelWeightMatrix": (3, 4),
}
"""Operands that the gradient holds constant: regions, scales and edges."""

IN_F32 = frozenset({"AffineGrid", "Attention", "DynamicQuantizeLinear", "DequantizeLinear"})
"""Ops that compute in f32, besides those with a `stash_type`."""

COMPUTED = frozenset({"f32", "f64"})
"""The element types in which a difference is a usable derivative."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one comparison: `differences` are the largest relative errors by operand."""

    op: str
    differences: Mapping[str, float]
    tolerance: float

    @property
    def wrong(self) -> list[str]:
        return [f"%{x}: {error:.1e}" for x, error in self.differences.items() if not error < self.tolerance]


def op_of(case: Case) -> str:
    """The op of a node case, as in program text."""
    node = case.model.graph.node[0]
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


@cache
def cases_by_op() -> dict[str, list[Case]]:
    """The node cases of one statement without graphs, by op."""
    found: dict[str, list[Case]] = {}
    for case in cases("node"):
        if len(case.model.graph.node) == 1 and not any(
            a.HasField("g") for a in case.model.graph.node[0].attribute
        ):
            found.setdefault(op_of(case), []).append(case)
    return found


def in_f64(model: Any) -> Any:
    """Return the model with f32 types replaced by f64, where the op permits that; else the model itself."""
    node = model.graph.node[0]
    version = max(e.version for e in model.opset_import if e.domain == node.domain)
    proto = onnx.defs.get_schema(node.op_type, version, node.domain)
    permits = {c.type_param_str: c.allowed_type_strs for c in proto.type_constraints}
    names: set[str] = set()
    for formals, given in ((proto.inputs, node.input), (proto.outputs, node.output)):
        for index, name in enumerate(given):
            formal = formals[min(index, len(formals) - 1)]
            if "tensor(double)" in permits.get(formal.type_str, ()):
                names.add(name)
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for info in (*made.graph.input, *made.graph.output):
        tensor = info.type.tensor_type
        if info.name in names and tensor.elem_type == TensorProto.FLOAT:
            tensor.elem_type = TensorProto.DOUBLE
    return made


def moved(name: str, array: Any) -> Any:
    """Return a float operand moved by up to 1 %, so that no two elements are equal; wide floats only."""
    if array is None or isinstance(array, list) or name_of(array.dtype) not in COMPUTED:
        return array
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    shift = generator.uniform(0.002, 0.01, array.shape) * generator.choice([-1, 1], array.shape)
    shift = np.where(np.isfinite(array), shift, 0)
    size = np.where(np.isfinite(array), np.abs(array), 0)
    near = array + shift * np.where(size < 1e-3, 1, size)
    return np.asarray(near, array.dtype)


@dataclass(frozen=True, slots=True)
class Problem:
    """A program with the output `loss`, its inputs, and the operands to differentiate by."""

    op: str
    program: Program
    inputs: dict[str, Any]
    xs: tuple[str, ...]
    loss: str = LOSS
    rounds: bool = False
    """The op rounds to f32."""


def problem_of(case: Case) -> Problem | None:
    """Return the loss over the results of a case; None without a float operand or a finite float result."""
    model = in_f64(case.model)
    program = untyped(nncdbg.load(model))
    main = program.graphs[program.entry]
    node = model.graph.node[0]
    held = {node.input[i] for i in WITHOUT.get(op_of(case), ()) if i < len(node.input)}
    inputs: dict[str, Any] = {}
    for value, array, info in zip(main.inputs, case.sets[0][0], model.graph.input, strict=False):
        if isinstance(array, np.ndarray):
            wide = info.type.tensor_type.elem_type == TensorProto.DOUBLE
            array = array.astype(np.float64) if wide else array
            array = array if value.name in held else moved(f"{case.name} {value.name}", array)
        inputs[value.name] = array
    outputs = run(program, inputs, allocator="plain")
    floats = {name: array for name, array in outputs.items() if _wide(array)}
    xs = tuple(name for name, array in inputs.items() if _wide(array) and array.size and name not in held)
    finite = all(np.isfinite(array).all() for array in (*floats.values(), *(inputs[x] for x in xs)))
    if not floats or not xs or not finite:
        return None
    return Problem(op_of(case), with_loss(program, floats), inputs, xs, rounds=rounds(node))


def rounds(node: Any) -> bool:
    """Whether the op computes in f32 in all element types, as a normalization with a `stash_type`."""
    proto = onnx.defs.get_schema(node.op_type, node.domain)
    return "stash_type" in proto.attributes or node.op_type in IN_F32


def untyped(program: Program) -> Program:
    """Return the program without the declared types of its results."""
    main = program.graphs[program.entry]
    nodes = [replace(n, outputs=tuple(replace(v, type=None) for v in n.outputs)) for n in main.nodes]
    graph = replace(main, nodes=tuple(nodes), outputs=tuple(replace(v, type=None) for v in main.outputs))
    return replace(program, graphs={**program.graphs, main.name: graph}, listing=None, source=None)


def _wide(array: Any) -> bool:
    return isinstance(array, np.ndarray) and name_of(array.dtype) in COMPUTED


def with_loss(program: Program, results: Mapping[str, Any], loss: str = LOSS) -> Program:
    """Return the program with the output `loss`: the sum of the results, weighted."""
    main = program.graphs[program.entry]
    nodes, parts = list(main.nodes), []
    generator = np.random.default_rng(11)
    types = {}
    for name, array in results.items():
        weights = generator.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        key = f"{name}_weights"
        types[key] = (type_of(weights), Inline(weights))
        nodes.append(Node("Mul", (name, key), (Value(f"{name}_weighted"),)))
        nodes.append(Node("ReduceSum", (f"{name}_weighted",), (Value(f"{name}_sum"),), {"keepdims": 0}))
        parts.append((f"{name}_sum", array.dtype))
    total, dtype = parts[0]
    for index, (part, other) in enumerate(parts[1:]):
        if other != dtype:
            nodes.append(Node("CastLike", (part, total), (Value(f"{part}_cast"),)))
            part = f"{part}_cast"
        nodes.append(Node("Add", (total, part), (Value(f"{loss}_{index}"),)))
        total = f"{loss}_{index}"
    nodes.append(Node("Identity", (total,), (Value(loss),)))
    constants = tuple(Constant(Value(key, type_), data) for key, (type_, data) in types.items())
    graph = replace(main, nodes=tuple(nodes), outputs=(Value(loss),), constants=(*main.constants, *constants))
    return replace(program, graphs={**program.graphs, main.name: graph}, listing=None, source=None)


def check(case: Case) -> Check | None:
    problem = problem_of(case)
    if problem is None:
        return None
    return compare(problem)


def compare(problem: Problem) -> Check:
    program, inputs = problem.program, problem.inputs
    got = run(with_gradient(program, problem.xs, problem.loss), inputs, allocator="plain")
    errors, tolerance = {}, 1e-5
    for x in problem.xs:
        array = inputs[x]
        wide = array.dtype == np.float64 and got[problem.loss].dtype == np.float64 and not problem.rounds
        direction = np.random.default_rng(5).uniform(0.5, 1.5, array.shape)
        direction *= np.random.default_rng(6).choice([-1.0, 1.0], array.shape)
        step = 1e-5 if wide else 1e-2
        tolerance = tolerance if wide else 2e-2
        along = float((got[f"g_{problem.loss}_{x}"].astype(np.float64) * direction).sum())
        size = float(np.abs(got[f"g_{problem.loss}_{x}"].astype(np.float64) * direction).sum())
        numeric = difference(problem, x, direction, step)
        # Differences of a large loss round away the digits of a small derivative.
        scale = max(abs(numeric), size, abs(float(got[problem.loss])) / 100, 1e-3 if wide else 1e-1)
        errors[x] = abs(along - numeric) / scale
    return Check(problem.op, errors, tolerance)


def difference(problem: Problem, x: str, direction: Any, step: float) -> float:
    """Return the two-sided difference of the loss along a direction of one operand."""
    sides = []
    for sign in (1, -1):
        near = np.asarray(problem.inputs[x] + sign * step * direction, problem.inputs[x].dtype)
        found = run(problem.program, {**problem.inputs, x: near}, allocator="plain")
        sides.append(float(found[problem.loss]))
    return (sides[0] - sides[1]) / (2 * step)


def gradient_of(problem: Problem, x: str) -> Problem:
    """Return the problem whose loss is the weighted sum of the gradient by `x`."""
    program = with_gradient(problem.program, [x], LOSS)
    main = program.graphs[program.entry]
    inner = replace(main, outputs=main.outputs[1:])
    program = replace(program, graphs={**program.graphs, main.name: inner}, listing=None, source=None)
    made = with_loss(program, {f"g_{LOSS}_{x}": problem.inputs[x]}, SECOND)
    return replace(problem, program=made, loss=SECOND)
