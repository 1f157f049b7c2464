"""Parser of values as an editor displays them (`f32[3] [1. nan 0.5]`), after the user has edited them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dap_server.variables.value_text import Glance, type_text
from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.inputs.data_specs import Plain, read_spec

if TYPE_CHECKING:
    from nncdbg.engine.graph import Array

_TYPED = re.compile(r"\s*(\w+)\[([\d,\s]*)\]\s+(\S.*)", re.DOTALL)
_ELEMENT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s\[\],]+""")


def is_displayed(text: str) -> bool:
    """Return whether a text begins with the type of a tensor, as displayed values do."""
    found = _TYPED.fullmatch(text)
    return found is not None and found[1] in dtypes.NUMPY


def from_display(text: str, before: Array, glance: Glance) -> Array:
    """Return the array, of the type and shape of `before`, that an edited display of it describes.

    Elements whose text has not changed keep their exact value, as the display is rounded.  Raises
    UsageError for another type or shape, and for a display that has statistics instead of elements.
    """
    found = _TYPED.fullmatch(text)
    assert found is not None, "`is_displayed` has accepted it"
    before = np.asarray(before)
    known, given = type_text(before), f"{found[1]}[{found[2].replace(' ', '')}]"
    if given != known:
        raise UsageError(f"the value is {known}, but the text is {given}", hint="keep the type and shape")
    shown = _ELEMENT.findall(glance.text(before).removeprefix(f"{known} "))
    elements = _ELEMENT.findall(found[3])
    if len(shown) != before.size:
        raise UsageError(
            "this text cannot be edited: it shows statistics instead of all elements",
            hint="enter a number, zeros, FILE.npy or an expression; or open the value and edit an element",
        )
    if len(elements) != before.size:
        raise UsageError(f"{known} has {before.size} elements, but the text has {len(elements)}")
    pairs = zip(before.reshape(-1), shown, elements, strict=True)
    values = [old if new == text else _element(new) for old, text, new in pairs]
    return np.array(values, dtype=object if before.dtype.kind == "O" else None).reshape(before.shape)


def _element(text: str) -> Any:
    """Parse the number, bool or string in a text.  Raises UsageError."""
    spec = read_spec(text)
    if not isinstance(spec, Plain):
        raise UsageError(f"{text} is not a valid element", hint="use a number, true, false, nan or inf")
    return spec.data
