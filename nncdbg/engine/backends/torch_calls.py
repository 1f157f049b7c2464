"""Calls of PyTorch's operators with the operands and attributes of a statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.aten.internals import below_autograd, fast_call
from nncdbg.engine.ops.aten.names import OWN, READ, RECORDED, VIEW, allocates_only
from nncdbg.engine.ops.aten.signatures import (
    COUNT,
    RANDOM,
    Argument,
    Kind,
    Signature,
    decode,
    flat_results,
    signature,
)

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the arguments of an operator are taken from operands and attributes."""

    positional: tuple[_Source, ...]
    keywords: Mapping[str, _Source]
    operands: int
    """The number of operands that are tensors of arguments."""

    @property
    def sources(self) -> tuple[_Source, ...]:
        return (*self.positional, *self.keywords.values())


@dataclass(frozen=True, slots=True)
class _Source:
    """Where an argument comes from: operand `start`, operands `start` to `stop`, or `constant`."""

    start: int = -1
    stop: int = -1
    constant: Any = None
    written: bool = False
    several: bool = False

    def take(self, operands: Sequence[Any], copies: list[Any]) -> Any:
        """Return the argument; what is written is a copy, which is appended to `copies`."""
        if self.start < 0:
            return self.constant
        if self.several:
            listed = list(operands[self.start : self.stop])
            if self.written:
                listed = [strided_copy(each) for each in listed]
                copies.extend(listed)
            return listed
        value = operands[self.start] if self.start < len(operands) else None
        if self.written and value is not None:
            value = strided_copy(value)
            copies.append(value)
        return value


def strided_copy(tensor: Any) -> Any:
    """Return a copy with the same strides."""
    if tensor.is_contiguous():
        # Keeps the strides too, and is faster; of other layouts only if the elements have no gaps.
        return tensor.clone()
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def operator_call(call: Call, to_device: Callable[[Any], Any]) -> Execute:
    """Return a statement of torch's domains as a function of its operands.

    `to_device` converts operands that are NumPy arrays: constants, loop counters, and values from the
    debugger's own ops.  Raises GraphError for an unknown operator and for attributes that do not fit.
    """
    run = _own_operator(call) if call.node.op in OWN else _operator(call)
    if not call.constants:
        return _moving(run, to_device)
    constants: ByIdentity[Any] = ByIdentity()

    def with_constants(*operands: Any) -> Any:
        return run(*[_moved(value, constants, to_device) for value in operands])

    return with_constants


def _moving(run: Execute, to_device: Callable[[Any], Any]) -> Execute:
    """Run again with tensors, if an operand is a NumPy array: torch refuses these before anything runs."""

    def moving(*operands: Any) -> Any:
        try:
            return run(*operands)
        except (RuntimeError, AttributeError, TypeError):
            if not any(isinstance(value, (np.ndarray, np.generic)) for value in operands):
                raise
        return run(*map(to_device, operands))

    return moving


def _moved(value: Any, constants: ByIdentity[Any], to_device: Callable[[Any], Any]) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    known = constants.get(value)
    if known is None:
        known = to_device(value)
        constants.set(value, known)
    return known


def _operator(call: Call) -> Execute:
    """Return the call of an operator as a function of the operands.

    It returns the fresh results, then the new values of what the operator writes to, then the state of the
    generator.
    """
    node = call.node
    found = signature(node.op)
    if found is None:
        raise GraphError(
            f"{node.op} is not an operator of torch {torch.__version__}",
            hint="write LIBRARY.OP.OVERLOAD, such as aten.add.Tensor; `nncdbg ops aten` lists all",
        )
    plan = _plan(found, call.attributes, len(node.inputs))
    simple = _simple(found, plan)
    if simple is not None and not found.random and not allocates_only(node.op):
        return _without_gradients(simple, call.several, len(node.outputs))
    run = _general(found, plan)
    if allocates_only(node.op):
        run = _filled(run)
    if found.random:
        run = _with_generator(run, call, plan.operands)
    return _without_gradients(run, call.several, len(node.outputs))


def _without_gradients(run: Execute, several: bool, count: int) -> Execute:
    """Return the results that a statement names; no autograd graph is recorded.

    As where they were recorded, operators see that gradients are enabled: some keep more results then.
    """

    def one(*operands: Any) -> Any:
        with below_autograd():
            result = run(*operands)
        if isinstance(result, torch.Tensor):
            return result
        return _tensor(result[0] if isinstance(result, (list, tuple)) else result)

    def many(*operands: Any) -> list[Any]:
        with below_autograd():
            results = [_tensor(each) for each in flat_results(run(*operands))]
        results.extend([None] * (count - len(results)))
        return results[:count]

    return many if several else one


def _tensor(value: Any) -> Any:
    """Return a number that an operator reads for Python as a tensor of no axes."""
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, (int, float, complex)):
        wide = {int: torch.int64, float: torch.float64, complex: torch.complex128}
        return torch.tensor(value, dtype=wide[type(value)])
    return value


def _plan(found: Signature, attributes: Mapping[str, Any], given: int) -> _Plan:
    positional: list[_Source] = []
    keywords: dict[str, _Source] = {}
    position = 0
    for argument in found.arguments:
        source, position = _source(argument, attributes, position, given)
        if argument.keyword_only:
            if source is not None or argument.required:
                keywords[argument.name] = source or _Source()
        else:
            positional.append(source or _Source(constant=argument.default))
    return _Plan(tuple(positional), keywords, position)


def _source(
    argument: Argument, attributes: Mapping[str, Any], position: int, given: int
) -> tuple[_Source | None, int]:
    """Return where an argument comes from, None for its default, and the next operand's position."""
    if argument.kind is Kind.TENSOR:
        if attributes.get(argument.name) is not None:
            return _Source(constant=decode(attributes[argument.name], argument)), position + 1
        if position >= given:
            if argument.required and not argument.optional:
                raise GraphError(f"the operator needs its operand {argument.name}", operand=position)
            return None, position + 1
        return _Source(position, written=argument.written), position + 1
    if argument.kind is Kind.TENSORS:
        count = attributes.get(COUNT + argument.name)
        if count is None:
            return None, position
        end = position + count
        return _Source(position, end, written=argument.written, several=True), end
    value = attributes.get(argument.name)
    return (None if value is None else _Source(constant=decode(value, argument))), position


def _simple(found: Signature, plan: _Plan) -> Execute | None:
    """Return the call for operands first and constants after them; else None.

    It has no lists, and writes at most to the first operand.
    """
    sources = plan.positional
    tensors = [source.start >= 0 for source in sources]
    if (
        [source.written for source in plan.sources].count(True) > (bool(sources) and sources[0].written)
        or (found.writes and len(found.results) != 1)
        or any(source.several for source in plan.sources)
        or any(source.start >= 0 for source in plan.keywords.values())
        or tensors != sorted(tensors, reverse=True)
    ):
        return None
    function = fast_call(found.overload)
    if found.writes:
        function = _on_copy(function)
    constants = [source.constant for source in sources if source.start < 0]
    formal = [argument for argument in found.arguments if not argument.keyword_only]
    # Constants that are the defaults are left out, which makes the call faster.
    while constants and _is_default(constants[-1], formal[sum(tensors) + len(constants) - 1]):
        constants.pop()
    keywords = {name: source.constant for name, source in plan.keywords.items()}
    wanted = sum(tensors)

    def run(*operands: Any) -> Any:
        return function(*operands[:wanted], *constants, **keywords)

    def run_all(*operands: Any) -> Any:
        return function(*operands, *constants, **keywords)

    if not constants and not keywords:
        return function
    return run if constants else run_all


def _filled(run: Execute) -> Execute:
    """Return the allocation with NaN in each new float: an element that is read before a write shows."""

    def filled(*operands: Any) -> Any:
        results = run(*operands)
        for each in results:
            if each.is_floating_point() or each.is_complex():
                each.fill_(math.nan)
        return results

    return filled


def _on_copy(function: Execute) -> Execute:
    """Return the function on a copy of its first operand, which it writes to; the copy is the last result."""

    def run(written: Any, *others: Any, **keywords: Any) -> Any:
        copy = strided_copy(written)
        result = function(copy, *others, **keywords)
        return copy if result is copy else [*flat_results(result), copy]

    return run


def _is_default(value: Any, argument: Argument) -> bool:
    default = argument.default
    return not argument.required and type(value) is type(default) and bool(value == default)


def _general(found: Signature, plan: _Plan) -> Execute:
    function = fast_call(found.overload)

    def run(*operands: Any) -> list[Any]:
        copies: list[Any] = []
        positional = [source.take(operands, copies) for source in plan.positional]
        keywords = {name: source.take(operands, copies) for name, source in plan.keywords.items()}
        results = function(*positional, **keywords)
        results = flat_results(results) if found.results else []
        if copies:
            # An operator returns what it wrote to; these values come last.
            written = {id(copy) for copy in copies}
            results = [each for each in results if id(each) not in written]
            results.extend(copies)
        return results

    return run


def _with_generator(run: Execute, call: Call, tensors: int) -> Execute:
    """Run with the generator in the state of the last operand, and append the next state to the results.

    Without that operand the generator is seeded by the statement and the iteration.
    """
    device = torch.device(call.attributes.get(RANDOM) or "cpu")
    given = RANDOM in call.attributes and call.attributes[RANDOM] is not None

    def drawing(*operands: Any) -> list[Any]:
        before = generator_state(device)
        try:
            if not given:
                torch.default_generator.manual_seed(int(call.generator().integers(1 << 63)))
                return flat_results(run(*operands))
            set_generator_state(operands[-1].cpu(), device)
            results = flat_results(run(*operands[:-1]))
            return [*results, generator_state(device)]
        finally:
            set_generator_state(before, device)

    return drawing


def generator_state(device: torch.device) -> Any:
    """Return the state of a device's generator, a tensor of bytes."""
    return (
        torch.get_rng_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
    )


def set_generator_state(state: Any, device: torch.device) -> None:
    """Set the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state.contiguous())
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _own_operator(call: Call) -> Execute:
    """Return the function of one of nncdbg's own operators on tensors."""
    several = call.several
    if call.node.op in (RECORDED, READ):
        return (lambda result: [result]) if several else (lambda result: result)
    layout = _layout(call.attributes)
    run = layout.view if call.node.op == VIEW else layout.written
    return (lambda *operands: [run(*operands)]) if several else run


@dataclass(frozen=True, slots=True)
class _Layout:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any

    def view(self, base: Any) -> Any:
        if self.dtype is not None and base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)

    def written(self, base: Any, part: Any) -> Any:
        whole = strided_copy(base)
        self.view(whole).copy_(part)
        return whole


def _layout(attributes: Mapping[str, Any]) -> _Layout:
    dtype = attributes.get("dtype")
    argument = Argument("dtype", "ScalarType", Kind.OTHER, False, None, True, False)
    return _Layout(
        tuple(attributes["size"]),
        tuple(attributes["stride"]),
        int(attributes["offset"]),
        None if dtype is None else decode(dtype, argument),
    )
