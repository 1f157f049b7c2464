"""Calls of PyTorch's operators with the operands and attributes of a statement.

A statement is one closure, of a form that the signature of its operator determines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.backends.torch_statements import kernel_of
from nncdbg.engine.backends.torch_tensors import (
    fresh_like,
    generator_state,
    own_operator,
    set_generator_state,
    strided_copy,
    tensor_of_number,
)
from nncdbg.engine.ops.aten.internals import fast_call, out_form
from nncdbg.engine.ops.aten.operators import overwrites
from nncdbg.engine.ops.aten.signatures import (
    COUNT,
    RANDOM,
    Argument,
    ArgumentKind,
    Signature,
    decode,
    flat_results,
    signature,
)
from nncdbg.errors import GraphError
from nncdbg.text.torch_names import NUMBER, OPERAND, OWN, WRITE

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute


@dataclass(frozen=True, slots=True)
class ArgumentSource:
    """Where an argument comes from: operand `start`, operands `start` to `stop`, or `constant`.

    With `numbers`, the operands are numbers: that from `start` on take the place of each "?" in `constant`.
    """

    start: int = -1
    stop: int = -1
    constant: Any = None
    written: bool = False
    several: bool = False
    numbers: bool = False

    @property
    def is_constant(self) -> bool:
        return self.start < 0

    def take(self, operands: Sequence[Any]) -> Any:
        """Return the argument."""
        if not self.several:
            return operands[self.start].item() if self.numbers else operands[self.start]
        chosen = operands[self.start : self.stop]
        if not self.numbers:
            return list(chosen)
        rest = iter(chosen)
        return [next(rest).item() if item == OPERAND else item for item in self.constant]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The sources of the arguments of an operator."""

    positional: tuple[ArgumentSource, ...]
    keywords: Mapping[str, ArgumentSource]

    @property
    def all(self) -> tuple[ArgumentSource, ...]:
        return (*self.positional, *self.keywords.values())


def arguments_of(found: Signature, attributes: Mapping[str, Any], given: int) -> CallArguments:
    """Return the sources of the arguments of a statement with `given` operands.

    Raises GraphError for a missing operand, and for an attribute that does not fit.
    """
    positional: list[ArgumentSource] = []
    keywords: dict[str, ArgumentSource] = {}
    position = 0
    numbers = sum(_tensors_of(argument, attributes) for argument in found.arguments)
    for argument in found.arguments:
        value = attributes.get(argument.name)
        source: ArgumentSource | None
        is_text = argument.type.removeprefix("Optional[").startswith(("str", "List[str"))
        # Operands give the attribute, or items of it.
        if not is_text and (value == OPERAND or (isinstance(value, tuple) and OPERAND in value)):
            several = value != OPERAND
            start, numbers = numbers, numbers + (value.count(OPERAND) if several else 1)
            stop, items = (numbers, value) if several else (-1, None)
            source = ArgumentSource(start, stop, items, several=several, numbers=True)
            position += _tensors_of(argument, attributes)
        else:
            source, position = _source(argument, attributes, position, given)
        if argument.keyword_only:
            if source is not None or argument.required:
                keywords[argument.name] = source or ArgumentSource()
        else:
            positional.append(source or ArgumentSource(constant=argument.default))
    if position < numbers > given:
        raise GraphError(f"the operator needs {numbers} operands, one for each {OPERAND!r} after the tensors")
    return CallArguments(tuple(positional), keywords)


def _tensors_of(argument: Argument, attributes: Mapping[str, Any]) -> int:
    """Return how many operands an argument has among the tensors."""
    if argument.kind is ArgumentKind.TENSORS:
        return attributes.get(COUNT + argument.name) or 0
    return int(argument.kind is ArgumentKind.TENSOR)


def _source(
    argument: Argument, attributes: Mapping[str, Any], position: int, given: int
) -> tuple[ArgumentSource | None, int]:
    """Return where an argument comes from, None for its default, and the next operand's position."""
    if argument.kind is ArgumentKind.TENSOR:
        if attributes.get(argument.name) is not None:
            return ArgumentSource(constant=decode(attributes[argument.name], argument)), position + 1
        if position >= given:
            if argument.required and not argument.optional:
                raise GraphError(f"the operator needs its operand {argument.name}", operand=position)
            return None, position + 1
        return ArgumentSource(position, written=argument.written), position + 1
    if argument.kind is ArgumentKind.TENSORS:
        count = attributes.get(COUNT + argument.name)
        if count is None:
            return None, position
        end = position + count
        return ArgumentSource(position, end, written=argument.written, several=True), end
    value = attributes.get(argument.name)
    return (None if value is None else ArgumentSource(constant=decode(value, argument))), position


_TENSOR = ("Tensor",)


def operator_call(call: Call, to_device: Callable[[Any], Any]) -> Execute:
    """Return a statement of torch's domains as a function of its operands.

    `to_device` converts operands that are NumPy arrays: constants, loop counters, and values from the
    debugger's own ops.  Raises GraphError for an unknown operator and for attributes that do not fit.
    """
    if call.node.op in OWN:
        run = _placing(own_operator(call), (), to_device)
    else:
        found, arguments, direct = _signature(call)
        run = _placing(*_operator(call, found, arguments, direct), to_device)
        run = kernel_of(call, found, arguments, direct, run) or run
    return converting_constants(run, to_device) if call.constants else run


def gives_views(call: Call) -> bool:
    """Return whether all results of a statement hold only elements of an operand, unchanged."""
    if call.node.op in OWN:
        return call.node.op not in (WRITE, NUMBER) and call.attributes.get("dtype") is None
    found = signature(call.node.op)
    return found is not None and found.moves_only


def _placing(function: Execute, constants: Sequence[Any], to_device: Callable[[Any], Any]) -> Execute:
    """Return the function of the operands, followed by `constants`; NumPy arrays among them are converted."""

    def run(*operands: Any) -> Any:
        try:
            return function(*operands, *constants)
        except (RuntimeError, AttributeError, TypeError):
            # Torch refuses NumPy arrays before anything runs.
            if not any(isinstance(value, (np.ndarray, np.generic)) for value in operands):
                raise
        return function(*map(to_device, operands), *constants)

    return run


def converting_constants(run: Execute, to_device: Callable[[Any], Any]) -> Execute:
    """Return the function of operands that may be arrays; each array is converted once."""
    converted: ByIdentity[Any] = ByIdentity()

    def tensor_of(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        known = converted.get(value)
        if known is None:
            known = to_device(value)
            converted.set(value, known)
        return known

    def with_constants(*operands: Any) -> Any:
        for value in operands:
            if value.__class__ is not torch.Tensor:
                return run(*map(tensor_of, operands))
        return run(*operands)

    return with_constants


def bare_operator(call: Call) -> tuple[Execute, Sequence[Any]]:
    """Return the call of an operator from Python as a function of the operands, and its last arguments."""
    return _operator(call, *_signature(call))


def _signature(call: Call) -> tuple[Signature, CallArguments, bool]:
    """Return the signature of an operator, the arguments of a statement, and whether its operands come first.

    Raises GraphError for an unknown operator and for attributes that do not fit.
    """
    node = call.node
    found = signature(node.op)
    if found is None:
        raise GraphError(
            f"{node.op} is not an operator of torch {torch.__version__}",
            hint="write LIBRARY.OP.OVERLOAD, such as aten.add.Tensor; `nncdbg ops aten` lists all"
            if node.op.count(".") < 3
            else "pass the Python file that registers it: --op-library FILE.py",
        )
    if found.unrepeatable:
        raise GraphError(
            f"a program cannot run {node.op}: {found.unrepeatable}",
            hint="give its result as an input of the program",
        )
    given = len(node.inputs) - _draws(call)
    arguments = arguments_of(found, call.attributes, given)
    return found, arguments, _operands_first(found, arguments, given)


def _draws(call: Call) -> bool:
    """Return whether the last operand is the state of the generator."""
    return call.attributes.get(RANDOM) is not None


def _operator(
    call: Call, found: Signature, arguments: CallArguments, direct: bool
) -> tuple[Execute, Sequence[Any]]:
    """Return the call of an operator as a function of the operands, and its last arguments.

    It returns the fresh results, then the new values of what the operator writes to, then the state of the
    generator.
    """
    constants: Sequence[Any] = ()
    if direct:
        run, constants = _direct(found, arguments), _constants(found, arguments)
    else:
        run = _general(found, arguments)
    if found.allocates:
        run = _filled(run)
    if found.random:
        run, constants = _with_generator(run, constants, call, _draws(call)), ()
    if call.several:
        return _many(run, len(call.node.outputs)), constants
    single = found.results == _TENSOR and not found.random and (found.in_place or not found.writes)
    return (run if single else _first(run)), constants


def _first(run: Execute) -> Execute:
    def first(*arguments: Any) -> Any:
        result = run(*arguments)
        return tensor_of_number(result[0] if isinstance(result, (list, tuple)) else result)

    return first


def _many(run: Execute, count: int) -> Execute:
    """Return the results that a statement names."""

    def many(*arguments: Any) -> list[Any]:
        results = [tensor_of_number(each) for each in flat_results(run(*arguments))]
        results.extend([None] * (count - len(results)))
        return results[:count]

    return many


def _operands_first(found: Signature, arguments: CallArguments, given: int) -> bool:
    """Return whether a call takes all its operands first and constants after them, without lists.

    Such an operator has one result; it may write to its first operand, which it then returns.
    """
    tensors = [not source.is_constant for source in arguments.positional]
    written = [source.written for source in arguments.all]
    return (
        sum(tensors) == given
        and tensors == sorted(tensors, reverse=True)
        and all(source.is_constant for source in arguments.keywords.values())
        and not any(source.several or source.numbers for source in arguments.all)
        and (not any(written) or (found.in_place and written.index(True) == 0 and written.count(True) == 1))
    )


def _direct(found: Signature, arguments: CallArguments) -> Execute:
    keywords = {name: source.constant for name, source in arguments.keywords.items()}
    form = out_form(found.overload) if found.in_place else None
    function = fast_call(found.overload)
    if form is not None:
        return _replacing(fast_call(form), function, keywords)
    if keywords:
        function = partial(function, **keywords)
    if not found.in_place:
        return function
    new = fresh_like if overwrites(found.name) else strided_copy
    return lambda written, *others: function(new(written), *others)


def _replacing(into: Execute, in_place: Execute, keywords: dict[str, Any]) -> Execute:
    """Return an operator that writes in place as its form that writes to new memory: it runs the same kernel.

    Only the operator in place refuses operands that broadcast its result to another shape.
    """

    def replace(written: Any, *others: Any) -> Any:
        result = into(written, *others, out=fresh_like(written), **keywords)
        if result.shape != written.shape:
            return in_place(strided_copy(written), *others, **keywords)
        return result

    return replace


def _constants(found: Signature, arguments: CallArguments) -> list[Any]:
    """Return the positional arguments after the operands, without last ones that are the defaults."""
    constants = [source.constant for source in arguments.positional if source.is_constant]
    formal = [argument for argument in found.arguments if not argument.keyword_only]
    while constants and not formal[-1].required and formal[-1].is_default(constants[-1]):
        constants.pop()
        formal.pop()
    return constants


def _filled(run: Execute) -> Execute:
    """Return the allocation with NaN in each new float: an element that is read before a write shows."""

    def filled(*arguments: Any) -> Any:
        made = run(*arguments)
        if made.is_floating_point() or made.is_complex():
            made.fill_(math.nan)
        return made

    return filled


def _general(found: Signature, arguments: CallArguments) -> Execute:
    """Return the call with operands in any places."""
    function = fast_call(found.overload)
    sources, names = arguments.all, tuple(arguments.keywords)
    constant = [source.constant for source in sources]
    taken = [(place, source) for place, source in enumerate(sources) if not source.is_constant]
    count = len(arguments.positional)

    def run(*operands: Any) -> Any:
        given, copies = constant.copy(), list[Any]()
        for place, source in taken:
            value = source.take(operands)
            if source.written and value is not None:
                value = [strided_copy(each) for each in value] if source.several else strided_copy(value)
                copies.extend(value if source.several else [value])
            given[place] = value
        results = function(*given[:count], **dict(zip(names, given[count:], strict=True)))
        if not copies:
            return results
        # An operator returns what it wrote to; these values come last.
        written = {id(copy) for copy in copies}
        fresh = flat_results(results) if found.results else []
        results = [*[each for each in fresh if id(each) not in written], *copies]
        return results[0] if found.in_place and len(results) == 1 else results

    return run


def _with_generator(run: Execute, constants: Sequence[Any], call: Call, given: bool) -> Execute:
    """Run with the generator in the state of the last operand, and append the next state to the results.

    If that operand is not `given`, the generator is seeded by the statement and the iteration.
    """
    device = torch.device(call.attributes[RANDOM] if given else "cpu")

    def drawing(*operands: Any) -> list[Any]:
        before = generator_state(device)
        try:
            if not given:
                torch.default_generator.manual_seed(int(call.generator(None).integers(1 << 63)))
                return flat_results(run(*operands, *constants))
            set_generator_state(operands[-1].cpu(), device)
            results = flat_results(run(*operands[:-1], *constants))
            return [*results, generator_state(device)]
        finally:
            set_generator_state(before, device)

    return drawing
