"""Read an `onnx.ModelProto` from a path, or report one clear reason why the file is not a model."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nncdbg.errors import LoadError

_LARGEST = 2**31 - 1
"""The maximum size of a protobuf message."""

_STRANGERS: tuple[tuple[bytes, str, str], ...] = (
    (b"<", "is an HTML or XML page", "download the file itself, not the page that shows it"),
    (b"version https://git-lfs", "is a Git LFS pointer", "run `git lfs pull` to get the model itself"),
    (b"PK\x03\x04", "is a zip archive", "unpack it, or export the model with torch.onnx.export"),
    (b"\x1f\x8b", "is a gzip file", "unpack it with gunzip"),
    (b"\x80\x02", "is a Python pickle", "export the model with torch.onnx.export; nncdbg never unpickles"),
    (b"\x89HDF", "is an HDF5 file", "convert it with tf2onnx"),
    (b"#nncdbg", "is graph text", "rename it to .nnc"),
)
"""First bytes of file types that are often saved as .onnx by mistake."""

_TEXT = "rename graph text to .nnc; an ONNX model is binary"

_BROKEN = "the file is truncated, damaged or not an ONNX model: download or export it again"


def read_model(path: Path) -> Any:
    """Return the `onnx.ModelProto` in the file, without external data.

    Raises LoadError if the file is missing, a directory, empty, too large, or not a model.
    """
    size = file_size(path)
    if size > _LARGEST:
        raise LoadError(
            f"{path} has {size} bytes; an ONNX model can have at most {_LARGEST}",
            hint="save the weights as external data: onnx.save(model, path, save_as_external_data=True)",
        )
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _decode(path, content)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error


def file_size(path: Path) -> int:
    """Return the size in bytes of a nonempty regular file.  Raises LoadError for anything else."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        folder = path.parent
        hint = _models_in(folder) if folder.is_dir() else f"the folder {folder} does not exist"
        raise LoadError(f"{path} does not exist", hint=hint) from None
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {error}") from error
    if path.is_dir():
        raise LoadError(f"{path} is a directory", hint=_models_in(path))
    if not path.is_file():
        raise LoadError(f"{path} is not a regular file")
    if size == 0:
        raise LoadError(f"{path} is empty", hint="download or export the file again")
    return size


def _decode(path: Path, content: mmap.mmap) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    head = content[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    for start, what, hint in _STRANGERS:
        if head.startswith(start):
            raise LoadError(f"{path} {what}, not an ONNX model", hint=hint)
    view = memoryview(content)
    try:
        model = ModelProto.FromString(view)
    except DecodeError as error:
        if head.isascii() and all(byte >= 32 or byte in b"\t\r\n" for byte in head):
            raise LoadError(f"{path} is text, not an ONNX model", hint=_TEXT) from error
        raise LoadError(f"{path} is not an ONNX model: {error}", hint=_BROKEN) from error
    finally:
        view.release()
    check_model(model, str(path))
    return model


def check_model(model: Any, where: str) -> None:
    """Raise LoadError unless the model has a graph, supported versions, and names in UTF-8."""
    import onnx

    # 0 means that the model states no version.
    if not 0 <= model.ir_version <= onnx.IR_VERSION:
        raise LoadError(
            f"{where} has IR version {model.ir_version}; nncdbg reads versions 1 to {onnx.IR_VERSION}",
            hint=f"upgrade onnx {onnx.__version__}, or export with an older IR version",
        )
    if not model.HasField("graph"):
        raise LoadError(f"{where} contains no graph, so it is not an ONNX model", hint=_BROKEN)
    if not model.opset_import and (model.ir_version >= 3 or model.ir_version <= 0):
        raise LoadError(f"{where} has no opset version, so it is not a complete ONNX model", hint=_BROKEN)
    for text in _damaged_texts(model):
        raise LoadError(f"{where} is damaged: the name {text!r} is not UTF-8", hint=_BROKEN)


def _damaged_texts(message: Any) -> Iterator[bytes]:
    """Yield string fields that are not UTF-8: protobuf returns them as bytes, which cannot be names."""
    for field, value in message.ListFields():
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _damaged_texts(inner)
        elif field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    yield text


def _models_in(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".onnx", ".nnc"))
    except OSError as error:
        return f"the folder {folder} cannot be read: {error.strerror}"
    if not names:
        return f"there is no .onnx or .nnc file in {folder}"
    return f"choose a file in {folder}: " + ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
