"""pytest plugin: the fixture `nan_watch`, and models as tests with `--nan-watch`.

pytest loads this file at every start in an environment with nncdbg, so it imports only pytest; the first
model imports the engine.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.nan_watch.records import Report

Options: TypeAlias = dict[str, Any]

_MARKER = "nan_watch"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nncdbg", "NaN watch of models")
    group.addoption(
        "--nan-watch",
        action="store_true",
        help="test each .onnx and .nnc file: fail at the first NaN or Inf",
    )
    parser.addini(
        "nan_watch_files", "model files that --nan-watch runs as tests", "args", ["*.onnx", "*.nnc"]
    )
    parser.addini("nan_watch_fail_on", "gates of --nan-watch and of the fixture nan_watch", "string", "")
    parser.addini("nan_watch_max_ops", "end a watched run after this many statements", "string", "")
    parser.addini("nan_watch_strict", "also fail on findings without effect on an output", "bool", False)


def pytest_configure(config: pytest.Config) -> None:
    _options(config, {})  # Report errors in the ini file before any test.
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(fail_on=..., strict=..., ...): arguments of the fixture nan_watch for nncdbg.watch",
    )


def _options(config: pytest.Config, given: Mapping[str, Any]) -> Options:
    """Return the options for `nncdbg.watch`: `given` over the ini options.  Raises pytest.UsageError."""
    options: Options = {"strict": config.getini("nan_watch_strict")}
    gates = config.getini("nan_watch_fail_on")
    if gates:
        options["fail_on"] = gates
    most = config.getini("nan_watch_max_ops")
    if most:
        if not most.isdecimal() or not int(most):
            raise pytest.UsageError(f"nan_watch_max_ops must be a number of statements, not {most!r}")
        options["max_ops"] = int(most)
    return options | dict(given)


# -- the fixture -----------------------------------------------------------------------------------


class NanWatch:
    """The fixture: call it with a program and inputs; it fails the test at the first NaN, with the cause."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        marks: Iterable[pytest.Mark] = request.node.iter_markers(_MARKER)
        marked: Options = {}
        for mark in reversed([*marks]):
            marked |= mark.kwargs
        self._options = _options(request.config, marked)

    def __call__(
        self,
        program: Program | str | os.PathLike[str],
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Report:
        """Watch one run of a program, or of the model in a file, with `inputs` (arrays by name).

        `options` are those of `nncdbg.watch`; they override the marker's and the ini file's.  Returns the
        report; fails the test with it if a gate trips or the run fails.  Raises the errors of loading.
        """
        from nncdbg.errors import NncdbgError

        __tracebackhide__ = True
        try:
            report, text = _watched(program, inputs, self._options | options)
        except NncdbgError as error:
            # The error is in the call; the engine's traceback does not help the test's author.
            raise error.with_traceback(None) from None
        if not report.ok:
            pytest.fail(text, pytrace=False)
        return report


@pytest.fixture
def nan_watch(request: pytest.FixtureRequest) -> NanWatch:
    """`nan_watch(program_or_path, inputs, fail_on=...)` fails the test at the first NaN, with the cause."""
    return NanWatch(request)


def _watched(
    program: Program | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None,
    options: Options,
    model: str | None = None,
) -> tuple[Report, str]:
    """Return the report on a run, and its text if it is not ok; `model` is the name to report.

    What was not checked is a warning of the test.
    """
    from nncdbg.engine.frontends import load
    from nncdbg.nan_watch.call import watch

    loaded = load(program)
    report = watch(loaded, inputs, **options)
    report.model = model or loaded.source or ""
    for words in report.unchecked if report.ok else ():
        warnings.warn(
            pytest.PytestWarning(f"{report.model or 'nan_watch'}: not checked: {words}"), stacklevel=3
        )
    if report.ok:
        return report, ""
    return report, str(report)


# -- models as tests -------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    config = parent.config
    if not config.getoption("--nan-watch"):
        return None
    if not any(fnmatch(file_path.name, pattern) for pattern in config.getini("nan_watch_files")):
        return None
    return ModelFile.from_parent(parent, path=file_path)


class ModelFile(pytest.File):
    """A model file, collected as one test that fails on NaN."""

    def collect(self) -> Iterable[pytest.Item]:
        yield ModelItem.from_parent(self, name=_MARKER)


class TroubleInModel(Exception):
    """A model failed its watch; the text is the report."""


class ModelItem(pytest.Item):
    """One run of a model with inputs drawn from seed 0."""

    def runtest(self) -> None:
        report, text = _watched(self.path, None, _options(self.config, {}), self.nodeid.partition("::")[0])
        if not report.ok:
            raise TroubleInModel(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> Any:
        from nncdbg.errors import NncdbgError

        if excinfo.errisinstance((TroubleInModel, NncdbgError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{_MARKER}: {self.path.name}"
