"""The archive of an exported program: a zip file of JSON, raw tensors and restricted pickles.

No byte of the file reaches an unrestricted unpickler, `eval` or `sympify`: torch's loader falls back to all
three.  Compiled code in the archive is never extracted.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE, ExportedProgramDeserializer
from torch.utils import _pytree as pytree

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.exported.records import payload_records, program_record

_OLD = "serialized_exported_program.json"
"""The program in the layout of torch 2.7 and before."""

_VERSIONS = (b"0",)
"""Versions of the layout of the archive."""

_LARGEST_VIEW = 2**24
"""A weight may have more elements than its bytes, by strides of 0, up to this number."""


def read(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the `torch.export.ExportedProgram` in a `.pt2` file, and notes about what was not read.

    Raises LoadError if the file is not such an archive, or if reading a member would run code.
    """
    try:
        with zipfile.ZipFile(path) as file:
            archive = _Archive(file, path)
            return archive.old_program() if _OLD in archive.members else archive.program()
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as error:
        raise LoadError(
            f"{path} is not an archive of torch.export.save: {error}",
            hint="save one with torch.export.save(program, path)",
        ) from None


class _Archive:
    def __init__(self, file: zipfile.ZipFile, path: Path) -> None:
        self._file, self._path = file, path
        names = file.namelist()
        self._root = "" if _OLD in names or not names else f"{names[0].partition('/')[0]}/"
        self.members = {name.removeprefix(self._root) for name in names}
        size = os.path.getsize(path)
        for each in file.infolist():
            # Stored members are not larger than the file: none expands to fill the memory.
            if each.compress_type != zipfile.ZIP_STORED or each.file_size > size:
                self._refuse(each.filename, "it is compressed; torch.export.save stores members as they are")

    def program(self) -> tuple[Any, tuple[str, ...]]:
        """Return the program in the layout of torch 2.8 and later."""
        if "archive_format" not in self.members or self._bytes("archive_format") != b"pt2":
            raise LoadError(
                f"{self._path} is not an archive of torch.export.save: there is no member archive_format",
                hint="save one with torch.export.save(program, path)",
            )
        version = self._bytes("archive_version")
        if version not in _VERSIONS:
            self._refuse("archive_version", f"the version {version[:20]!r} of the archive is not known")
        name = self._model()
        weights = self._payloads(name, "weights", "weight_")
        constants = self._payloads(name, "constants", "tensor_")
        member = f"models/{name}.json"
        record = program_record(self._bytes(member), member)
        inputs, notes = self._inputs(f"data/sample_inputs/{name}.pt")
        return self._made(record, weights, constants, inputs), notes

    def old_program(self) -> tuple[Any, tuple[str, ...]]:
        """Return the program in the layout of torch 2.7 and before."""
        record = program_record(self._bytes(_OLD), _OLD)
        weights, constants = (self._tensors(f"serialized_{name}.pt") for name in ("state_dict", "constants"))
        inputs, notes = self._inputs("serialized_example_inputs.pt")
        return self._made(record, weights, constants, inputs), notes

    def _model(self) -> str:
        names = [
            each.removeprefix("models/").removesuffix(".json")
            for each in sorted(self.members)
            if each.startswith("models/") and each.endswith(".json")
        ]
        if "model" in names or len(names) == 1:
            return "model" if "model" in names else names[0]
        if names:
            self._refuse(f"models/{names[0]}.json", f"the archive has {len(names)} models, none named model")
        raise LoadError(
            f"{self._path} contains no graph, only compiled code or other files",
            hint="save the program with torch.export.save(program, path)",
        )

    def _made(
        self, record: Any, weights: Mapping[str, Any], constants: Mapping[str, Any], inputs: Any
    ) -> Any:
        """Return the program that torch makes of checked records and of tensors."""
        major, known = record.schema_version.major, schema.SCHEMA_VERSION[0]
        if major != known:
            raise LoadError(
                f"{self._path} has version {major} of torch's schema; "
                f"torch {torch.__version__} reads version {known}",
                hint="save the program again with torch.export.save, with this version of torch",
            )
        signature = record.graph_module.signature
        names = [
            _argument_name(each.value) or f"input{number}"
            for number, each in enumerate(signature.input_specs)
            if each.type in ("user_input", "constant_input")
        ]
        record.graph_module.module_call_graph = [
            schema.ModuleCallEntry("", _flat_call(names, len(signature.output_specs)))
        ]
        return ExportedProgramDeserializer().deserialize(record, dict(weights), dict(constants), inputs)

    # -- tensors -------------------------------------------------------------------------------

    def _payloads(self, model: str, folder: str, prefix: str) -> dict[str, Any]:
        """Return the weights or the constants of a model by name; tensors of one member share its memory."""
        old = f"data/{folder}/{model}.pt"
        if old in self.members:
            return self._tensors(old)
        config = f"data/{folder}/{model}_{folder}_config.json"
        payloads = payload_records(self._bytes(config), config)
        storages: dict[str, torch.Tensor] = {}
        found: dict[str, Any] = {}
        for name, payload in payloads.items():
            member = f"data/{folder}/{payload.path_name}"
            if not payload.path_name.startswith(prefix):
                self._refuse(member, f"{name} is an object of Python or C++, not a tensor")
            if payload.use_pickle:
                found[name] = self._unpickled(member)
            elif payload.tensor_meta is None:
                self._refuse(member, f"the shape of {name} is missing")
            else:
                if member not in storages:
                    storages[member] = _as_tensor(self._bytes(member))
                found[name] = self._view(member, name, storages[member], payload.tensor_meta)
            if payload.is_param:
                learned = found[name].is_floating_point() or found[name].is_complex()
                found[name] = torch.nn.Parameter(found[name], requires_grad=learned)
        return found

    def _view(self, member: str, name: str, storage: torch.Tensor, meta: Any) -> torch.Tensor:
        """Return the tensor of these sizes and strides in the bytes of a member."""
        numbers = [*meta.sizes, *meta.strides, meta.storage_offset]
        dtype = _SERIALIZE_TO_TORCH_DTYPE.get(meta.dtype)
        if dtype is None or any(each.type != "as_int" or each.as_int < 0 for each in numbers):
            self._refuse(member, f"{name} has no constant sizes or no known dtype")
        sizes = [each.as_int for each in meta.sizes]
        elements = math.prod(sizes)
        if elements == 0:
            return torch.empty(sizes, dtype=dtype)
        if elements > max(storage.numel() // dtype.itemsize, _LARGEST_VIEW):
            self._refuse(member, f"{name} has {elements} elements, but only {storage.numel()} bytes")
        strides = [each.as_int for each in meta.strides]
        try:
            return storage.view(dtype).as_strided(sizes, strides, meta.storage_offset.as_int)
        except (RuntimeError, OverflowError):
            self._refuse(member, f"{name} does not fit into its {storage.numel()} bytes")

    def _tensors(self, member: str) -> dict[str, Any]:
        """Return the tensors by name in a member that `torch.save` wrote."""
        found = self._unpickled(member) if self._bytes(member) else {}
        tensors = isinstance(found, dict) and all(isinstance(each, torch.Tensor) for each in found.values())
        if not tensors:
            self._refuse(member, "it contains other objects than tensors")
        return dict(found)

    def _inputs(self, member: str) -> tuple[Any, tuple[str, ...]]:
        """Return the arguments with which the program was exported, in one tuple; None if there are none."""
        if member not in self.members or not self._bytes(member):
            return None, ()
        try:
            leaves = pytree.tree_leaves(self._unpickled(member))
        except LoadError as error:
            return None, (f"the saved inputs are not used: {error.message}",)
        return (tuple(leaves), {}), ()

    def _unpickled(self, member: str) -> Any:
        data = self._bytes(member)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                if any(each.compress_type != zipfile.ZIP_STORED for each in inner.infolist()):
                    self._refuse(member, "it contains compressed data")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except LoadError:
            raise
        except Exception:  # noqa: BLE001  the unpickler raises many types, and recommends weights_only=False
            self._refuse(
                member, "it contains more than tensors and numbers, and nncdbg runs no code in files"
            )

    def _bytes(self, member: str) -> bytes:
        if member not in self.members:
            raise LoadError(
                f"{self._path} is not complete: the member {member} is missing",
                hint="save the program again with torch.export.save(program, path)",
            )
        return self._file.read(f"{self._root}{member}")

    def _refuse(self, member: str, reason: str) -> NoReturn:
        raise LoadError(
            f"nncdbg does not read the member {member} of {self._path}: {reason}",
            hint="save the program again with torch.export.save(program, path), with tensors as inputs",
        )


def _argument_name(specification: Any) -> str:
    """Return the name of an input of the user; "" if it has none."""
    if isinstance(specification, schema.InputToConstantInputSpec):
        return str(specification.name)
    given = specification.arg.value
    name = getattr(given, "name", None) or getattr(given, "value", None)
    return name if isinstance(name, str) else ""


def _flat_call(names: list[str], results: int) -> Any:
    """Return a call with one argument for each input, and a tuple of results."""
    taken = pytree.tree_flatten((tuple(names), {}))[1]
    given = pytree.tree_flatten(tuple(range(results)))[1]
    specifications = (pytree.treespec_dumps(taken), pytree.treespec_dumps(given))
    return schema.ModuleCallSignature([], [], *specifications, forward_arg_names=names)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
