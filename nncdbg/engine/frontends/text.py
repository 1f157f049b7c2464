"""Graph text as a source of programs: parse the file, and open the stores it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends import attach_stores, confined
from nncdbg.engine.frontends import load as load_source
from nncdbg.engine.frontends.listings import owner_of, workspace_of
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.frontends.printed import printed_stores
from nncdbg.ir.records import Program


def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = ()) -> Program:
    """Return the program in a .nnc file.  `flat` is ignored: the text defines its graphs.

    Allowed stores are those below its folder or one of `stores`, and those of the model from which this
    user printed the file.  For a listing of a model, return the program of that model, which must be below
    the workspace of the listing, or below one of `stores`.

    Raises LoadError if the file or a store cannot be read, ParseError if the text is wrong.
    """
    from nncdbg.textual_repr.parser import parse

    file_size(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{path} is not UTF-8 text: byte {error.start} is invalid",
            hint="save graph text as UTF-8, or rename an ONNX model to .onnx",
        ) from error
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    workspace, owner = workspace_of(path), owner_of(text)
    if workspace is not None and owner is not None:
        model = confined(owner, workspace, stores, "model")
        if not model.is_file():
            raise LoadError(
                f"{path} is the listing of {owner}, but {model} does not exist",
                hint="open the model itself",
            )
        return _listed(model, text, flat, stores)
    allowed = (*stores, *printed_stores(path))
    return replace(attach_stores(parse(text, file=str(path)), path.parent, allowed), source=str(path))


def _listed(model: Path, text: str, flat: bool, stores: Sequence[Path]) -> Program:
    """Return the program of a model, with layers or flat, as in its listing."""
    made = load_source(model, flat=flat, stores=stores)
    if flat or _shows(text, made):
        return made
    other = load_source(model, flat=True, stores=stores)
    return other if _shows(text, other) else made


def _shows(text: str, program: Program) -> bool:
    from nncdbg.textual_repr.printer import listing

    return text.splitlines()[:-1] == list(listing(program, locations=False).lines)
