"""Data in the text of a new value: `zeros[2,3]`, `x.npy`, `0.5`."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.inputs.data_specs import Plain, data_file, generated, names_data, read_spec


def split_data(text: str) -> tuple[str, str] | None:
    """Split ``%v = zeros[2,3]`` or ``%v = x.npy`` into target and data; None for any other assignment."""
    for place, character in enumerate(text):
        data = text[place + 1 :].strip().strip("\"'")
        if character == "=" and names_data(data):
            return text[:place].strip(), data
    return None


def is_data(text: str) -> bool:
    """Return whether a text is generated data or a file.  Raises UsageError for wrong sizes and steps."""
    return generated(text) is not None or data_file(text) is not None


def plain_data(text: str) -> Any:
    """Return the number, text, bool or nested list in a text; None for generated data and files.

    Raises UsageError for a text in no form of data.
    """
    spec = read_spec(text)
    return spec.data if isinstance(spec, Plain) else None
