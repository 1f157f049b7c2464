"""The statistics of values over steps: exact, complete for recent steps, thinned for old ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import journal, summarize
from nncdbg.journal import NewRun, statistics
from nncdbg.journal.statistics import FIELDS, RECENT, ROW, level_of, thinned

GRAPH = NewRun(kind="graph", name="train.nnc")


def test_history_of_each_value_is_exact(tmp_path: Path) -> None:
    """N4: the history of 50 iterations x 100 tensors is read by name."""
    rng = np.random.default_rng(0)
    tensors = {(step, n): rng.normal(n, 1, 20).astype(np.float32) for step in range(50) for n in range(100)}
    tensors[7, 3][:5] = [np.nan, np.inf, -np.inf, 0, 1e-40]
    tensors[8, 3][:] = np.nan
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        for (step, n), tensor in tensors.items():
            run.statistics(step, f"%v{n}", summarize(tensor))
            if step == 20 and n == 50:
                run.flush()
        for ended in (False, True):
            run.end() if ended else run.flush()
            for n in range(100):
                rows = file.statistics(1, f"%v{n}")
                assert rows["step"].tolist() == list(range(50))
                for row in rows:
                    expected = summarize(tensors[int(row["step"]), n])
                    for field in FIELDS:
                        wanted = getattr(expected, field)
                        assert row[field] == wanted or (wanted is None and np.isnan(row[field]))
        assert file.statistics(1, "%v3", first=5, last=8)["step"].tolist() == [5, 6, 7, 8]
        assert len(file.statistics(1, "%absent")) == 0


def _write(path: Path, steps: int, names: int = 2) -> None:
    with journal.open(path, write=True) as file, file.start(GRAPH) as run:
        for step in range(steps):
            for n in range(names):
                tensor = np.array([step, n, np.nan if step == 777 else 1.0])
                run.statistics(step, f"%v{n}", summarize(tensor))
            if step % 200 == 0:
                run.flush()


@pytest.mark.parametrize("most", [100, 1000, 100_000])
def test_old_steps_are_thinned_and_recent_steps_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """All of the last steps, every second of those before, every fourth: whenever chunks are written."""
    monkeypatch.setattr(statistics, "_MOST_ROWS", most)
    steps = 20 * RECENT
    _write(tmp_path / "run.db", steps)
    with journal.open(tmp_path / "run.db") as file:
        rows = file.statistics(1, "%v1")
    kept = rows["step"]
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert set(range(steps - RECENT, steps)) <= set(kept.tolist())
    assert np.max(np.diff(kept[kept >= steps - 2 * RECENT])) <= 2
    ages = steps - 1 - kept[:-1]
    limits = np.array([2 ** level_of(int(age) + statistics.CHUNK_ROWS) for age in ages])
    assert np.all(np.diff(kept) <= limits)
    assert RECENT * 3 < len(kept) < RECENT * 6
    np.testing.assert_array_equal(rows["max"], np.maximum(kept, 1))
    assert 777 in kept


def test_a_step_measured_again_has_the_later_statistics(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        for number in (1.0, 2.0):
            for step in range(3):
                run.statistics(step, "%v", summarize(np.array([number + step])))
        run.flush()
        assert file.statistics(1, "%v")["mean"].tolist() == [2.0, 3.0, 4.0]


@given(st.lists(st.booleans(), max_size=40), st.sampled_from([1, 2, 4, 8]))
def test_thinning_keeps_the_first_of_each_series_with_nan(abnormal: list[bool], stride: int) -> None:
    rows = np.zeros(len(abnormal), ROW)
    rows["step"] = np.arange(len(abnormal))
    rows["nan"] = abnormal
    kept = set(thinned(rows, stride)["step"].tolist())
    firsts = {n for n, bad in enumerate(abnormal) if bad and not (n and abnormal[n - 1])}
    assert kept == firsts | set(range(0, len(abnormal), stride))


def test_levels_double() -> None:
    assert [level_of(age) for age in (0, RECENT - 1, RECENT, 2 * RECENT - 1, 2 * RECENT, 4 * RECENT)] == [
        *(0, 0, 1, 1, 2, 3)
    ]
