"""The ops by family.  Importing this package declares them all, from one explicit list."""

from __future__ import annotations

from nncdbg.engine.ops.declaration import Op, declared, lookup, names

__all__ = ["Op", "declared", "lookup", "names"]
