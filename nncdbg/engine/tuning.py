"""Measure the kernels of all backends while a program runs, on private copies of the operands.

The run itself executes its own kernels on its own values, once per statement as always: a measured kernel
that writes to its operands, or computes a wrong result, cannot reach an output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nncdbg import extensions
from nncdbg.comparison.kernels import MeasuredKernel, TunedStatement, Tuning
from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import NOWHERE
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.backends import Backend, Call, Execute, Kernels, backend
from nncdbg.engine.backends.kernel_choice import ExactSelectors, has_choice
from nncdbg.engine.backends.mixed_backends import kernels_for
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.recomputation import terms_of
from nncdbg.engine.values.checksum import same_bits
from nncdbg.errors import LoadError, NncdbgError, UnsupportedOp, UsageError
from nncdbg.ir.records import Path, type_of
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import is_torch

BUDGET = 0.02
"""Seconds for the repeated executions of one kernel, after the first."""

LEAST, MOST = 3, 100
"""Executions that are timed."""

ADVANTAGE = 0.9
"""Another backend is chosen if its kernel takes less than this part of the time of the run's own."""


def available_backends(names: Collection[str] = ()) -> tuple[dict[str, Backend], dict[str, str]]:
    """Return the backends with these names (default: all that are installed), and why others are not.

    Raises UsageError for a backend in `names` that is unknown or unavailable.
    """
    found: dict[str, Backend] = {}
    reasons: dict[str, str] = {}
    for name in names or extensions.names(extensions.BACKENDS):
        try:
            found[name] = backend(name)
        except (UsageError, LoadError) as error:
            if names:
                raise
            reasons[name] = error.message
    return found, reasons


class KernelTuner:
    """Measures each statement of a debugger's program at its first execution; create it before the run.

    The debugger runs the whole program: selectors are unique in what it runs.
    `backends` are the candidates beside the backend of the run, and `clock` returns seconds.
    """

    def __init__(
        self,
        debugger: Debugger,
        backends: Mapping[str, Backend],
        unavailable: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loaded = debugger.loaded
        self._holding = own = debugger.backend
        self._backends = [own, *(each for name, each in backends.items() if name != own.name)]
        self._reference = own if own.name == "numpy" else NumPy()
        self._clock = clock
        self._selectors = ExactSelectors(debugger.loaded.program)
        self._pinned = {each.line for each in self._loaded.kernels() if each.reason == "chosen"}
        self._seen: set[tuple[Path, int]] = set()
        self.tuning = Tuning(own.name, unavailable=unavailable or {})
        linker = self._loaded.linker
        linker.covers = [*linker.covers, self._cover]
        linker.link_again()

    def _cover(self, kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        """Return the kernels of a statement, measured before their first execution."""
        if statement.code.formula is not None or not has_choice(call.node):
            return kernels
        tune = partial(self._tune_once, call, statement)

        def run(*inputs: Any) -> Any:
            tune(inputs)
            return kernels.run(*inputs)

        def into(*arguments: Any) -> Any:
            tune(arguments[:-1])
            assert kernels.into is not None
            return kernels.into(*arguments)

        return Kernels(run, None if kernels.into is None else into, kernels.views)

    def _tune_once(self, call: Call, statement: Statement, inputs: Sequence[Any]) -> None:
        key = (statement.code.path, statement.pc)
        if key in self._seen:
            return
        self._seen.add(key)
        line = self._loaded.line(statement.code, statement.pc)
        if line is None:
            return
        selector = self._selectors.selector(statement.code.path, call.node, line)
        tuned = TunedStatement(line, call.node.op, selector)
        reason = "its kernel is chosen already" if line in self._pinned else left_out(call)
        if reason:
            tuned = replace(tuned, left_out=reason)
        else:
            kernels = tuple(self._measured(call, statement, inputs))
            tuned = replace(tuned, kernels=kernels, chosen=_fastest(kernels))
            if not tuned.chosen:
                tuned = replace(tuned, left_out="no kernel was verified")
        self.tuning.statements.append(tuned)

    def _measured(self, call: Call, statement: Statement, inputs: Sequence[Any]) -> Iterator[MeasuredKernel]:
        # Buffers that the run inspects are its own: measured kernels allocate theirs.
        call = replace(call, fresh=None)
        copies = host_copies(inputs, self._holding)
        expected = self._expected(call, copies)
        for each in self._backends:
            kernel = kernels_for(each, self._holding, call).run
            yield self._measure(each, kernel, call, statement, copies, expected)

    def _expected(self, call: Call, copies: Sequence[Any]) -> tuple[str, list[Any]]:
        """Return the name of the reference and its results: NumPy's kernel, else that of the run."""
        for each in (self._reference, self._holding):
            try:
                results = kernels_for(each, self._holding, call).run(*placed_copies(copies, self._holding))
            except Exception as error:  # noqa: BLE001  a kernel may raise anything; the run reports it
                if isinstance(error, UnsupportedOp):
                    continue
                break
            return each.name, self._on_host(results, call)
        return "", []

    def _on_host(self, results: Any, call: Call) -> list[Any]:
        """Return the results that a statement names, copied to the host."""
        listed = results if call.several else (results,)
        named = [result for value, result in zip(call.node.outputs, listed, strict=False) if value.name]
        return host_copies(named, self._holding)

    def _measure(
        self,
        backend: Backend,
        kernel: Execute,
        call: Call,
        statement: Statement,
        copies: Sequence[Any],
        expected: tuple[str, list[Any]],
    ) -> MeasuredKernel:
        """Execute a kernel once to verify it, and if it is correct, several times to measure it."""
        operands = placed_copies(copies, self._holding)
        try:
            found = self._on_host(kernel(*operands), call)
        except UnsupportedOp as error:
            return MeasuredKernel(backend.name, lacks=error.message)
        except Exception as error:  # noqa: BLE001  a kernel may raise anything
            words = error.message if isinstance(error, NncdbgError) else f"{type(error).__name__}: {error}"
            return MeasuredKernel(backend.name, rejected=f"it fails: {words}")
        wrote = changed_operand(copies, operands, self._holding)
        if wrote is not None:
            name = call.node.inputs[wrote]
            operand = f"%{name_text(name)}" if isinstance(name, str) else f"{wrote + 1}"
            return MeasuredKernel(backend.name, rejected=f"it writes to its operand {operand}")
        reference, wanted = expected
        if not reference:
            return MeasuredKernel(backend.name, rejected="no other kernel can verify it")
        wrong = _difference(found, wanted, terms_of(statement.code, statement.pc, copies, wanted))
        if wrong:
            return MeasuredKernel(backend.name, rejected=f"it differs from {reference}: {wrong}")
        return MeasuredKernel(backend.name, seconds=self._shortest(kernel, operands, call.several))

    def _shortest(self, kernel: Execute, operands: Sequence[Any], several: bool) -> float:
        clock, shortest, spent, runs = self._clock, float("inf"), 0.0, 0
        while runs < LEAST or (runs < MOST and spent < BUDGET):
            start = clock()
            self._wait(kernel(*operands), several)
            seconds = clock() - start
            shortest, spent, runs = min(shortest, seconds), spent + seconds, runs + 1
        return shortest

    def _wait(self, results: Any, several: bool) -> None:
        """Wait for a kernel on a device: one element of its result is read."""
        if self._holding.on_host:
            return
        for result in results if several else (results,):
            if hasattr(result, "reshape") and result.shape is not None and 0 not in result.shape:
                self._holding.to_host(result.reshape(-1)[:1])
                return


def left_out(call: Call) -> str:
    """Return why the kernels of a statement must not be executed again, or need not; "" if they may be."""
    if call.op.draws(call.node.inputs) or "random" in call.node.attributes:
        return "it draws random numbers"
    if is_torch(call.node.op):
        return "only torch has a kernel for it"
    if call.node.op.startswith("nncdbg."):
        return "it is an op of the debugger"
    if call.op.foreign and not call.op.reference:
        return "a custom kernel may keep state between its executions"
    return ""


def _fastest(kernels: Sequence[MeasuredKernel]) -> str:
    """Return the backend of the fastest correct kernel, the first one unless another is clearly faster."""
    measured = [(each.seconds, each.backend) for each in kernels if each.seconds is not None]
    if not measured:
        return ""
    own = kernels[0].seconds
    seconds, name = min(measured)
    return kernels[0].backend if own is not None and seconds >= own * ADVANTAGE else name


def _difference(found: Sequence[Any], wanted: Sequence[Any], terms: int) -> str:
    """Return how results differ from those of the reference by more than rounding; "" if they agree."""
    if len(found) != len(wanted):
        return f"{counted(len(found), 'result')} against {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        types = type_of(one), type_of(other)
        if types[0] != types[1]:
            return f"{types[0]} against {types[1]}"
        match = measure(NOWHERE, NOWHERE, "place", (one, other), Tolerance(), terms)
        if match.diverges:
            if match.elements is None:
                return match.detail
            a, b = match.elements
            where = list(match.excess.where or ())
            return f"{counted(match.excess.count, 'element')}, at {where} {a} against {b}"
    return ""


def host_copies(values: Sequence[Any], holding: Backend) -> list[Any]:
    """Return copies of operands in host memory that shares no byte with the values of the run."""
    return [_copied(holding.to_host(value)) for value in values]


def placed_copies(copies: Sequence[Any], holding: Backend) -> list[Any]:
    """Return further copies, held as the backend of the run holds its values."""
    return [_placed(_copied(copy), holding) for copy in copies]


def changed_operand(copies: Sequence[Any], placed: Sequence[Any], holding: Backend) -> int | None:
    """Return the number of the first operand that a kernel wrote to; None if it wrote to none."""
    for index, (copy, value) in enumerate(zip(copies, placed, strict=True)):
        if not same_bits(copy, holding.to_host(value)):
            return index
    return None


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return np.array(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _placed(copy: Any, holding: Backend) -> Any:
    if isinstance(copy, list):
        return [_placed(item, holding) for item in copy]
    return holding.to_device(copy)
