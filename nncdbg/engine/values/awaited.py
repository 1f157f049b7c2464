"""Results of the next statement that the user sets, because its op has no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Linker
from nncdbg.engine.execution.user_results import UserResults
from nncdbg.engine.values.editing import edited
from nncdbg.engine.values.new_values import from_text, whole_result
from nncdbg.engine.values.values import Values
from nncdbg.expression import evaluate_index, parse_index


@dataclass(frozen=True, slots=True)
class Awaited:
    """Holds the results that the user sets; `linker` links the statement again after each."""

    linker: Linker
    supplied: UserResults
    folder: Path | None
    say: Callable[[str], None]

    def names(self, code: Code, pc: int, refused: bool) -> tuple[str, ...]:
        """Return the results of the statement at `pc` that can be set; `refused`: it has just failed."""
        if not code.runs_kernel(pc) or not (refused or self.supplied.has(code, pc)):
            return ()
        return tuple(value.name for value in code.nodes[pc].outputs if value.name)

    def set(self, name: str, value: Any, index: Any, scope: Values) -> None:
        """Set a result of the next statement, or its part at `index` (see `Debugger.set_value`)."""
        frame = scope.machine.frames[-1]
        code, pc = frame.code, frame.pc
        known = code.types.get(name)
        if isinstance(value, str):
            value = from_text(name, known, value, self.folder, self.say)
        if index is None:
            array = whole_result(name, known, value)
        else:
            if isinstance(index, str):
                index = evaluate_index(parse_index(index, scope.has, scope.names), scope)
            array = edited(name, scope.value(name), value, index)
        output = [each.name for each in code.nodes[pc].outputs].index(name)
        self.supplied.supply(code, pc, output, array)
        self.linker.link_statement(code, pc)

    def content(self, frame: Frame, slot: int) -> Any:
        """Return the result set for the next statement of a frame; UNSET if there is none."""
        code, pc = frame.code, frame.pc
        if code.definition[slot] != pc or not self.supplied.has(code, pc):
            return UNSET
        outputs = [each.name for each in code.nodes[pc].outputs]
        return self.supplied.result(code, pc, outputs.index(code.names[slot]))
