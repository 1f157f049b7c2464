"""Short names of kernels for the text of a program."""

from __future__ import annotations

import re
from functools import cache

_MANGLED = re.compile(r"_ZN?K?")
_OPERATOR = re.compile(r"(?:torch\.)?\w+\.(\w+)\.\w+")


@cache
def short_name(name: str) -> str:
    """Return the name of a function without namespaces, template arguments and parameters, as one word.

    ``void at::native::reduce_kernel<512, 1>(float*)`` and its mangled name give ``reduce_kernel``, the
    operator ``aten.add_.Tensor`` gives ``add_``, ``Memcpy HtoD (Pinned -> Device)`` gives ``Memcpy_HtoD``.
    """
    operator = _OPERATOR.fullmatch(name)
    if operator is not None:
        return operator[1]
    found = _of_mangled(name) if name.startswith("_Z") else _of_declaration(name)
    word = re.sub(r"\W+", "_", found, flags=re.ASCII).strip("_") or "unnamed"
    return f"_{word}" if word[0].isdigit() else word


def _of_declaration(name: str) -> str:
    """Return the last part of a qualified name, from a declaration in C++."""
    name = name.replace("(anonymous namespace)", "anonymous")
    outside, depth = [], 0
    for letter in name:
        if letter == "(" and depth == 0:
            break
        depth -= letter == ">" and depth > 0
        if depth == 0 and letter not in "<>":
            outside.append(letter)
        depth += letter == "<"
    plain = "".join(outside).strip().removeprefix("void ")
    return plain.rpartition("::")[2] or plain


def _of_mangled(name: str) -> str:
    """Return the last identifier of the first qualified name in a mangled one."""
    prefix = _MANGLED.match(name)
    at = prefix.end() if prefix is not None else len(name)
    nested = name.startswith("_ZN")
    found = ""
    while number := re.compile(r"\d+").match(name, at):
        begin = number.end()
        at = begin + int(number[0])
        found = name[begin:at]
        if not nested:
            break
    return found or name
