"""The spelling of types in program text, in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from nncdbg.dtypes import NUMPY
from nncdbg.ir.records import Dim, MapType, OptionalType, SequenceType, TensorType, Type, Value
from nncdbg.text.lexemes import STRING, TENSOR, WORD, Flaw, name_text, nearest, quote, unquote

_is_word = re.compile(WORD).fullmatch


def _dim_text(dim: Dim) -> str:
    if dim is None:
        return "?"
    if isinstance(dim, str):
        return dim if _is_word(dim) else quote(dim)
    return str(dim)


@lru_cache(maxsize=16384)
def print_type(type: Type) -> str:
    """Spell a type: ``f32[N,3,?]``; ``f32[...]`` for unknown rank; ``seq(f32[2])``.  Quotes odd symbols."""
    if isinstance(type, (SequenceType, OptionalType)):
        return f"{_WRAPPER[type.__class__]}({print_type(type.element)})"
    if isinstance(type, MapType) or type.shape is None:
        return str(type)
    return f"{type.dtype}[{','.join(map(_dim_text, type.shape))}]"


def value_text(value: Value, spell: Callable[[str], str] = name_text) -> str:
    """Spell a definition: ``%name: type``, without the type if unknown; ``_`` for the empty name."""
    name = "%" + spell(value.name) if value.name else "_"
    return name if value.type is None else f"{name}: {print_type(value.type)}"


_WRAPPED: dict[str, Callable[[Type], Type]] = {"seq": SequenceType, "opt": OptionalType}
_WRAPPER: dict[object, str] = {made: word for word, made in _WRAPPED.items()}
_wrapper = re.compile(r"(seq|opt)\(\s*")

_DEEPEST = 32
"""Maximum nesting of types; ONNX itself uses at most two levels."""

_type_head = re.compile(r"([A-Za-z]\w*)\[\s*", re.ASCII)
_dim = re.compile(rf"(-?[0-9]{{1,18}}(?!\w)|{WORD}|\?|{STRING})\s*(,|\])\s*")


_MAP = r"map\(\s*(\w+)\s*,\s*(\w+)\s*\)"
_innermost = re.compile(f"{TENSOR}|{_MAP}", re.ASCII).match
_map = re.compile(_MAP, re.ASCII).fullmatch
_close = re.compile(r"\s*\)").match


def type_end(line: str, position: int) -> int | None:
    """Return the end of the type that begins at `position` of a line; None if there is no type."""
    depth = 0
    while (opened := _wrapper.match(line, position)) is not None:
        depth += 1
        position = opened.end()
    match = _innermost(line, position)
    for _ in range(depth):
        match = _close(line, match.end()) if match is not None else None
    return match.end() if match is not None and depth <= _DEEPEST else None


@lru_cache(maxsize=16384)
def parse_type(text: str) -> Type:
    """Parse the whole of `text` as a type.

    Raises Flaw, with its place relative to `text`.
    """
    opened = _wrapper.match(text)
    if (pair := _map(text)) is not None:
        return MapType(*(_dtype(pair[group], pair.start(group)) for group in (1, 2)))
    if opened is None:
        return _parse_tensor_type(text)
    if type_end(text, 0) != len(text):
        raise Flaw("not a type", 0, len(text), "a type looks like seq(f32[2])")
    inner = text[opened.end() : -1].rstrip()
    try:
        return _WRAPPED[opened[1]](parse_type(inner))
    except Flaw as flaw:
        raise Flaw(flaw.message, opened.end() + flaw.start, flaw.width, flaw.hint) from None


def _parse_tensor_type(text: str) -> TensorType:
    """Parse `text` as a tensor type.  Raises Flaw, with its place relative to `text`."""
    head = _type_head.match(text)
    if head is None:
        raise Flaw("not a type", 0, len(text), "a type looks like f32[N,3,?]")
    dtype = _dtype(head[1], 0)
    position = head.end()
    rest = text[position:].rstrip()
    if rest == "]":
        return TensorType(dtype, ())
    if re.fullmatch(r"\.\.\.\s*\]", rest):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_parse_dims(text, position)))


def _dtype(word: str, start: int) -> str:
    """Return an element type.  Raises Flaw for another word."""
    if word not in NUMPY:
        raise Flaw(f"no element type {word}", start, len(word), nearest(word, NUMPY) or _DTYPES)
    return word


_DTYPES = "use one of: " + " ".join(NUMPY)


def _parse_dims(text: str, position: int) -> list[Dim]:
    dims: list[Dim] = []
    while True:
        match = _dim.match(text, position)
        if match is None or (match[2] == "]") != (match.end() == len(text)):
            raise Flaw(
                "not a size",
                position,
                max(1, len(text) - 1 - position),
                "write a size as 3, N, ? or a quoted symbol",
            )
        dims.append(_parse_dim(match[1], position))
        if match[2] == "]":
            return dims
        position = match.end()


def _parse_dim(text: str, start: int) -> Dim:
    if text == "?":
        return None
    if text[0] == '"':
        return unquote(text, start)
    return int(text) if text[0] in "-0123456789" else text
