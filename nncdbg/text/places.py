"""Places as commands accept them."""

from __future__ import annotations

from nncdbg.text.lexemes import name_text

_SIGILS = {"op": "", "graph": "@", "value": "%", "data": "%", "node": "node "}


def place_text(kind: str, name: str) -> str:
    """Return a place as commands accept it: `%h`, `@layer1`, `node /attn/Softmax`, `Softmax`."""
    if kind not in _SIGILS:
        return name
    return _SIGILS[kind] + (name if kind == "op" else name_text(name))
