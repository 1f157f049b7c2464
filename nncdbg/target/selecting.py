"""The latest values of a program that words select, such as `@layer *_w` or `Conv`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.place_names import ANY, PlaceNames
from nncdbg.engine.values.computed import ComputedValue, computed_values
from nncdbg.errors import UsageError
from nncdbg.text.lexemes import STRING, unquote

_PLACE = re.compile(rf"([%@]?)({STRING}|\S+)")


def selected_values(debugger: Debugger, which: str, *, latest: bool) -> Iterator[ComputedValue]:
    """Yield the visits of the values that all words of `which` select, or only the `latest` of each.

    Raises UsageError for unknown names.
    """
    named = debugger.breakpoints.placement.named
    tests = [_selected(named, word[1], word[2]) for word in _PLACE.finditer(which)]

    def selected() -> Iterator[ComputedValue]:
        seen: set[tuple[Code, int]] = set()
        for each in computed_values(debugger.values):
            if (each.code, each.slot) not in seen and all(test(each) for test in tests):
                if latest:
                    seen.add((each.code, each.slot))
                yield each

    return selected()


def _selected(named: PlaceNames, sigil: str, text: str) -> Callable[[ComputedValue], bool]:
    """Return the test of the values of a graph, of an op or node, or with a name that fits a pattern."""
    text = unquote(text) if text.startswith('"') else text
    if not sigil and re.search(r"[*?]", text):
        # A pattern of values rather than of ops, if both have such names.
        with suppress(UsageError):
            values = named.resolve("value", text).names
            return lambda each: each.name in values
    place = named.resolve({"@": "graph", "%": "value"}.get(sigil, ANY), text)
    if place.kind == "value":
        return lambda each: each.name in place.names
    sites = set(named.statements(place))
    if place.kind != "graph":
        return lambda each: (each.code.path, each.pc) in sites
    paths = {path for path, _ in sites}
    return lambda each: any(each.code.path[: len(path)] == path for path in paths)
