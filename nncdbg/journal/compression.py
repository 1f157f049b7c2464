"""Compression of the chunks of tensors: none, or zstd with the library `zstandard`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import LoadError, UsageError

NONE = "none"
ZSTD = "zstd"
NAMES = (NONE, ZSTD)

_LEVEL = 3
_HINT = 'install it: pip install "nncdbg[journal]"'

Compression = Callable[[Any], bytes]


def compressor(name: str) -> Compression | None:
    """Return the function that compresses a chunk; None for no compression.  Raises UsageError."""
    if name not in NAMES:
        raise UsageError(f'unknown compression "{name}"', hint=f"use one of {', '.join(NAMES)}")
    if name == NONE:
        return None
    try:
        import zstandard
    except ImportError:
        raise UsageError("compression with zstd needs the library zstandard", hint=_HINT) from None
    return zstandard.ZstdCompressor(level=_LEVEL).compress


def decompressor(name: str, size: int, path: Path) -> Compression | None:
    """Return the function that restores a chunk of at most `size` bytes or raises ValueError.

    None if the chunks are not compressed.

    Raises LoadError without the library, or for the compression of a newer version.
    """
    if name == NONE:
        return None
    if name != ZSTD:
        raise LoadError(f'{path} has tensors with the unknown compression "{name}"')
    try:
        import zstandard
    except ImportError:
        raise LoadError(f"{path} has tensors compressed with zstd", hint=_HINT) from None
    decompress = zstandard.ZstdDecompressor().decompress

    def restored(chunk: bytes) -> bytes:
        try:
            return decompress(chunk, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return restored
