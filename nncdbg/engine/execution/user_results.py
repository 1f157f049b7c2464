"""User-supplied results for statements with an op that has no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.backends import Call, Kernels
from nncdbg.engine.compilation.code import UNSET, Code, Statement
from nncdbg.errors import UnsupportedOp
from nncdbg.text.lexemes import name_text


@dataclass(slots=True)
class UserResults:
    """The results supplied per statement.  They apply in every iteration and on every branch."""

    to_device: Callable[[Any], Any]
    _given: dict[tuple[Code, int], list[Any]] = field(default_factory=dict)

    def supply(self, code: Code, pc: int, output: int, array: Any) -> None:
        """Supply one result of a statement."""
        results = self._given.setdefault((code, pc), [UNSET] * len(code.nodes[pc].outputs))
        results[output] = self.to_device(array)

    def has(self, code: Code, pc: int) -> bool:
        """Return whether a result of the statement was supplied."""
        return (code, pc) in self._given

    def result(self, code: Code, pc: int, output: int) -> Any:
        """Return a supplied result, or UNSET if there is none."""
        return self._given[code, pc][output] if self.has(code, pc) else UNSET

    def missing(self, code: Code, pc: int) -> list[str]:
        """Return the names of the results that are not supplied yet."""
        outputs = code.nodes[pc].outputs
        given = self._given.get((code, pc), [UNSET] * len(outputs))
        pairs = zip(outputs, given, strict=True)
        return [value.name for value, result in pairs if value.name and result is UNSET]

    def cover(self, kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        """Return the kernels of a statement with supplied results: they return these once complete."""
        code, pc = statement.code, statement.pc
        if not self.has(code, pc):
            return kernels

        def run(*inputs: Any) -> Any:
            missing = self.missing(code, pc)
            if missing:
                names = " and ".join(f"%{name_text(name)}" for name in missing)
                raise UnsupportedOp(
                    f"{call.node.op} has no kernel, and {names} is not set yet",
                    hint=f"set %{name_text(missing[0])} = zeros[SIZES], or set it to FILE.npy",
                )
            results = [None if result is UNSET else result for result in self._given[code, pc]]
            return results if call.several else results[0]

        return Kernels(run)
