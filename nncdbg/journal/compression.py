"""Compression of the chunks of tensors: none, or zstd with the library `zstandard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nncdbg.engine.errors import LoadError, UsageError

NONE = "none"
ZSTD = "zstd"
NAMES = (NONE, ZSTD)

_LEVEL = 3
_HINT = 'install it: pip install "nncdbg[journal]"'

Compression = Callable[[Any], Any]


def compressor(name: str) -> Compression:
    """Return the function that compresses a chunk.  Raises UsageError without the library."""
    if name not in NAMES:
        raise UsageError(f'unknown compression "{name}"', hint=f"use one of {', '.join(NAMES)}")
    if name == NONE:
        return _unchanged
    try:
        import zstandard
    except ImportError:
        raise UsageError("compression with zstd needs the library zstandard", hint=_HINT) from None
    return zstandard.ZstdCompressor(level=_LEVEL).compress


def decompressor(name: str, size: int, path: object) -> Compression:
    """Return the function that restores a chunk of at most `size` bytes, or raises ValueError.

    Raises LoadError without the library, or for the compression of a newer version.
    """
    if name == NONE:
        return _unchanged
    if name != ZSTD:
        raise LoadError(f'{path} has tensors with the unknown compression "{name}"')
    try:
        import zstandard
    except ImportError:
        raise LoadError(f"{path} has tensors compressed with zstd", hint=_HINT) from None
    decompress = zstandard.ZstdDecompressor().decompress

    def restored(chunk: Any) -> Any:
        try:
            return decompress(chunk, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return restored


def _unchanged(chunk: Any) -> Any:
    return chunk
