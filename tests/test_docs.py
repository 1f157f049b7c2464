"""The Python code in the pages runs, the commands in the README exist, and links point to files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nncdbg.dap_server import registry
from tests.terminal.transcripts import play, same_output

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SESSION = re.compile(r"^```console\n(\$ nncdbg .*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda p: p.name
)
def test_the_python_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)  # A page may write files.
    # A page may add a request.
    monkeypatch.setattr(registry, "HANDLERS", {**registry.HANDLERS})
    names: dict[str, Any] = {}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), names)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that contains only the examples; the screen has 80 columns and no colour."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    # Generated pages quote tests/transcripts, which have their own tests.
    [page for page in PAGES if page.parent.name != "command-line" and SESSION.search(page.read_text())],
    ids=lambda p: p.stem,
)
def test_sessions_of_a_page_print_what_the_page_shows(
    page: Path, working_folder: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    for shown in SESSION.findall(text):
        seen = play(shown, working_folder)
        if not same_output(seen, shown):
            assert request.config.getoption("--update") or seen == shown
            page.write_text(text := text.replace(shown, seen), encoding="utf-8")


def test_every_tutorial_model_is_in_a_session() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    models = sorted((ROOT / "examples" / "tutorials").iterdir())
    assert models
    assert [model.name for model in models if f"examples/tutorials/{model.name}" not in text] == []


def test_links_of_pages_point_to_files() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []


def test_the_commands_of_the_readme_exist() -> None:
    from nncdbg.commands import find

    table = (ROOT / "README.md").read_text().split("| to | type |")[1].split("\n\n")[0]
    typed = re.findall(r"`([a-z]+)[^`]*`", table)
    assert len(typed) > 20
    for word in typed:
        find(word)


def test_the_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


def test_the_protocol_page_lists_every_request_and_key() -> None:
    from nncdbg.dap_server import handlers  # noqa: F401  registers the handlers
    from nncdbg.dap_server.attach.relay import AttachArguments
    from nncdbg.dap_server.launch_arguments import LaunchArguments
    from nncdbg.dap_server.registry import HANDLERS
    from nncdbg.opening.configuration import RunConfiguration

    page = (ROOT / "docs" / "DAP.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", page))
    assert set(HANDLERS) - named == set()
    for heading, record in (("launch", LaunchArguments), ("attach", AttachArguments)):
        table = page.split(f"## `{heading}`")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|", table, re.MULTILINE)
        assert [name for name, _, _ in rows] == list(record.__struct_encode_fields__)
        for (name, _, default), field in zip(rows, msgspec.structs.fields(record), strict=True):
            value = getattr(RunConfiguration(), field.name, field.default)
            if name != "program" and value not in (msgspec.NODEFAULT, None):
                assert default == f"`{json.dumps(value)}`", name


def test_the_protocol_page_states_the_limits() -> None:
    from nncdbg.dap_server import request_queue
    from nncdbg.dap_server.handlers import (
        evaluating,
        explaining,
        graph,
        memory,
        stack,
        tensors,
        timeline,
        variables,
    )
    from nncdbg.dap_server.transport import framing

    page = (ROOT / "docs" / "DAP.md").read_text()
    for words in (
        f"| body of a message | {framing.MAX_BODY >> 20} MiB |",
        f"{variables.CHILDREN} variables and {variables.ANSWER_BYTES >> 10} KiB;",
        f"| variables with `count` | {variables.MOST:,} |",
        f"| frames in a response | {stack.FRAMES:,};",
        f"| bytes of `readMemory` | {memory.MAX_READ >> 20} MiB;",
        f"| instructions of `disassemble` | {memory.MOST:,} |",
        f"| elements in the clipboard | {evaluating.MAX_ELEMENTS:,} |",
        f"| completions | {evaluating.MAX_COMPLETIONS} |",
        f"of `nncdbg/timeline` | {timeline.MOST_MOMENTS} / {timeline.MOST_BRANCHES} |",
        f"`count` is at most {explaining.MOST_VALUES}.",
        f"`nncdbg/nearby` | {explaining.MOST_VISITS}, for the {explaining.NEAR} newest values; "
        f"{explaining.MOST_STEPS:,} for a scalar that a run collects |",
        f"to collapse (at most {graph.MOST_TOGGLED} in total)",
        f"| {graph.MOST_STATEMENTS} in the {graph.LEVELS} innermost blocks of the stack |",
        f"| queued requests | {request_queue.MOST:,} requests and {request_queue.MOST_BYTES >> 20} MiB;",
        f"`maxElements` is at most {tensors.MAX_ELEMENTS}.",
        f"`bins` is at most {tensors.MAX_BINS}.",
        f"selects more than {tensors.MAX_REDUCED:,} elements",
        f"at most {variables.MAX_LINES} lines.",
    ):
        assert words in page, words
