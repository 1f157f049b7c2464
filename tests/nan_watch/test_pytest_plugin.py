"""The pytest plugin: the fixture, models as tests, options, and a fast start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def models(pytester: pytest.Pytester, repository: Path) -> Path:
    """The folder in which pytest runs, with a model that computes NaN and one that does not."""
    for name in ("nan_softmax.nnc", "first_steps.nnc"):
        shutil.copy(repository / "examples" / name, pytester.path)
    return pytester.path


def test_each_model_is_a_test(pytester: pytest.Pytester, models: Path) -> None:
    result = pytester.runpytest_subprocess("--nan-watch", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "first_steps.nnc::nan_watch PASSED*",
            "nan_softmax.nnc::nan_watch FAILED*",
            "nan_softmax.nnc: tripped: 2 findings in 12 statements*",
            "1. the first Inf is in %logq: Log produced it from operands without Inf",
            "  at nan_softmax.nnc:21:3",
            "   21 |   %logq = Log(%q) : f32?3,4?",
            "2. NaN is in %terms: Mul produced it from operands without NaN",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_a_model_is_a_test_only_with_the_option(pytester: pytest.Pytester, models: Path) -> None:
    assert pytester.runpytest_subprocess().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result = pytester.runpytest_subprocess("--nan-watch", "nan_softmax.nnc")
    result.assert_outcomes(failed=1)
    pytester.makeini("[pytest]\nnan_watch_files = first_*.nnc")
    pytester.runpytest_subprocess("--nan-watch").assert_outcomes(passed=1)


def test_models_are_distributed_over_processes(pytester: pytest.Pytester, models: Path) -> None:
    result = pytester.runpytest_subprocess("--nan-watch", "-n", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["1. the first Inf is in %logq: *"])


def test_an_invalid_model_is_reported_without_a_traceback(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("broken.nnc").write_text("#nncdbg 1\ngraph @main(\n")
    pytester.path.joinpath("broken.onnx").write_bytes(b"\xff" * 20)
    result = pytester.runpytest_subprocess("--nan-watch")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*broken.nnc:*"])
    assert "Traceback" not in result.stdout.str()
    assert "site-packages" not in result.stdout.str()


def test_a_failed_run_fails_the_test(pytester: pytest.Pytester, models: Path) -> None:
    pytester.path.joinpath("odd.nnc").write_text(
        "#nncdbg 1\ngraph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = other.Odd(%x)\n  return %y\n}\n"
    )
    result = pytester.runpytest_subprocess("--nan-watch", "odd.nnc")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["odd.nnc: failed after *", "error: *"])


def test_the_fixture_fails_the_test_or_returns_the_report(pytester: pytest.Pytester, models: Path) -> None:
    pytester.makepyfile(
        """
        import numpy as np
        import pytest
        import nncdbg

        def test_a_file(nan_watch):
            report = nan_watch("first_steps.nnc")
            assert report.ok and report.ops > 0 and report.findings == []

        def test_a_program_with_inputs(nan_watch):
            program = nncdbg.load("nan_softmax.nnc")
            assert nan_watch(program, {"logits": np.zeros((3, 4), np.float32)}).ok

        def test_it_fails(nan_watch):
            nan_watch("nan_softmax.nnc")

        def test_options_are_those_of_watch(nan_watch):
            assert nan_watch("nan_softmax.nnc", fail_on="guard").ok

        def test_a_wrong_argument(nan_watch):
            with pytest.raises(nncdbg.UsageError, match="no gate"):
                nan_watch("first_steps.nnc", fail_on="nann")

        def test_a_missing_file(nan_watch):
            nan_watch("missing.nnc")
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(
        [
            "1. the first Inf is in %logq: *",
            '>       nan_watch("missing.nnc")',
            "E       nncdbg.*LoadError: *",
        ]
    )
    assert "frontends" not in result.stdout.str().replace("nncdbg.errors", "")


def test_marker_and_ini_set_the_options(pytester: pytest.Pytester, models: Path) -> None:
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers\nnan_watch_fail_on = guard, dead:0.99\nnan_watch_max_ops = 500"
    )
    pytester.makepyfile(
        """
        import pytest
        import nncdbg

        def test_ini(nan_watch):
            assert nan_watch("nan_softmax.nnc").ok

        @pytest.mark.nan_watch(fail_on="nan")
        class TestMarked:
            def test_the_class(self, nan_watch):
                nan_watch("nan_softmax.nnc")

            @pytest.mark.nan_watch(fail_on="inf", max_ops=3)
            def test_the_nearest_wins(self, nan_watch):
                nan_watch("nan_softmax.nnc")

            def test_the_call_wins(self, nan_watch):
                assert nan_watch("nan_softmax.nnc", fail_on="guard").ok
        """
    )
    result = pytester.runpytest_subprocess("--nan-watch")
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(
        [
            "nan_softmax.nnc: tripped: 1 finding in 12 statements*",
            "nan_softmax.nnc: failed after 3 statements*",
        ]
    )


@pytest.mark.parametrize("ini", ["nan_watch_max_ops = many", "nan_watch_max_ops = 0"])
def test_an_invalid_option_is_a_usage_error(ini: str, pytester: pytest.Pytester, models: Path) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    result = pytester.runpytest_subprocess("--nan-watch", "first_steps.nnc")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: nan_watch_max_ops must be a number of statements, not *"])


def test_the_start_of_pytest_imports_no_engine(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import sys\n"
        "def test_one():\n"
        "    heavy = {'numpy', 'onnx', 'numba', 'rich.console', 'nncdbg.engine'}\n"
        "    assert 'nncdbg.nan_watch.pytest_plugin' in sys.modules\n"
        "    assert heavy.isdisjoint(sys.modules)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_was_not_checked_is_a_warning(pytester: pytest.Pytester, models: Path) -> None:
    pytester.makepyfile(
        """
        def test_a_file(nan_watch):
            assert nan_watch("first_steps.nnc", allocator="plain").status == "not checked"
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PytestWarning: *first_steps.nnc: not checked: uninitialized, guard: the*"])
