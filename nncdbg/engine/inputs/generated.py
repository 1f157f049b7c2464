"""Generated data for inputs: zeros, ones, a range, or random data from a seed."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.ops.valid_integers import Integers
from nncdbg.errors import UsageError
from nncdbg.ir.records import Array, TensorType
from nncdbg.text.lexemes import name_text

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

GENERATED = ("zeros", "ones", "normal", "uniform", "arange")
"""The kinds of data that a user can name."""


def generate(
    name: str, type_: TensorType, kind: str | None, seed: int, integers: Integers | None = None
) -> Array:
    """Return an array of the concrete type for the input `name`.

    `kind` is one of `GENERATED`; None draws by dtype: standard normal floats, `integers` (if None,
    0 to 9 as far as the dtype allows), fair bools, empty text.  The draw depends on the seed and the
    name only.  Raises UsageError for a kind that the dtype does not support.
    """
    assert type_.shape is not None
    shape = tuple(int(size) for size in type_.shape if size is not None)
    if math.prod(shape) > _MEMORY:
        raise UsageError(
            f"input %{name_text(name)} {type_} has {math.prod(shape)} elements, more than the "
            f"memory of this machine",
            hint="give it a smaller size",
        )
    if type_.dtype == "str":
        if kind not in (None, "zeros"):
            raise UsageError(
                f"input %{name_text(name)} has type str and cannot be filled with `{kind}`",
                hint="use an array of strings",
            )
        return np.full(shape, "", object)
    dtype = dtypes.NUMPY[type_.dtype]
    if kind == "arange":
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    if kind in ("zeros", "ones"):
        return np.full(shape, kind == "ones").astype(dtype)
    if kind is None and integers is not None:
        if integers.exact is not None:
            return np.array(integers.exact).reshape(shape).astype(dtype)
        return _generator(seed, name).integers(integers.low, integers.high, shape).astype(dtype)
    whole = type_.dtype in dtypes.INTEGERS or type_.dtype == "bool"
    if kind == "normal" and whole:
        raise UsageError(
            f"input %{name_text(name)} {type_} cannot be filled with `normal`",
            hint="use `uniform` or `arange`",
        )
    return _drawn(type_.dtype, kind or ("uniform" if whole else "normal"), shape, _generator(seed, name))


def _generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator that depends on the seed and the input's name only, not on other inputs."""
    key = hashlib.blake2b(f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _drawn(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw standard normal or uniform [0, 1) floats; integers from 0 to at most 9; fair bools."""
    dtype = dtypes.NUMPY[name]
    if name in dtypes.INTEGERS or name == "bool":
        return np.asarray(rng.integers(0, _largest(name) + 1, shape)).astype(dtype)
    draw = rng.standard_normal if kind == "normal" else rng.random
    if name in dtypes.COMPLEX:
        return np.asarray(draw(shape) + 1j * draw(shape)).astype(dtype)
    precision = np.float64 if name == "f64" else np.float32
    return np.asarray(draw(shape, dtype=precision)).astype(dtype, copy=False)


def _largest(name: str) -> int:
    """Return the largest integer to draw for a dtype."""
    if name == "bool":
        return 1
    bits = int(name[1:])
    return min(9, 1 << (bits - (name[0] == "i")) - 1)
