"""The array that `set` stores: from an expression's result, generated data or a file.

It may be a result of the next statement, because the op of this statement has no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Linker
from nncdbg.engine.execution.user_results import UserResults
from nncdbg.engine.inputs.data_specs import DataFile, Generated, ImageFile, Plain, generate, read_spec
from nncdbg.engine.inputs.image_files import read_image
from nncdbg.engine.ops.valid_integers import known_type
from nncdbg.engine.values.editing import edited, given_value
from nncdbg.engine.values.values import Values
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate_index, parse_index
from nncdbg.ir.records import Array, TensorType, Type, tensor_only
from nncdbg.text.lexemes import name_text


def from_text(
    name: str, type_: Type | None, text: str, folder: Path | None, say: Callable[[str], None]
) -> Any:
    """Return the data in a text for %`name` of this type: ``zeros``, ``normal[2,3]``, ``x.npy``, ``[1, 2]``.

    `say` receives a sentence about the conversion of an image.  Raises UsageError for a text in none of
    these forms, data of another element type, or an image that does not fit; LoadError for a file that
    cannot be read.
    """
    spec = read_spec(text, folder)
    known = tensor_only(type_)
    match spec:
        case Plain(data):
            return data
        case DataFile():
            return _same_dtype(name, known, spec.read())
        case ImageFile():
            image = read_image(name, known, spec)
            say(f"%{name_text(name)}: {image.words}")
            return image.array
        case Generated(kind, sizes):
            complete = known_type(type_)
            shape = sizes if sizes is not None else complete.shape if complete is not None else None
            if shape is None:
                raise UsageError(
                    f"the sizes of %{name_text(name)} are not known", hint=f"write the sizes: {kind}[2,3]"
                )
            return generate(name, TensorType(known.dtype if known is not None else "f32", shape), kind, 0)


def _same_dtype(name: str, known: TensorType | None, array: Array) -> Array:
    if known is None:
        return array
    wanted = dtypes.NUMPY[known.dtype]
    if array.dtype.type is np.void and not array.dtype.names and wanted.itemsize == array.dtype.itemsize:
        # NumPy files store bf16 and other `ml_dtypes` types as raw bytes.
        array = array.view(wanted)
    if array.dtype != wanted:
        held = array.dtype.name
        if array.dtype in dtypes.NUMPY.values():
            held = str(TensorType(dtypes.name_of(array.dtype), array.shape))
        raise UsageError(
            f"%{name_text(name)} is {known}, but the file contains {held}",
            hint=f"convert the array before numpy.save: x.astype({wanted.name!r})",
        )
    return array


def whole_result(name: str, type_: Type | None, value: Any) -> Array:
    """Return `value` as the whole result %`name` of this type; a scalar fills the tensor.

    Floats in lists are f32 if the type is unknown.  Raises UsageError for sizes or numbers that do not
    fit, and for ragged lists.
    """
    given = given_value(name, value)
    known, complete = tensor_only(type_), known_type(type_)
    if known is None:
        listed = given.dtype == np.float64 and not isinstance(value, np.ndarray)
        return given.astype(np.float32) if listed else np.array(given)
    shape = given.shape
    if complete is not None and given.shape == ():
        shape = tuple(int(size) for size in complete.shape or () if size is not None)
    sizes = known.shape
    if sizes is not None and (
        len(sizes) != len(shape)
        or any(isinstance(a, int) and a != b for a, b in zip(sizes, shape, strict=True))
    ):
        raise UsageError(f"%{name_text(name)} is {known}, but the new value has shape {list(shape)}")
    return edited(name, np.zeros(shape, dtypes.NUMPY[known.dtype]), given, None)


@dataclass(frozen=True, slots=True)
class Awaited:
    """Holds the results that the user sets; `linker` links the statement again after each."""

    linker: Linker
    supplied: UserResults
    folder: Path | None
    say: Callable[[str], None]

    def names(self, code: Code, pc: int, refused: bool) -> tuple[str, ...]:
        """Return the results of the statement at `pc` that can be set; `refused`: it has just failed."""
        if not code.runs_kernel(pc) or not (refused or self.supplied.has(code, pc)):
            return ()
        return tuple(value.name for value in code.nodes[pc].outputs if value.name)

    def set(self, name: str, value: Any, index: Any, scope: Values) -> None:
        """Set a result of the next statement, or its part at `index` (see `Debugger.set_value`)."""
        frame = scope.machine.frames[-1]
        code, pc = frame.code, frame.pc
        known = code.types.get(name)
        if isinstance(value, str):
            value = from_text(name, known, value, self.folder, self.say)
        if index is None:
            array = whole_result(name, known, value)
        else:
            if isinstance(index, str):
                index = evaluate_index(parse_index(index, scope.has, scope.names), scope)
            array = edited(name, scope.value(name), value, index)
        output = [each.name for each in code.nodes[pc].outputs].index(name)
        self.supplied.supply(code, pc, output, array)
        self.linker.link_statement(code, pc)

    def content(self, frame: Frame, slot: int) -> Any:
        """Return the result set for the next statement of a frame; UNSET if there is none."""
        code, pc = frame.code, frame.pc
        if code.definition[slot] != pc or not self.supplied.has(code, pc):
            return UNSET
        outputs = [each.name for each in code.nodes[pc].outputs]
        return self.supplied.result(code, pc, outputs.index(code.names[slot]))
