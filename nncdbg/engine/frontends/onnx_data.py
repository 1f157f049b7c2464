"""Data in ONNX's own files: the `input_0.pb` of its test data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.frontends.onnx_store import ExternalData, tensor_array
from nncdbg.ir.records import OptionalType, SequenceType, Type


def load_data(path: Path, type_: Type | None) -> Any:
    """Return a file's data for a value of a type: an array, a list of arrays, or None for an absent optional.

    Raises LoadError for a file that cannot be read, or contains another kind of data.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    file_size(path)
    kinds = {SequenceType: onnx.SequenceProto, OptionalType: onnx.OptionalProto}
    message = kinds.get(type(type_), onnx.TensorProto)()
    try:
        message.ParseFromString(path.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise LoadError(f"{path} is damaged, or contains no {type_ or 'tensor'}: {error}") from error
    return _content(message, path)


def _content(message: Any, path: Path) -> Any:
    if not hasattr(message, "elem_type"):
        return tensor_array(message, path.name, ExternalData(path.parent))
    # Sequences and optionals have fields of the same names, in plural and in singular.
    single = hasattr(message, "tensor_value")
    if single:
        field = {1: "tensor_value", 3: "sequence_value", 5: "optional_value"}.get(message.elem_type)
        return None if field is None else _content(getattr(message, field), path)
    field = {1: "tensor_values", 3: "sequence_values", 5: "optional_values"}.get(message.elem_type)
    return [] if field is None else [_content(item, path) for item in getattr(message, field)]
