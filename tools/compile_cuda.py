"""Compile each raw CUDA kernel with NVRTC, which needs no device.

`make cuda-check` installs the two packages that this needs, NVRTC and the headers of CUDA, and runs it.  It
prints each kernel that does not compile, with the compiler's log, and exits with 1 if there is one.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nncdbg.engine.backends.device_statistics import cuda_sources

ARCHITECTURES = ("compute_80", "compute_90")
"""Ampere and Hopper."""

PACKAGES = "nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"


class CompilationError(Exception):
    """The log of NVRTC for a kernel that does not compile."""


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVRTC's library, and the folder of CUDA's headers."""

    library: ctypes.CDLL
    headers: Path

    def compile(self, source: str, architecture: str) -> str:
        """Return the PTX of a kernel.  Raises CompilationError."""
        program = ctypes.c_void_p()
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
            )
        )
        options = [f"--gpu-architecture={architecture}".encode(), f"-I{self.headers}".encode()]
        array = (ctypes.c_char_p * len(options))(*options)
        try:
            status = self.library.nvrtcCompileProgram(program, len(options), array)
            if status:
                raise CompilationError(self._text(program, "ProgramLog"))
            return self._text(program, "PTX")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        """Return the text that ``nvrtcGet<what>`` writes."""
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, buffer))
        return buffer.value.decode(errors="replace")

    def _check(self, status: int) -> None:
        if status:
            raise CompilationError(f"NVRTC returned the error {status}")


def installed() -> Nvrtc | None:
    """Return the installed NVRTC with the headers of CUDA; None if a package is missing."""
    library = next(iter(_files("nvidia.cuda_nvrtc", "lib/libnvrtc.so.*")), None)
    headers = next(iter(_files("nvidia.cuda_runtime", "include/cuda_fp16.h")), None)
    return Nvrtc(ctypes.CDLL(str(library)), headers.parent) if library and headers else None


def _files(package: str, pattern: str) -> list[Path]:
    """Return the files of an installed package that match a pattern."""
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        return []
    folders = found.submodule_search_locations if found is not None else None
    return [file for folder in folders or () for file in Path(folder).glob(pattern)]


def main() -> int:
    nvrtc = installed()
    if nvrtc is None:
        print(f"NVRTC is not installed: pip install {PACKAGES}", file=sys.stderr)
        return 2
    failed = 0
    for name, source in cuda_sources().items():
        for architecture in ARCHITECTURES:
            try:
                nvrtc.compile(source, architecture)
            except CompilationError as error:
                failed += 1
                print(f"{name} does not compile for {architecture}:\n{error}")
    print(f"{len(cuda_sources())} kernels for {', '.join(ARCHITECTURES)}: {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
