"""Reports for the tests of the report formats, including hostile ones."""

from __future__ import annotations

from nncdbg.comparison.check_results import NOT_CHECKED, CheckResult
from nncdbg.errors import RunError
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import FindingSite, Operand, Report, WatchFinding
from nncdbg.opening.corpus.cases import Case
from nncdbg.stats.summary import Summary

TEXT = """#nncdbg 1
graph @main(%q: f32[3,4]) -> (%e: f32[3,4]) {
  %logq: f32[3,4] = Log(%q)   loc("net.py":7)
  %e: f32[3,4] = Mul(%q, %logq)
  return %e
}
"""
WATCHED = ReportContext(tuple(TEXT.splitlines()), ("nan", "inf", "uninitialized"))

FINE = Summary(0.0, 1.0, 0.25, 0.4, 0, 0, 0, 5, 0, 12)
INFINITE = Summary(-91.6, 0.0, -33.8, 37.3, 0, 0, 5, 2, 0, 12)
ALL_NAN = Summary(None, None, None, None, 12, 0, 0, 0, 0, 12)

LOG = FindingSite(3, "main", "/probs/Log", "Log", "logq", "net.py", 7)
MUL = FindingSite(4, "main", "", "Mul", "e")

INF_BORN = WatchFinding(
    "inf",
    "birth",
    LOG,
    first=True,
    inputs=(Operand("q", "f32[3,4]", FINE),),
    stats=INFINITE,
    cause="log of zero",
    evidence="5 of 12 elements of %q are 0, the first at [0, 1]",
    hint="keep it away from zero: Log(Max(%q, 1e-7))",
    trips=True,
)
NAN_BORN = WatchFinding(
    "nan",
    "birth",
    MUL,
    inputs=(Operand("q", "f32[3,4]", FINE), Operand("logq", "f32[3,4]", INFINITE)),
    stats=ALL_NAN,
    cause="zero times infinity",
    evidence="%q is 0 where %logq is -inf",
    within=FindingSite(2, "Mul", "", "Mul", "z"),
    trips=True,
)
PROPAGATED = WatchFinding("nan", "propagated", FindingSite(5, "main", "", "Neg", "f"))
MASKED = WatchFinding("nan", "masked", FindingSite(5, "main", "", "Where", "m"), reaches_output=False)
HEALED = WatchFinding("nan", "healed", FindingSite(5, "main", "", "Max", "r"), reaches_output=False)
BAD_INPUT = WatchFinding(
    "nan",
    "propagated",
    FindingSite(2, "main", "", "", "q"),
    cause="bad input",
    evidence="input %q has 1 NaN among 12 elements",
    trips=True,
)
REUSED = WatchFinding(
    "reuse",
    "birth",
    LOG,
    cause="wrong reuse",
    evidence="%e reused its bytes 0..48 at line 4",
    other=MUL,
    iteration=(2, 5),
    count=7,
    trips=True,
)

HOSTILE_NAMES = (
    "]]>",
    "</details><script>x</script>",
    "a\x1b[31mred\x07",
    "a\nb\r\n::error::injected",
    "100%0A",
    "file=x,line=9::",
    "right\u202eleft\u2066",
    "zero\u200bwidth\ufeff",
    "lone\ud800surrogate",
    "a|b`c``d`",
    "@everyone #12 [link](http://x) *b* _i_ ~s~",
    "\x00\x0b\x7f\x85\u2028",
    "العربية",
    "x" * 1_000_000,
    "",
)


def hostile_finding(name: str) -> WatchFinding:
    """Return a finding in which every text that a model file controls is this name."""
    site = FindingSite(3, name, name, name or "Log", name, name or None, 3)
    return WatchFinding(
        "nan",
        "birth",
        site,
        inputs=(Operand(name, name, FINE),) * 50,
        stats=Summary(0.0, 1e308, float("inf"), float("nan"), 1, 0, 0, 0, 0, 2),
        cause=name,
        evidence=name,
        hint=name,
        within=site,
        other=site,
        case=name,
        iteration=(1,) * 100,
        trips=True,
    )


def _counted(report: Report, beyond: int = 0) -> Report:
    for finding in report.findings:
        report.counts[finding.role] += 1
    report.counts["propagated"] += beyond
    report.unlisted = beyond
    return report


def plain() -> Report:
    return _counted(
        Report("nets/net.onnx", 12, 0.0123, [INF_BORN, NAN_BORN, PROPAGATED], notes=["%q drawn at random"])
    )


def of_text() -> Report:
    return _counted(
        Report("nets/net.nnc", 12, 0.0123, [NAN_BORN, MASKED, HEALED, BAD_INPUT, REUSED]), beyond=3
    )


def fine() -> Report:
    return Report("net.onnx", 12, 0.01)


def failed() -> Report:
    error = RunError("MatMul failed: sizes\n  differ", operands=("%x: f32[1,3]",), hint="look at %x")
    return Report(
        "net.onnx", 3, 0.01, error=error, results=[CheckResult("statements after line 4", NOT_CHECKED)]
    )


def corpus() -> Report:
    cases = [
        Case("a.npz", "tripped", 12, 0.1),
        Case("b.npz", "ok", 12, 0.1),
        Case("c.npz", "crashed", 0, 0.0, "the worker was killed by signal 11"),
        Case("d.npz", "unreadable", 0, 0.0, "no zip file"),
        Case("e.npz", "not run", 0, 0.0, "the time was up"),
        Case("f.npz", "tripped", 12, 0.1),
    ]
    found = WatchFinding("nan", "birth", MUL, cause="bad input", count=2, case="a.npz", trips=True)
    return _counted(Report("net.onnx", 36, 0.3, [found], cases=cases))


def hostile() -> Report:
    cases = [Case(name, "crashed", error=name) for name in HOSTILE_NAMES]
    findings = [*map(hostile_finding, HOSTILE_NAMES)]
    error = RunError("\x1b[2J" + "y" * 100_000)
    names = [*HOSTILE_NAMES] * 20
    return _counted(
        Report(
            "nets/\x1b[31m]]>.onnx",
            1,
            1.0,
            findings,
            results=[CheckResult(each, NOT_CHECKED) for each in names],
            notes=names,
            error=error,
            cases=cases,
        )
    )


def huge() -> Report:
    findings = [hostile_finding("x" * 5_000)] * 1_050
    cases = [Case(f"{number}.npz", "crashed", error="e" * 5_000) for number in range(10_500)]
    return _counted(Report("net.onnx", 1, 1.0, findings, cases=cases))


REPORTS = {made.__name__: made for made in (plain, of_text, fine, failed, corpus, hostile, huge)}
