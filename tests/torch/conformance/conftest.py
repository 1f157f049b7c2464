"""The tally of torch's samples, printed after a run of `make conformance-torch`."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

SUITE, SAMPLES, SAME = "conformance suite", "samples", "samples with the same bits"


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[[str, int, int], None]:
    """`tally(suite, samples, same)` enters the samples of a test, and how many replay to the same bits."""

    def enter(suite: str, samples: int, same: int) -> None:
        record_property(SUITE, suite)
        record_property(SAMPLES, samples)
        record_property(SAME, same)

    return enter


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums of several threads differ from run to run in torch too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    samples: Counter[str] = Counter()
    same: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            found = dict(getattr(report, "user_properties", ()))
            if SUITE in found and report.when == "call":
                samples[found[SUITE]] += found[SAMPLES]
                same[found[SUITE]] += found[SAME]
    for suite, count in sorted(samples.items()):
        share = same[suite] / count
        terminalreporter.write_line(f"{suite}: {same[suite]:,} of {count:,} samples bit-equal ({share:.2%})")
