"""Compile the optional libraries in C++ now, as a program: ``python -m nncdbg.torch.compile_libraries``."""

from __future__ import annotations

import sys

from nncdbg.engine.backends import torch_statements
from nncdbg.errors import UsageError
from nncdbg.torch import guard_kernels


def main() -> None:
    """Compile each library that is not kept yet."""
    for library in (torch_statements.LIBRARY, guard_kernels.LIBRARY):
        try:
            library.prepare()
        except UsageError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
