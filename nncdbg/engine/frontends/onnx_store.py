"""The weights of an ONNX model by name: inside the file, or memory-mapped beside it.

Each tensor that a `Constant` can refer to has one key, the same in every run: the value's name, or
``path:name`` if an earlier graph of the model has the same name.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.frontends.stores import path_inside
from nncdbg.errors import LoadError
from nncdbg.ir.records import Array, OptionalType, SequenceType, TensorType, Type
from nncdbg.text.lexemes import integer_of

GraphPath: TypeAlias = "tuple[str, ...]"
"""The path of a graph in a model: ``()``, ``("If_0.else_branch", "y.body")``, ``("@domain.Function",)``."""

_PACKED_BITS = {"i4": 4, "u4": 4, "f4e2m1fn": 4, "i2": 2, "u2": 2}


@dataclass(frozen=True, slots=True)
class TensorSource:
    """One tensor of a model: `proto` is a TensorProto, a SparseTensorProto or a Constant's AttributeProto."""

    path: GraphPath
    name: str
    proto: Any


def subgraph_path(path: GraphPath, index: int, node: Any, attribute: str) -> GraphPath:
    """Return the path of the graph in `attribute` of the node at `index` of the graph at `path`."""
    first = next((output for output in node.output if output), f"#{index}")
    return (*path, f"{first}.{attribute}")


def subgraphs_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (attribute name, GraphProto) of every graph of the node, in attribute order."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for position, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{position}]", graph


def constant_attribute(node: Any) -> Any | None:
    """Return the data attribute of a ``Constant`` node; None for another node or a reference."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    return None if attribute.ref_attr_name else attribute


def _sources(path: GraphPath, graph: Any) -> Iterator[TensorSource]:
    """Yield the sources of a GraphProto or FunctionProto and of the graphs inside it, outermost first."""
    for tensor in getattr(graph, "initializer", ()):
        yield TensorSource(path, tensor.name, tensor)
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield TensorSource(path, sparse.values.name, sparse)
    for node in graph.node:
        attribute = constant_attribute(node)
        if attribute is not None and len(node.output) == 1:
            yield TensorSource(path, node.output[0], attribute)
    for index, node in enumerate(graph.node):
        for name, inner in subgraphs_of(node):
            yield from _sources(subgraph_path(path, index, node, name), inner)


def function_name(function: Any) -> str:
    """Return ``domain.Name``, or ``domain.Name:overload``."""
    name = f"{function.domain}.{function.name}" if function.domain else function.name
    return f"{name}:{function.overload}" if getattr(function, "overload", "") else name


def model_sources(model: Any) -> Iterator[TensorSource]:
    """Yield every tensor of a ModelProto that can become a `Constant`."""
    yield from _sources((), model.graph)
    for function in model.functions:
        yield from _sources((f"@{function_name(function)}",), function)
    for number, training in enumerate(model.training_info):
        for part in ("algorithm", "initialization"):
            yield from _sources(training_path(number, part), getattr(training, part))


def training_path(number: int, part: str) -> GraphPath:
    """Return the path of the graph `part`, a field of TrainingInfoProto, in ``training_info[number]``."""
    return (f"training_info[{number}].{part}",)


@dataclass
class OnnxStore:
    """`Store` over an `onnx.ModelProto`; external data is below `folder`, None for no external data.

    `reopen` is the function with its arguments that reads the store from its file again; a pickled store of
    a model without a file contains the model.
    """

    model: Any
    folder: Path | None = None
    reopen: tuple[Callable[..., OnnxStore], tuple[Any, ...]] | None = None
    external: ExternalData = field(init=False, repr=False)
    _by_key: dict[str, TensorSource] = field(init=False, default_factory=dict, repr=False)
    _key_of: dict[tuple[GraphPath, str], str] = field(init=False, default_factory=dict, repr=False)
    _read: Any = field(init=False, default_factory=weakref.WeakValueDictionary, repr=False)

    def __post_init__(self) -> None:
        self.external = ExternalData(self.folder)
        for source in model_sources(self.model):
            key = source.name
            if key in self._by_key:
                key = f"{'/'.join(source.path)}:{source.name}"
            while key in self._by_key:
                key += "'"
            self._by_key[key] = source
            self._key_of[source.path, source.name] = key
            self._check(key, source.proto)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reopen or (OnnxStore, (self.model, self.folder))

    def key_of(self, path: GraphPath, name: str) -> str:
        """Return the key of the constant `name` of the graph at `path`.

        A graph below a `training_path` may have the constant from the model's own graph.
        """
        found = self._key_of.get((path, name))
        return self._key_of[path[1:], name] if found is None else found

    def keys(self) -> Iterable[str]:
        return self._by_key.keys()

    def type(self, key: str) -> TensorType:
        """Return the tensor's type.  Raises LoadError for an unknown key."""
        proto = self._source(key).proto
        if hasattr(proto, "dims"):
            element = proto if hasattr(proto, "data_type") else proto.values
            return TensorType(element_type(element.data_type, key), tuple(proto.dims))
        array = self.read(key)
        return TensorType(dtypes.name_of(array.dtype), array.shape)

    def read(self, key: str) -> Array:
        """Return the tensor, read-only.  Raises LoadError for an unknown key or unavailable data."""
        array: Array | None = self._read.get(key)
        if array is None:
            array = array_of(self._source(key).proto, key, self.external)
            self._read[key] = array
        return array

    def _source(self, key: str) -> TensorSource:
        try:
            return self._by_key[key]
        except KeyError:
            raise LoadError(
                f'the model has no tensor "{key}"',
                hint="open the model from which the text was printed",
            ) from None

    def _check(self, key: str, proto: Any) -> None:
        """Raise LoadError for external data that cannot be read, now instead of during the run."""
        tensor = proto.t if hasattr(proto, "ref_attr_name") else proto
        if is_external(tensor):
            self.external.place(tensor, key, byte_count(tensor, key))


def is_external(proto: Any) -> bool:
    """Return whether the data of a TensorProto is in another file."""
    return hasattr(proto, "data_location") and proto.data_location == 1


def element_type(number: int, key: str) -> str:
    """Return the short name of an ONNX element type.  Raises LoadError for an unsupported one."""
    try:
        return dtypes.FROM_ONNX[number]
    except KeyError:
        raise LoadError(
            f'tensor "{key}" has unknown element type {number}',
            hint="export the model again, or install a newer onnx package",
        ) from None


def byte_count(tensor: Any, key: str) -> int:
    """Return the size of a TensorProto's raw data in bytes; 4-bit and 2-bit elements are packed."""
    name = element_type(tensor.data_type, key)
    if any(size < 0 for size in tensor.dims):
        raise LoadError(f'tensor "{key}" has a negative size: {list(tensor.dims)}')
    bits = _PACKED_BITS.get(name, dtypes.NUMPY[name].itemsize * 8)
    return int(math.prod(tensor.dims) * bits + 7) // 8


def array_of(proto: Any, key: str, external: ExternalData) -> Array:
    """Return the data of a TensorProto, SparseTensorProto or Constant attribute as a read-only array."""
    if hasattr(proto, "ref_attr_name"):
        return attribute_array(proto, key, external)
    if hasattr(proto, "indices"):
        return _dense(proto, key, external)
    return tensor_array(proto, key, external)


def tensor_array(tensor: Any, key: str, external: ExternalData) -> Array:
    """Return a TensorProto as a read-only array; a view of the file if the format allows it."""
    name = element_type(tensor.data_type, key)
    expected = byte_count(tensor, key)
    if tensor.HasField("segment"):
        raise LoadError(f'tensor "{key}" is stored in segments, which is not supported')
    if is_external(tensor):
        return _from_bytes(external.read(tensor, key, expected), tensor, name, key)
    if tensor.HasField("raw_data") and name != "str":
        raw = np.frombuffer(tensor.raw_data, np.uint8)
        if raw.size != expected:
            declared = TensorType(name, tuple(tensor.dims))
            raise LoadError(
                f'tensor "{key}" {declared} needs {expected} bytes, but has {raw.size}',
                hint="export the model again: it is damaged",
            )
        return _from_bytes(raw, tensor, name, key)
    return _from_fields(tensor, name, key)


def _from_bytes(raw: Array, tensor: Any, name: str, key: str) -> Array:
    if name in _PACKED_BITS:
        from onnx import TensorProto

        packed = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw.tobytes())
        return _through_onnx(packed, key)
    if name == "str":
        raise LoadError(
            f'string tensor "{key}" must not have raw data', hint="export the model again: it is damaged"
        )
    dtype = dtypes.NUMPY[name]
    # The file is little-endian, like every platform that NumPy and numba support.
    array = raw.view(dtype).reshape(tuple(tensor.dims))
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


def _from_fields(tensor: Any, name: str, key: str) -> Array:
    if name == "str":
        count = math.prod(tensor.dims)
        if len(tensor.string_data) != count:
            raise LoadError(f'tensor "{key}" needs {count} strings, but has {len(tensor.string_data)}')
        array = np.empty(count, object)
        array[:] = [text.decode("utf-8", "surrogateescape") for text in tensor.string_data]
        array = array.reshape(tuple(tensor.dims))
        array.flags.writeable = False
        return array
    return _through_onnx(tensor, key)


def _through_onnx(tensor: Any, key: str) -> Array:
    """Read data in typed fields and packed elements through ONNX, which defines their layouts."""
    from onnx import numpy_helper

    try:
        array: Array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise LoadError(
            f'tensor "{key}" cannot be read: {error}', hint="export the model again: it is damaged"
        ) from error
    array.flags.writeable = False
    return array


def _dense(sparse: Any, key: str, external: ExternalData) -> Array:
    """Return a SparseTensorProto as a dense array; indices are linear [nnz] or coordinates [nnz, rank]."""
    values = tensor_array(sparse.values, key, external)
    indices = tensor_array(sparse.indices, f"{key} (indices)", external)
    shape = tuple(sparse.dims)
    try:
        array = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            array[tuple(indices.T)] = values
        else:
            array.reshape(-1)[indices] = values
    except (IndexError, ValueError, MemoryError) as error:
        raise LoadError(f'sparse tensor "{key}" cannot be made dense: {error}') from error
    array.flags.writeable = False
    return array


_SCALARS: Mapping[str, tuple[str, Any]] = {
    "value_float": ("f", np.float32),
    "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64),
    "value_ints": ("ints", np.int64),
    "value_string": ("s", object),
    "value_strings": ("strings", object),
}


def attribute_array(attribute: Any, key: str, external: ExternalData) -> Array:
    """Return the data of a ``Constant`` node's one attribute (ONNX Constant-13)."""
    if attribute.name == "value":
        return tensor_array(attribute.t, key, external)
    if attribute.name == "sparse_value":
        return _dense(attribute.sparse_tensor, key, external)
    if attribute.name not in _SCALARS:
        raise LoadError(f'Constant "{key}" has the unknown attribute "{attribute.name}"')
    field_name, dtype = _SCALARS[attribute.name]
    data = getattr(attribute, field_name)
    if dtype is not object:
        array = np.array(data, dtype)
    elif isinstance(data, bytes):
        array = np.array(data.decode("utf-8", "surrogateescape"), object)
    else:
        array = np.array([text.decode("utf-8", "surrogateescape") for text in data], object)
    array.flags.writeable = False
    return array


@dataclass
class ExternalData:
    """Reads the data of TensorProtos with `data_location` EXTERNAL, all below `folder`."""

    folder: Path | None
    _maps: dict[Path, Array] = field(init=False, default_factory=dict, repr=False)
    _confined: dict[str, tuple[Path, int]] = field(init=False, default_factory=dict, repr=False)

    @property
    def files(self) -> list[Path]:
        """Return the files from which data is read."""
        return list(dict.fromkeys(path for path, _ in self._confined.values()))

    def place(self, tensor: Any, key: str, count: int) -> tuple[Path, int]:
        """Return the file and the offset of `count` bytes.  Raises LoadError unless all of them exist."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not location:
            raise LoadError(
                f'tensor "{key}" has external data, but no file name',
                hint="export the model again: it is damaged",
            )
        path, size = self._file(location, key)
        offset = _number(entries, "offset", 0, key)
        length = _number(entries, "length", count, key)
        if length != count:
            raise LoadError(
                f'tensor "{key}" needs {count} bytes, but the model assigns it {length} bytes of {location}',
                hint="export the model again: it is damaged",
            )
        if offset + length > size:
            raise LoadError(
                f'tensor "{key}" needs bytes {offset} to {offset + length} of {path}, which has {size} bytes',
                hint="copy the data file again: it is truncated, or belongs to another model",
            )
        return path, offset

    def read(self, tensor: Any, key: str, count: int) -> Array:
        """Return the tensor's `count` bytes, u8[count], as a read-only view of the mapped file."""
        path, offset = self.place(tensor, key, count)
        if count == 0:
            return np.empty(0, np.uint8)
        if path not in self._maps:
            try:
                self._maps[path] = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
            except (OSError, ValueError) as error:
                raise LoadError(f'cannot memory-map {path} for tensor "{key}": {error}') from error
        return self._maps[path][offset : offset + count]

    def _file(self, location: str, key: str) -> tuple[Path, int]:
        """Return the file named by `location`, and its size; checked once."""
        if location not in self._confined:
            path = self._resolve(location, key)
            if path.exists() and not path.is_file():
                raise LoadError(
                    f'tensor "{key}" is stored in {path}, which is not a file',
                    hint="export the model again: it is damaged",
                )
            if not path.exists():
                raise LoadError(
                    f'tensor "{key}" is stored in {path}, which does not exist',
                    hint=f'copy the weight file "{location}" to the folder of the model',
                )
            self._confined[location] = path, path.stat().st_size
        return self._confined[location]

    def _resolve(self, location: str, key: str) -> Path:
        if self.folder is None:
            raise LoadError(
                f'tensor "{key}" is stored in "{location}", but a model loaded from memory has no folder',
                hint="load the model from its file",
            )
        try:
            path = path_inside(location, self.folder)
        except (OSError, ValueError, RuntimeError) as error:
            raise LoadError(f'tensor "{key}" has the invalid file name "{location!r}": {error}') from error
        if path is None:
            raise LoadError(
                f'tensor "{key}" is stored in "{location}", outside the model\'s folder {self.folder}',
                hint="move the file into the model's folder; a path outside the folder may be an attack",
            )
        return path


def _number(entries: dict[str, str], name: str, otherwise: int, key: str) -> int:
    text = entries.get(name, str(otherwise))
    number = integer_of(text)
    if number is None or number < 0:
        raise LoadError(
            f'tensor "{key}" has invalid external data: {name} is "{text}"',
            hint="export the model again: it is damaged",
        )
    return number


# -- data files ------------------------------------------------------------------------------------


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
