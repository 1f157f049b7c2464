"""Options and fixtures of all tests: `--update`, a state folder, and optional trained models."""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from nncdbg.engine.ops import declaration, library, schema

ROOT = Path(__file__).parent.parent

# A shell starts background jobs with SIGINT ignored; processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first test of PyTorch compiles the loop over its kernels, not a process in the background.  Without
# a compiler and the headers of Python, all tests run its operators from Python.
headers = Path(sysconfig.get_path("include"), "Python.h")
compiles = headers.is_file() and any(map(shutil.which, ("c++", "g++", "clang++")))
os.environ.setdefault("NNCDBG_TORCH_KERNELS", "now" if compiles else "off")

# A time limit per example would fail on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite recorded outputs from the current ones")


@pytest.fixture(scope="session", autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Crash reports, tokens and histories of one test process are not those of another, nor the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Leave what earlier files made out of collections of garbage and of searches: both read all objects."""
    gc.collect()
    gc.freeze()


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
        assert "Traceback" not in out + err
        assert "internal error" not in out + err
        return code, out, err

    return run
