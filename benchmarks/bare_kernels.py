"""The kernels of a recorded step in a bare Python loop: the least that a run in Python takes.

The loop has no debugger around it.  It calls the functions of torch, on the operands that they had in the
engine, below autograd, and stores the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nncdbg import Debugger
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.ops.aten.internals import below_autograd


@dataclass(slots=True)
class _Kernel:
    """One kernel with the places of its operands and results, and of the values that it uses last."""

    function: Callable[..., Any]
    constants: Sequence[Any]
    operands: list[int]
    results: list[int]
    several: bool
    dying: list[int]


def bare_loop(debugger: Debugger, *, frees: bool) -> Callable[[], None]:
    """Return a loop over the kernels that a debugger on the backend torch runs from its start.

    With `frees`, a result is dropped after its last use, as in an eager step; otherwise all are kept, as in
    the engine.
    """
    kernels, given = _kernels(debugger)

    def run() -> None:
        values = given.copy()
        with below_autograd():
            for each in kernels:
                found = each.function(*[values[place] for place in each.operands], *each.constants)
                if each.several:
                    for place, value in zip(each.results, found, strict=True):
                        values[place] = value
                else:
                    values[each.results[0]] = found
                del found
                if frees:
                    for place in each.dying:
                        values[place] = None

    return run


def _kernels(debugger: Debugger) -> tuple[list[_Kernel], list[Any]]:
    """Return the kernels in their order, and the values from before: None where a kernel gives one."""
    from nncdbg.engine.backends.torch_calls import bare_operator
    from nncdbg.engine.backends.torch_tensors import own_operator
    from nncdbg.text.torch_names import OWN

    debugger.restart()
    machine = debugger.control.machine
    places: dict[int, int] = {}
    held: list[Any] = []
    """All values, so that none of their identities is used again."""
    given: list[Any] = []
    kernels: list[_Kernel] = []

    def place_of(value: Any, known: Any) -> int:
        if id(value) not in places:
            places[id(value)] = len(held)
            held.append(value)
            given.append(known)
        return places[id(value)]

    while not machine.ended:
        frame, pc = machine.frames[-1], machine.frames[-1].pc
        execute, gather, target = frame.code.instructions[pc]
        if execute is None or target is None:
            machine.step()
            continue
        operands = [place_of(value, value) for value in gather(frame.slots)]
        machine.step()
        several = isinstance(target, slice)
        results = [
            place_of(value, None) for value in (frame.slots[target] if several else [frame.slots[target]])
        ]
        node = frame.code.nodes[pc]
        if node.op == "update":
            continue
        call = call_of(frame.code, pc, partial(debugger.loaded.linker.generator, frame.code.path, pc))
        function, constants = (own_operator(call), ()) if node.op in OWN else bare_operator(call)
        kernels.append(_Kernel(function, constants, operands, results, several, []))
    last = {place: number for number, each in enumerate(kernels) for place in (*each.operands, *each.results)}
    for place, number in last.items():
        if given[place] is None:
            kernels[number].dying.append(place)
    return kernels, given
