"""Devices of operands: a statement with operands on different devices stops before its kernel runs.

Some kernels take such operands without an error, and compute nothing or read a wrong device.  Only programs
whose values are on more than one device are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.errors import RunError
from nncdbg.ir.records import Program
from nncdbg.ir.walk import blocks, walk_nodes
from nncdbg.text.lexemes import name_text


class DeviceChecks:
    """Checks the operands of each statement on `backend`, which has device memory."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._allowed: set[tuple[Binding, tuple[str | None, ...]]] = set()
        """Statements that accept operands on these devices."""

    def needed(self, program: Program, inputs: Iterable[Any]) -> bool:
        """Return whether the values of a program can be on more than one device.

        `inputs` are on their devices, constants begin on the host, and statements name further devices.
        """
        found = {self._backend.device(each) for each in inputs} | {*_named_devices(program)}
        if any(graph.constants for _, graph in blocks(program)):
            found.add("cpu")
        return len(found - {None}) > 1

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction that checks its operands first, or `execute` itself for a single operand."""
        if len(binding.node.inputs) < 2:
            return execute
        device_of = self._backend.device

        def checked(*operands: Any) -> Any:
            first = None
            for operand in operands:
                found = device_of(operand)
                if first is None:
                    first = found
                elif found is not None and found != first:
                    self._check(binding, operands)
                    break
            return execute(*operands)

        return checked

    def _check(self, binding: Binding, operands: Sequence[Any]) -> None:
        """Raise RunError unless the kernel accepts operands on these devices."""
        devices = tuple(map(self._backend.device, operands))
        if (binding, devices) in self._allowed:
            return
        if not self._backend.mixes_devices(binding.kernel, operands):
            places = ", ".join(
                f"%{name_text(name)} is on {device}"
                for name, device in zip(binding.node.inputs, devices, strict=False)
                if isinstance(name, str) and device is not None
            )
            raise RunError(
                f"the operands of {binding.node.op} are on different devices: {places}",
                hint="copy the operands to one device in the model",
            )
        self._allowed.add((binding, devices))


def _named_devices(program: Program) -> Iterator[str]:
    """Yield the devices that statements name, such as ``aten.zeros.default(device="cuda:0")``."""
    for node in walk_nodes(program):
        device = node.attributes.get("device")
        if isinstance(device, str):
            yield device
