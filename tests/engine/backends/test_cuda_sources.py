"""The CUDA kernels of the package compile with NVRTC, without a device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nncdbg
from nncdbg.engine.backends.device_statistics import C_TYPES, cuda_sources
from tools.compile_cuda import ARCHITECTURES, PACKAGES, CompilationError, Nvrtc, installed

RAW = re.compile(r"\b(?:RawKernel|RawModule|ElementwiseKernel|ReductionKernel)\(")


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    found = installed()
    if found is None:
        pytest.skip(f"NVRTC is not installed: pip install {PACKAGES}; `make cuda-check` does")
    return found


def test_all_raw_kernels_of_the_package_are_checked() -> None:
    """A raw kernel in another module must be added to `tools/compile_cuda.py`."""
    package = Path(nncdbg.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if RAW.search(file.read_text(encoding="utf-8"))
    }
    assert found == {"engine/backends/device_statistics.py"}


def test_each_element_type_has_a_source_without_placeholders() -> None:
    sources = cuda_sources()
    assert {*sources} == {f"summarize of {element}" for element in C_TYPES.values()}
    for source in sources.values():
        assert not re.search(r"\b(?:ELEMENT|THREADS)\b", source)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [*cuda_sources()])
def test_a_kernel_compiles(nvrtc: Nvrtc, name: str, architecture: str) -> None:
    ptx = nvrtc.compile(cuda_sources()[name], architecture)
    assert ".entry summarize(" in ptx
    assert f".target {architecture.replace('compute', 'sm')}" in ptx


def test_a_wrong_kernel_is_reported_with_its_line(nvrtc: Nvrtc) -> None:
    source = cuda_sources()["summarize of float"].replace("fmin(part.low, value)", "fmin(part.lowest, value)")
    with pytest.raises(CompilationError, match=r'kernel\.cu\(\d+\): error: .*"lowest"'):
        nvrtc.compile(source, ARCHITECTURES[0])
