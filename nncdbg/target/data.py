"""Assignments of data to values: `%v = zeros[2,3]`."""

from __future__ import annotations

from nncdbg.engine.inputs.data_specs import names_data


def split_data(text: str) -> tuple[str, str] | None:
    """Split ``%v = zeros[2,3]`` or ``%v = x.npy`` into target and data; None for any other assignment."""
    for place, character in enumerate(text):
        data = text[place + 1 :].strip().strip("\"'")
        if character == "=" and names_data(data):
            return text[:place].strip(), data
    return None
