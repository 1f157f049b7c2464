"""Where the operands of a statement come from, seen while the program runs.

A value is known by its identity, which calls, blocks and iterations leave as it is: so the data flow is
that of the ops alone, whatever graphs they are in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.written import Fixed, Given, Key, Result, Source
from nncdbg.engine.execution.frame import Frame


class Origins:
    """The origin of every value that is still in memory; the first statement that gives it counts."""

    def __init__(self, debugger: Debugger) -> None:
        self._known: dict[int, tuple[Callable[[], Any], Source]] = {}
        self._codes: set[int] = set()
        self.passed_on: dict[Result, Result] = {}
        """Results of calls and blocks that statements inside them have computed."""
        for name, content in zip(debugger.inputs, debugger.machine.frames[0].slots[1:], strict=False):
            self._note(content, Given(name))

    def operands(self, frame: Frame) -> tuple[Source, ...]:
        """The origins of what the statement at the frame's pc reads."""
        code: Code | None = frame.code
        while code is not None and id(code) not in self._codes:
            self._constants(code)
            code = code.parent
        return tuple(self._of(frame.slots[slot]) for slot in frame.code.operands[frame.pc])

    def _of(self, content: Any) -> Source:
        """Its origin; a value that was recomputed, as the history dropped it, has none but itself."""
        if content is None:
            return None
        return self.of(content) or Fixed(content)

    def of(self, content: Any) -> Source:
        """The origin of a value, None if it is not known."""
        known = self._known.get(id(content))
        return known[1] if known is not None and known[0]() is content else None

    def results(self, key: Key, contents: Sequence[Any]) -> None:
        """Note what a statement has written."""
        for index, content in enumerate(contents):
            known, result = self.of(content), Result(key, index)
            if isinstance(known, Result):
                self.passed_on[result] = known
            self._note(content, result)

    def _constants(self, code: Code) -> None:
        self._codes.add(id(code))
        for slot, content in enumerate(code.template):
            if slot and content is not UNSET and content is not None and code.definition[slot] < 0:
                self._note(content, Fixed(content))

    def _note(self, content: Any, source: Source) -> None:
        if content is None or self.of(content) is not None:
            return
        number = id(content)
        if isinstance(content, np.ndarray) or hasattr(content, "__weakref__"):
            self._known[number] = (weakref.ref(content, lambda _: self._known.pop(number, None)), source)
        else:
            # Sequences and scalars take no weak references.
            self._known[number] = ((lambda: content), source)
