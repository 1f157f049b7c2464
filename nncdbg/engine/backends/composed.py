"""Kernels of composite ops, which run the statements of their formula, and of micro programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend, Call, Kernels, backend
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Code, Compiler, Instruction, gatherer
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.inference.types import type_of_array
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import complete, split, version_of
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import Node, TensorType
from nncdbg.text.torch_names import is_torch


class FormulaKernel:
    """The formula of a statement, compiled once per types of the operands; `bind` returns its kernels.

    A formula is straight-line code.  Raises UnsupportedOp for one with a block or a call.
    """

    def __init__(self, bind: Callable[[Call], Kernels], call: Call) -> None:
        self._bind = bind
        self._call = call
        self._plans: dict[tuple[TensorType | None, ...], Callable[[Sequence[Any]], tuple[Any, ...]]] = {}

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """Return all results of the formula, in order."""
        types = tuple(None if value is None else type_of_array(value) for value in inputs)
        plan = self._plans.get(types)
        if plan is None:
            plan = self._plans[types] = self._plan(types)
        return plan([value for value in inputs if value is not None])

    def _plan(self, types: Sequence[TensorType | None]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        call = self._call
        program = formula_of(call.node, types, {split(call.node.op)[0]: call.version})
        if program is None:
            raise UnsupportedOp(f"{call.node.op} is a primitive with these operands")
        graph = program.graphs[program.entry]
        compiler = Compiler(
            program, lambda constant: initial_data(constant, program), lambda path, pc, error: error
        )
        code = compiler.compile(graph, [known for known in types if known is not None])
        steps = [self._step(code, pc) for pc in range(len(code.nodes))]
        template, first, last = code.template, 1, 1 + len(graph.inputs)
        results = gatherer(code.operands[-1])

        def execute(inputs: Sequence[Any]) -> tuple[Any, ...]:
            slots = template.copy()
            slots[first:last] = inputs
            for run, gather, target in steps:
                assert run is not None
                slots[target] = run(*gather(slots))
            return tuple(results(slots))

        return execute

    def _step(self, code: Code, pc: int) -> Instruction:
        if code.transfers(pc):
            raise UnsupportedOp(
                f"the formula of {self._call.node.op} contains a block; a block needs a kernel here"
            )
        kernels = self._bind(call_of(code, pc, self._call.generator))
        return kernels.run, gatherer(code.operands[pc]), code.targets[pc]


def call_of(
    code: Code, pc: int, generator: Callable[[float | None], Any], fresh: Callable[[Any], Any] | None = None
) -> Call:
    """Return the Call of the statement at `pc`, for binding its kernel."""
    constants = frozenset(
        index for index, slot in enumerate(code.operands[pc]) if isinstance(code.template[slot], np.ndarray)
    )
    several = isinstance(code.targets[pc], slice)
    return call_for(code.nodes[pc], code.opsets, several, constants, generator, fresh)


def call_for(
    node: Node,
    opsets: Mapping[str, int],
    several: bool,
    constants: frozenset[int],
    generator: Callable[[float | None], Any],
    fresh: Callable[[Any], Any] | None = None,
) -> Call:
    """Return the Call of a statement in a program with these opsets; the other fields are as in Call."""
    version = version_of(node.op, opsets)
    op = lookup(node.op, version) or Op(node.op, kernel=None)
    attributes = op.arguments(complete(node.op, version, node.attributes), version, len(node.outputs))
    return Call(node, op, version, attributes, several, constants, generator, fresh)


class MicroKernels(Backend):
    """Kernels on NumPy arrays, which torch's operators share."""

    name = "numpy"
    runs_op_kernels = True

    def __init__(self) -> None:
        self._numpy = NumPy()
        self._torch: Backend | None = None

    def bind(self, call: Call) -> Kernels:
        if not is_torch(call.node.op):
            return self._numpy.bind(call)
        self._torch = torch = self._torch or backend("torch")
        run = torch.bind(call).run

        def on_host(*inputs: Any) -> Any:
            return torch.to_host(run(*map(torch.to_device, inputs)))

        return Kernels(on_host)


def run_definition(code: Code, pc: int, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a statement's definition over these NumPy arrays; its op must not be random.

    Raises NncdbgError if there is no definition, or if it fails.
    """
    call = call_of(code, pc, _no_generator)
    with np.errstate(all="ignore"):
        results = MicroKernels().bind(call).run(*inputs)
    return results if call.several or isinstance(results, tuple) else (results,)


def _no_generator(seed: float | None) -> Any:
    raise AssertionError("random ops are not computed again")
