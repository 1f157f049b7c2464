"""Options and fixtures of all tests: `--update`, the quarter of nightly tests, and a state folder."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from nncdbg.engine.ops import declaration, library, schema
from nncdbg.process import collector
from tests import laws, processes

ROOT = Path(__file__).parent.parent

# A shell starts background jobs with SIGINT ignored; processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first test of PyTorch compiles the loop over its kernels, not a process in the background.  Without
# a compiler and the headers of Python, all tests run its operators from Python.
headers = Path(sysconfig.get_path("include"), "Python.h")
compiles = headers.is_file() and any(map(shutil.which, ("c++", "g++", "clang++")))
os.environ.setdefault("NNCDBG_TORCH_KERNELS", "now" if compiles else "off")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite recorded outputs from the current ones")


# -- nightly tests -----------------------------------------------------------------------------------------

QUARTER = "NNCDBG_QUARTER"
"""The variable with the quarter of the nightly tests that runs: 0 to 3, or `all`."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the quarter: the given one, all for `-m nightly` and for a test by its id, or that of the day.

    Workers of xdist inherit it, so all of them select the same tests, even at midnight.
    """
    chosen = "nightly" in config.option.markexpr or any("::" in argument for argument in config.args)
    quarter = os.environ.setdefault(QUARTER, "all" if chosen else str(datetime.now(UTC).toordinal() % 4))
    if quarter not in ("0", "1", "2", "3", "all"):
        raise pytest.UsageError(f"{QUARTER} is {quarter!r}; it must be 0, 1, 2, 3 or all")
    laws.load_profile()


def pytest_report_header() -> str:
    quarter = os.environ[QUARTER]
    if quarter == "all":
        return "nightly tests: all"
    return f"nightly tests: quarter {quarter} of 0 to 3 (repeat this selection with {QUARTER}={quarter})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not terminalreporter.showheader:
        terminalreporter.write_line(pytest_report_header())


def quarter_of(test: str) -> str:
    """Return the quarter of a test by its id, the same in every process and on every machine."""
    return str(zlib.crc32(test.encode()) % 4)


@pytest.hookimpl(trylast=True)  # after the selection with -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests of other quarters, except the first case of each parametrized test."""
    if os.environ[QUARTER] == "all":
        return
    first: set[str] = set()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        function, bracket, _ = item.nodeid.partition("[")
        represents = bool(bracket) and function not in first
        first.add(function)
        runs = not item.get_closest_marker("nightly") or represents
        (kept if runs or quarter_of(item.nodeid) == os.environ[QUARTER] else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


# -- fixtures ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Crash reports, tokens and histories of one test process are not those of another, nor the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Leave what earlier files made out of collections of garbage and of searches: both read all objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_frozen_programs() -> Iterator[None]:
    """Let programs that tests open stay in collections.

    A prompt or server freezes its program, and before the next one thaws and collects all objects of the
    process: 25 ms for a user, a second for each of the hundreds of programs that a worker of xdist opens.
    """
    without_freezing = SimpleNamespace(**{**vars(gc), "freeze": lambda: None, "get_freeze_count": lambda: 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "gc", without_freezing)
        yield


@pytest.fixture(scope="module")
def forked_processes() -> Iterator[None]:
    """Let the Python processes that the tests of a file start be forks, which have imported PyTorch."""
    processes.prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", processes.Popen)
        yield


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Let the workers of Dask be forks of a process that has imported Dask and nncdbg."""
    import dask
    from distributed.utils import get_mp_context

    if os.environ[QUARTER] == "all":
        yield
        return
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        modules = ["distributed", "nncdbg.nan_watch.corpus", "nncdbg.opening.diff_corpus"]
        get_mp_context().set_forkserver_preload(modules)
        yield


@pytest.fixture
def started_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of a test start as those of a user, although others of its file are forks."""
    monkeypatch.setattr(subprocess, "Popen", processes.Popen.__base__)


@pytest.fixture(autouse=True)
def ops_of_one_test() -> Iterator[None]:
    """Remove the ops that a test declares or loads: no other test of the process has them."""
    known, loaded, revision = dict(declaration._DECLARED), dict(library._LOADED), declaration.revision()
    yield
    if declaration.revision() == revision:
        return
    for name in declaration._DECLARED.keys() - known.keys():
        if declaration._DECLARED[name][0].foreign:
            del declaration._DECLARED[name]
    library._LOADED.clear()
    library._LOADED.update(loaded)
    schema.schema.cache_clear()
    declaration._changed()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder with `examples/`, `docs/` and `tests/`."""
    return ROOT


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """A folder of trained models, from NNCDBG_SHARED or beside the repository; skip without it."""
    base = Path(os.environ.get("NNCDBG_SHARED") or ROOT.parent / "shared")
    models = base / "models"
    if not models.is_dir():
        pytest.skip(f"there is no folder {models}; set NNCDBG_SHARED to the folder that contains `models/`")
    return models


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`command(*arguments, typed="")` runs `nncdbg` in an empty folder: (exit code, out, err).

    Fails if the command shows a traceback.
    """
    from nncdbg.terminal.main import main

    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main(arguments)
        out, err = capsys.readouterr()
        # A finding has a traceback of the user's source, which is indented.
        assert not re.search("^Traceback", out + err, re.MULTILINE)
        assert "internal error" not in out + err
        return code, out, err

    return run
