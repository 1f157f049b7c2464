"""The example notebook runs, and its cells show HTML."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_an_example_notebook_runs_and_shows_html(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells), "clear its outputs"
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    ).execute()
    shown = [cell.outputs for cell in cells if not cell.source.startswith("assert")]
    for outputs in shown:
        assert [each.output_type for each in outputs] == ["execute_result"]
        assert outputs[0].data["text/html"].startswith('<div class="nncdbg">')


def test_the_example_notebook_exists() -> None:
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["find_a_nan.ipynb"]
