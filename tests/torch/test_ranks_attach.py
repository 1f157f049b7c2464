"""Jobs of torchrun under `nncdbg debug --ranks`, and `nncdbg attach --ranks`."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.process.rank_notes import reports_of_job  # noqa: E402
from nncdbg.terminal.ranks.prompt import RanksPrompt  # noqa: E402
from tests.dap_server.client import stdio_client  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("forked_processes"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package"),
]

PATIENCE = 120
"""Seconds within which a job must get somewhere, on a busy machine."""

TRAIN = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(1, 7):
    optimizer.zero_grad()
    x = torch.randn(8, 4)
    if rank == 1 and step == 3 and "nan" in sys.argv:
        x = torch.log(-x.abs() - 1)
    loss = parallel(x).square().mean()
    if rank == 1 and step == 3 and "hang" in sys.argv:
        while True:
            time.sleep(0.05)
    loss.backward()
    if rank == 3 and step == 5:
        model[2].weight.grad.mul_(10)
    optimizer.step()
print(f"rank {rank} is done", flush=True)
if "stay" in sys.argv:
    time.sleep(600)
dist.barrier()
dist.destroy_process_group()
"""
HANG_LINE, BACKWARD_LINE = (
    1 + TRAIN.splitlines().index(line) for line in ("            time.sleep(0.05)", "    loss.backward()")
)


class Job:
    """A job, and commands on it."""

    def __init__(self, folder, process, environment):
        self.folder = folder
        self.process = process
        self._environment = environment

    def attach(self, *options, commands=()):
        """Run `nncdbg attach --ranks`; return the exit code, output and errors."""
        found = subprocess.run(
            [sys.executable, "-m", "nncdbg", "attach", "--ranks", *options],
            input="\n".join(commands),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment,
            timeout=PATIENCE,
        )
        return found.returncode, found.stdout, found.stderr

    def reports(self):
        [folder] = (self.folder / "state" / "nncdbg" / "ranks").glob("*")
        return reports_of_job(folder)

    def await_(self, true):
        """Wait until a function of the reports is true."""
        ending = time.monotonic() + PATIENCE
        while time.monotonic() < ending:
            with suppress(ValueError):
                if true(self.reports()):
                    return
            time.sleep(0.1)
        pytest.fail(f"the job did not get there: {self.reports()}")


@contextmanager
def job(folder, *arguments, ranks=2, options=()):
    """Yield a running job; end its processes afterwards."""
    (folder / "train.py").write_text(TRAIN)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*torchrun, "-m", "nncdbg", "debug", "--ranks", *options, "train.py", *arguments]
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found = Job(folder, process, environment)
    try:
        yield found
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()
            for each in found.reports():
                with suppress(ProcessLookupError):
                    os.kill(each.process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("ranks", "others"), [(2, [0]), (4, [0, 2, 3])])
def test_missing_rank_of_a_hang_is_named(tmp_path, ranks, others):
    with job(tmp_path, "hang", ranks=ranks) as found:
        found.await_(lambda reports: [each.status.step for each in reports] == [3] * ranks)
        code, out, err = found.attach("--report")
        assert code == 1, err
        missing, waiting, place = out[out.index("rank 1 has not") :].splitlines()[:3]
        assert missing == f"rank 1 has not reached all_reduce #8 (f32[49]), train.py:{BACKWARD_LINE}"
        started = "rank 0 started it, " if ranks == 2 else "ranks 0, 2 and 3 have started it, "
        assert waiting.startswith(f"  {started}")
        assert place == f"  rank 1 is at train.py:{HANG_LINE}"

        code, out, err = found.attach("--json")
        assert code == 1, err
        document = json.loads(out)
        [wait] = document["waits"]
        assert (wait["op"], wait["missing"], wait["waiting"]) == ("all_reduce", [1], others)
        assert document["mismatches"] == document["divergences"] == []


def test_breakpoint_on_one_rank_leaves_the_other_running(tmp_path):
    with job(tmp_path, options=["--wait"]) as found:
        found.await_(lambda reports: [each.status.state for each in reports] == ["waiting"] * 2)
        code, out, err = found.attach(
            commands=[
                "break aten.tanh rank 1",
                "condition 1 $step == 2",
                "watch %0.weight",
                "disable 2",
                "catch inf if $step > 90 rank 0",
                "info breakpoints",
                "clear %0.weight",
                "continue",
                "wait",
                "info ranks",
                "print $out.shape",
            ]
        )
        assert "Breakpoint 1: aten.tanh on rank 1" in out
        assert "Breakpoint 1: aten.tanh if $step == 2 on rank 1" in out
        assert "\n2: %0.weight on all ranks, off\ncaught: inf if $step > 90 on rank 0\n" in out
        assert "Deleted breakpoint 2: %0.weight on all ranks" in out
        assert "rank 1, step 2, train.py:" in out
        assert "breakpoint 1, op aten.tanh if $step == 2" in out
        assert "rank 0 runs on, and waits at its next collective" in out
        assert "rank 1: (8, 8)" in out
        # The prompt has detached: the ranks run to their end.
        output, _ = found.process.communicate(timeout=PATIENCE)
        assert found.process.returncode == 0, output
        assert "rank 0 is done" in output
        assert "rank 1 is done" in output


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    """Yield the prompt over the ranks of a job that waits for its start."""
    with (
        pytest.MonkeyPatch.context() as patch,
        job(tmp_path_factory.mktemp("job"), options=["--wait"]) as found,
    ):
        found.await_(lambda reports: [each.status.state for each in reports] == ["waiting"] * 2)
        patch.chdir(found.folder)
        [folder] = (found.folder / "state" / "nncdbg" / "ranks").glob("*")
        shown = RanksPrompt(folder)
        yield shown
        shown.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tbreak aten.tanh", "ranks have no temporary breakpoints"),
        ("log aten.tanh {$step}", "ranks have no logpoints"),
        ("assert 1 < 2", "no values by name that an assertion could test"),
        ("watch max(%w)", "not an expression"),
        ("break 12", "line 12 of which file?"),
        ("break", "no common line"),
        ("ignore 1 2", "there is no breakpoint 1"),
        ("commands", "there are no breakpoints"),
        ("delete 3", "there is no breakpoint 3"),
        ("delete rank 1", "`delete` takes no rank"),
        ("catch race", "cannot catch 'race'"),
        ("uncatch nan", '"nan" is not caught'),
        ("break aten.nothing", "torch has no operator aten.nothing"),
        ("break aten.tanh rank 7", "there is no rank 7 of 2"),
    ],
)
def test_ranks_refuse_commands_by_name(prompt, line, words, capsys):
    assert not prompt.execute(line)
    assert words in capsys.readouterr().err
    assert prompt.execute("info breakpoints")
    assert capsys.readouterr().out == "there are no breakpoints\ncaught: nothing\n"


def test_stops_of_all_ranks_are_compared(tmp_path):
    with job(tmp_path, options=["--wait"]) as found:
        found.await_(lambda reports: [each.status.state for each in reports] == ["waiting"] * 2)
        code, out, err = found.attach(
            commands=[
                "break aten.tanh if $step == 2",
                "continue",
                "wait",
                "wait",
                "compare $out",
                "rank 1",
                "next",
                "wait",
                "delete",
                "rank all",
                "continue",
                "wait",
                "wait",
            ]
        )
        assert code == 0, err
        assert "$out differs on rank 1: its norm is " in out
        assert "rank 1, step 2" in out
        assert "rank 0 has ended" in out
        assert "rank 1 has ended" in out


def test_nan_is_reported_once_on_the_rank_where_it_originates(tmp_path):
    with job(tmp_path, "nan", options=["--wait"]) as found:
        found.await_(lambda reports: [each.status.state for each in reports] == ["waiting"] * 2)
        code, out, err = found.attach(commands=["catch nan", "continue", "wait", "continue", "wait", "wait"])
        assert code == 0, err
        [stop] = [line for line in out.splitlines() if "the first NaN is in" in line]
        assert stop.startswith("rank 1, step 3, train.py:")
        assert "aten.log" in stop


def test_editor_has_one_session_with_a_thread_per_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    functions = [
        {"name": "aten.tanh", "condition": "$rank == 1 and $step == 2"},
        {"name": "aten.nothing"},
        {"name": "aten.tanh", "condition": "$step == 4"},
    ]
    with job(tmp_path, options=["--wait"]) as found:
        found.await_(lambda reports: [each.status.state for each in reports] == ["waiting"] * 2)
        with stdio_client() as client:
            client.request("initialize", {"adapterID": "nncdbg"})
            client.request("attach", {"ranks": True})
            client.expect_event("initialized")
            records = client.request("setFunctionBreakpoints", {"breakpoints": functions})["breakpoints"]
            assert [each["verified"] for each in records] == [True, False, True]
            assert "torch has no operator aten.nothing" in records[1]["message"]
            client.request("configurationDone")

            stop = client.expect_stop("function breakpoint")
            threads = {each["name"]: each["id"] for each in client.request("threads")["threads"]}
            assert [*threads] == ["rank 0: main", "rank 1: main"]
            first, second = threads.values()
            assert stop["threadId"] == second
            assert not stop["allThreadsStopped"]
            [frame, *_] = client.request("stackTrace", {"threadId": second})["stackFrames"]
            assert frame["source"]["name"] == "train.py"
            scopes = client.request("scopes", {"frameId": frame["id"]})["scopes"]
            inputs = next(each for each in scopes if each["name"] == "Inputs")
            [variable] = client.request("variables", {"variablesReference": inputs["variablesReference"]})[
                "variables"
            ]
            assert variable["value"].startswith("f32[8,8]")
            assert client.evaluate("$step", frameId=frame["id"]) == "2"
            client.refused("stackTrace", {"threadId": first})

            client.request("continue", {"threadId": second})
            stopped = {client.expect_stop("function breakpoint")["threadId"] for _ in range(2)}
            assert stopped == {first, second}
            for thread in (first, second):
                client.request("continue", {"threadId": thread})
            client.expect_event("terminated")
            client.request("disconnect")


def test_missing_rank_of_a_hang_is_named_in_the_debug_console(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with job(tmp_path, "hang") as found, stdio_client() as client:
        found.await_(lambda reports: [each.status.step for each in reports] == [3, 3])
        client.request("initialize", {"adapterID": "nncdbg"})
        [folder] = (tmp_path / "state" / "nncdbg" / "ranks").glob("*")
        client.request("attach", {"ranks": int(folder.name)})
        client.expect_event("initialized")
        client.request("configurationDone")
        table = client.evaluate("info ranks", context="repl")
        assert f"train.py:{HANG_LINE}" in table
        assert "rank 1 has not reached all_reduce #8" in client.evaluate("info collectives", context="repl")
        assert "equal on all ranks" in client.evaluate("info divergence", context="repl")
        client.request("disconnect")


def test_a15_a_rank_that_diverges_is_named_among_four(tmp_path):
    """A15: one of four ranks has a gradient that is 10 x larger at step 5."""
    with job(tmp_path, "stay", ranks=4) as found:
        found.await_(lambda reports: [each.status.step for each in reports] == [7] * 4)
        code, out, err = found.attach("--report")
        assert code == 0, err
        assert "step 5 is the first at which rank 3 differs from others:" in out
        assert "%module.2.weight.grad on rank 3: norm " in out
        assert ", 10 x that of ranks 0, 1 and 2" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attach"], "nncdbg attach needs --ranks"),
        (["attach", "--ranks"], "there is no job with ranks to attach to"),
        (["attach", "--ranks", "7"], "there is no job 7"),
        (["debug", "--ranks", "train.py"], "RANK and MASTER_PORT are not set"),
        (["debug", "--wait", "train.py"], "--wait needs --ranks"),
        (["debug", "--ranks", "--rank", "1", "train.py"], "--ranks takes no --listen and --rank"),
        (["debug", "--ranks", "--catch", "nan", "train.py"], "--ranks takes no --break, --catch"),
    ],
)
def test_wrong_usage_is_explained(arguments, words, command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("")
    code, _, err = command(*arguments)
    assert code == 2
    assert words in err
