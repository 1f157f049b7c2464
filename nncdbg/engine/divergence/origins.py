"""Origins of the operands of a statement, recorded while the program runs.

Values are tracked by identity, which calls, blocks and iterations preserve, so the data flow connects
ops across graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.written import Fixed, Given, Key, Source, WrittenResult
from nncdbg.engine.execution.frame import Frame


class Origins:
    """The origin of every value in memory: the first statement that returned it."""

    def __init__(self, debugger: Debugger) -> None:
        self._known: ByIdentity[Source] = ByIdentity()
        self._codes: set[Code] = set()
        self.passed_on: dict[WrittenResult, WrittenResult] = {}
        """Results of calls and blocks, mapped to the results of the statements inside that computed them."""
        for name, content in zip(debugger.inputs, debugger.control.machine.frames[0].slots[1:], strict=False):
            self._note(content, Given(name))
        # The data of states is on the device there.
        entry = debugger.control.machine.frames[0]
        for constant, content in zip(entry.code.template, entry.slots, strict=True):
            if isinstance(constant, np.ndarray):
                self._note(content, Fixed(constant))

    def operands(self, frame: Frame) -> tuple[Source, ...]:
        """Return the origins of the operands of the statement at the frame's pc."""
        code: Code | None = frame.code
        while code is not None and code not in self._codes:
            self._constants(code)
            code = code.parent
        return tuple(self._of(frame.slots[slot]) for slot in frame.code.operands[frame.pc])

    def _of(self, content: Any) -> Source:
        """Return the origin of a value; a value recomputed after an eviction is its own origin."""
        if content is None:
            return None
        return self.of(content) or Fixed(content)

    def of(self, content: Any) -> Source:
        """Return the origin of a value; None if it is unknown."""
        return self._known.get(content)

    def results(self, key: Key, contents: Sequence[Any]) -> None:
        """Record the results of a statement."""
        for index, content in enumerate(contents):
            known, result = self.of(content), WrittenResult(key, index)
            if isinstance(known, WrittenResult):
                self.passed_on[result] = known
            self._note(content, result)

    def _constants(self, code: Code) -> None:
        self._codes.add(code)
        for slot, content in enumerate(code.template):
            if slot and content is not UNSET and content is not None and code.definition[slot] < 0:
                self._note(content, Fixed(content))

    def _note(self, content: Any, source: Source) -> None:
        if content is not None and self.of(content) is None:
            self._known.set(content, source)
