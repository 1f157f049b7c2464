"""Graph text as a source of programs: the file is parsed, the stores it names are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends import attach_stores
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.graph import Program


def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = ()) -> Program:
    """Return the program in a .nnc file.  `flat` changes nothing: the text is what the user wrote.

    Its stores are below its folder, or below one of `stores`.

    Raises LoadError if the file or a store cannot be read, ParseError if the text is wrong.
    """
    from nncdbg.textual_repr.parser import parse

    file_size(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{path} is not UTF-8 text: byte {error.start} cannot be read",
            hint="graph text is UTF-8; an ONNX model has the suffix .onnx",
        ) from error
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    return replace(attach_stores(parse(text, file=str(path)), path.parent, stores), source=str(path))
