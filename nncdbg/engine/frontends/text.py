"""Graph text as a source of programs, and the listings of programs.

A listing is the text without locations, and without attributes that are equal to defaults.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nncdbg.engine.frontends import attach_stores, confined
from nncdbg.engine.frontends import load as load_source
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.ops.aten.operators import VIEWS
from nncdbg.engine.ops.schema import schema, version_of
from nncdbg.errors import LoadError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import reads
from nncdbg.ir.records import Attribute, Node, Program
from nncdbg.ir.records import Path as BlockPath
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import blocks
from nncdbg.process.files import state_folder
from nncdbg.text.file_names import owner_of, workspace_of
from nncdbg.text.listing import Listing
from nncdbg.text.torch_names import base_name, is_torch
from nncdbg.textual_repr.printer import listing

# -- stores of printed texts -----------------------------------------------------------------------
# Stores outside of the folder of a text that this user printed from a model.
#
# `nncdbg print` records the text and its stores in the user's own state folder.  The text can then be
# opened without `--allow-store`.  A text from another user has no such record, and an edited text cannot
# reach other files.


def note_printed(text: Path, stores: Sequence[Path]) -> bool:
    """Record the files that hold the data of a printed text, replacing an earlier record.

    Return False if the record cannot be written: the text then needs `--allow-store`.
    """
    note = _note_of(text)
    try:
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = note.with_suffix(".part")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(json.dumps([os.fspath(store.resolve()) for store in stores]).encode())
        draft.replace(note)
    except OSError:
        return False
    return True


def forget_printed(text: Path) -> None:
    """Remove the record of a text whose data is below its folder."""
    with contextlib.suppress(OSError):
        _note_of(text).unlink(missing_ok=True)


def printed_stores(text: Path) -> list[Path]:
    """Return the files that hold the data of a text, if this user printed it; else an empty list."""
    try:
        stores = json.loads(_note_of(text).read_bytes())
    except (OSError, ValueError):
        return []
    return [Path(store) for store in stores if isinstance(store, str)] if isinstance(stores, list) else []


def _note_of(text: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(text.resolve())).hexdigest()
    return state_folder() / "printed" / f"{digest}.json"


# -- loading ---------------------------------------------------------------------------------------


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
        made = load_source(model, flat=flat, stores=stores)
        if flat or _shows(text, made):
            return made
        other = load_source(model, flat=True, stores=stores)
        return other if _shows(text, other) else made
    allowed = (*stores, *printed_stores(path))
    return replace(attach_stores(parse(text, file=str(path)), path.parent, allowed), source=str(path))


def _shows(text: str, program: Program) -> bool:
    return text.splitlines()[:-1] == list(program.as_listing().lines)


# -- listings --------------------------------------------------------------------------------------

_WINDOWED = frozenset(
    ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "AveragePool", "LpPool", "MaxUnpool")
)
_PER_AXIS = {"dilations": 1, "strides": 1, "pads": 0}
"""Defaults of attributes of the operators above, for all axes (ONNX: "if not present, defaults to ...")."""


def listing_of(program: Program) -> Listing:
    """Return the lines of the text that the program was parsed from, else of its listing."""
    if "listing" not in program.kept:
        made = program.listing or listing(without_defaults(program), locations=False)
        unread = frozenset(unread_views(program, made))
        program.kept["listing"] = replace(made, unread=unread) if unread else made
    return program.kept["listing"]  # type: ignore[no-any-return]


def unread_views(program: Program, shown: Listing) -> Iterator[int]:
    """Yield the lines of statements that only view memory, and whose results nothing reads.

    PyTorch makes many of them: autograd detaches what it saves, and a parameter is transposed twice.
    """
    for path, block in blocks(program.graphs):
        views = [pc for pc, node in enumerate(block.nodes) if _is_view(node)]
        if not views:
            continue
        read = {name for node in block.nodes for name in reads(node)}
        read.update(value.name for value in block.outputs)
        for pc in views:
            if read.isdisjoint(value.name for value in block.nodes[pc].outputs):
                yield shown.line(path, pc)


def _is_view(node: Node) -> bool:
    return is_torch(node.op) and base_name(node.op) in VIEWS


def without_defaults(program: Program) -> Program:
    """Return the program without attributes that are equal to the defaults of their operators.

    It computes the same, since an operator takes the default of an attribute that is absent.
    """

    def statement(path: BlockPath, pc: int, node: Node) -> Node:
        if not node.attributes or node.kind is not Kind.OP or is_torch(node.op):
            return node  # A recorded statement has the arguments of its call, and its schema needs torch.
        found = schema(node.op, version_of(node.op, program.opsets))
        if found is None:
            return node
        kept = {
            key: value
            for key, value in node.attributes.items()
            if not _is_default(node.op, key, value, found.attributes.get(key))
        }
        return node if len(kept) == len(node.attributes) else replace(node, attributes=kept)

    graphs = {name: rewrite(graph, statement) for name, graph in program.graphs.items()}
    if all(graphs[name] is graph for name, graph in program.graphs.items()):
        return program
    return replace(program, graphs=graphs)


def _is_default(op: str, key: str, value: Attribute, default: object) -> bool:
    if default is None:
        usual = _PER_AXIS.get(key) if op in _WINDOWED else None
        return usual is not None and isinstance(value, tuple) and all(each == usual for each in value)
    return type(value) is type(default) and value == default
