"""Outputs with and without statistics, catches, guards and fills are bit-equal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import nncdbg
from nncdbg.comparison.verification import Verification
from nncdbg.engine.divergence.verification import verify_observers
from nncdbg.stats.digests import digest
from tests.conformance.cases import cases
from tests.engine.programs import runnable
from tests.engine.test_laws import INPUTS
from tests.laws import examples

pytestmark = pytest.mark.usefixtures("forked_processes")

EXAMPLES = Path(__file__).parents[3] / "examples"
CHUNKS = 40


def verified(program: nncdbg.Program, inputs: Mapping[str, Any]) -> Verification:
    return verify_observers(
        lambda allocator, statistics, checks: nncdbg.Debugger(
            program, inputs, allocator=allocator, statistics=statistics
        ),
        lambda debugger: debugger.run(heed=False),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.nnc")), ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    if path.stem == "uninitialized":
        pytest.skip("reads memory that is not written, so its outputs depend on the allocator")
    found = verified(nncdbg.load(path), {})
    assert found.ok, found
    assert len(found.ways) == 11


@examples(20)
@given(runnable())
def test_random_programs(text: str) -> None:
    found = verified(nncdbg.parse(text), INPUTS)
    assert found.ok, found


@pytest.mark.parametrize("index", range(0, 1500, 75))
def test_sampled_node_cases(index: int) -> None:
    _check_case(index, "node")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted", "light"])
def test_models(kind: str) -> None:
    for index in range(len(cases(kind))):
        _check_case(index, kind)


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_node_cases(chunk: int) -> None:
    for index in range(chunk, len(cases("node")), CHUNKS):
        _check_case(index, "node")


def _check_case(index: int, kind: str) -> None:
    case = cases(kind)[index]
    try:
        program = nncdbg.load(case.model)
        names = [value.name for value in program.graphs[program.entry].inputs]
        inputs = dict(zip(names, case.sets[0][0], strict=False))
        nncdbg.Debugger(program, inputs).run(heed=False)
    except nncdbg.NncdbgError as error:
        pytest.skip(f"{case}: {error.message}")
    found = verified(program, inputs)
    assert found.ok, f"{case}: {found}"


# -- reports of observers that change a run ----------------------------------------------------------------


TEXT = """graph @main(%x: f32[4]) -> (%a: f32[4], %b: f32[4]) {
  %a = Neg(%x)
  %b = Log(%x)
  return %a, %b
}
"""


def test_a_digest_depends_on_every_bit() -> None:
    quiet, other = (np.frombuffer(np.uint32(bits).tobytes(), np.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert digest(quiet) != digest(other)
    assert digest(quiet) == digest(quiet.copy())
    assert digest(quiet) != digest(quiet.reshape(1, 1))
    assert digest([quiet, other]) != digest([other, quiet])
    assert digest(np.array(["a", "b"], object)) != digest(np.array(["a,b"], object))


def test_an_observer_that_changes_an_output_is_reported_with_the_first_element() -> None:
    program = nncdbg.parse(TEXT)

    def make(allocator: Any, statistics: bool, checks: bool) -> nncdbg.Debugger:
        debugger = nncdbg.Debugger(
            program, {"x": [1.0, 2.0, 3.0, 4.0]}, allocator=allocator, statistics=statistics
        )
        if allocator == "poison":
            debugger.observers.measure(
                lambda binding, execute: lambda *inputs: _with_one_bit_flipped(execute(*inputs))
            )
        return debugger

    found = verify_observers(make, lambda debugger: debugger.run())
    assert not found.ok
    assert found.difference is not None
    assert (found.difference.output, found.difference.index) == ("a", (1,))
    assert found.difference.way.allocator == "poison"
    assert re.fullmatch(
        r"observers change the run: %a\[1\] differs with allocator poison: \S+ \(bits 0xc0000001\), "
        r"without observers -2.0 \(bits 0xc0000000\)",
        str(found),
    )
    assert found.as_dict()["first"]["index"] == [1]


def _with_one_bit_flipped(result: Any) -> Any:
    result.view(np.uint32)[1] ^= 1
    return result


def test_each_run_has_the_result_of_its_check() -> None:
    found = verified(nncdbg.load(EXAMPLES / "uninitialized.nnc"), {})
    assert not found.ok
    *passed, failed = (each for each in found.checks if each.result != "not checked")
    assert {each.result for each in passed} <= {"passed"}
    assert failed.result == "failed"
    left = [each for each in found.checks if each.result == "not checked"]
    assert left
    assert {each.reason for each in left} == {"an output of an earlier run differs"}
    assert len(found.checks) == len({each.check for each in found.checks})


def test_a_program_that_fails_without_observers_raises_its_error() -> None:
    text = "graph @main(%x: f32[2], %i: i64[1]) -> (%y) {\n  %y = Gather(%x, %i)\n  return %y\n}\n"
    with pytest.raises(nncdbg.NncdbgError, match="Gather"):
        verified(nncdbg.parse(text), {"x": [1.0, 2.0], "i": [7]})


# -- commands ----------------------------------------------------------------------------------------------


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "nncdbg", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_run_and_watch_verify_observers(tmp_path: Path) -> None:
    model = str(shutil.copy(EXAMPLES / "first_steps.nnc", tmp_path))
    done = _command("run", model, "--verify-observers", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["observers"]
    assert found["status"] == "ok"
    assert found["outputs"].keys() == {"probs", "steps"}
    assert "2 outputs are bit-equal in 11 runs" in done.stderr
    done = _command("watch", model, "--verify-observers")
    assert done.returncode == 0, done.stderr
    assert "note: observers change nothing" in done.stdout


def test_a_read_of_uninitialized_memory_makes_allocators_differ() -> None:
    done = _command("run", str(EXAMPLES / "uninitialized.nnc"), "--verify-observers", "--json")
    assert done.returncode == 4, "the run itself reports the read"
    assert json.loads(done.stdout)["observers"]["status"] == "differs"
    assert "observers change the run: %total differs with allocator debug" in done.stderr


def test_a_difference_makes_watch_fail(tmp_path: Path) -> None:
    done = _command(
        "watch", str(EXAMPLES / "uninitialized.nnc"), "--verify-observers", "--json", "--fail-on", "guard"
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["observers"]["first"]["output"] == "total"
