"""Summary of a run: outputs with statistics, non-finite inputs, and the findings that stopped it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.breakpoints.exception_filters import LABELS
from nncdbg.dap_server.protocol.record import Record
from nncdbg.dap_server.variables.value_text import Glance, is_tensor, plain_text, statistics_text, type_text
from nncdbg.engine.expression import spelled
from nncdbg.presentation.elements import SMALL, is_text

if TYPE_CHECKING:
    from nncdbg.dap_server.client import Client
    from nncdbg.dap_server.protocol.types import Source
    from nncdbg.dap_server.sources.shown import Sources
    from nncdbg.dap_server.variables.value_text import Shown
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.stats import Summary


class RunFinding(Record, frozen=True, kw_only=True):
    """A finding that stopped the run: kind, label of its filter, description, place of the statement."""

    kind: str
    label: str
    text: str
    line: int | None = None
    source: Source | None = None


class RunValue(Record, frozen=True, kw_only=True):
    """An output or input: `text` as in the variables, `kinds` of non-finite elements (`nan`, `inf`)."""

    name: str
    text: str
    kinds: list[str]


class RunSummaryBody(Record, frozen=True, kw_only=True):
    """The body of the event `nncdbg/summary`."""

    program: str
    outputs: list[RunValue]
    inputs: list[RunValue]
    """The inputs with NaN or Inf."""
    findings: list[RunFinding]


def finding_of(stop: Stop, sources: Sources, client: Client) -> RunFinding:
    """Return the finding of a stop, for the summary at the end of the run."""
    assert stop.finding is not None
    source = sources.of_frame(stop.frame) if stop.frame is not None else None
    line = client.outgoing_line(stop.line) if stop.line is not None else None
    kind = stop.finding.kind
    return RunFinding(
        kind=kind, label=LABELS.get(kind, kind), text=stop.finding_text, line=line, source=source
    )


def summary_of_run(shown: Shown, name: str, findings: list[RunFinding]) -> RunSummaryBody:
    """The summary of the program `name`, after its end."""
    debugger = shown.debugger
    glance = Glance(shown, hex=False, between=lambda: None)
    slots = map(debugger.backend.to_host, debugger.control.stack[0].slots[1 : 1 + len(debugger.inputs)])
    inputs = [_value(glance, name, content) for name, content in zip(debugger.inputs, slots, strict=True)]
    outputs = [_value(glance, name, content) for name, content in (debugger.outputs or {}).items()]
    return RunSummaryBody(
        program=name,
        outputs=outputs,
        inputs=[each for each in inputs if each.kinds],
        findings=findings,
    )


def console_lines(summary: RunSummaryBody) -> list[str]:
    """The console lines of a summary: every output, and every input with NaN or Inf."""
    inputs = [f"input {each.name} {each.text}" for each in summary.inputs]
    return [*inputs, *(f"output {each.name} {each.text}" for each in summary.outputs)]


def _value(glance: Glance, name: str, content: Any) -> RunValue:
    if not is_tensor(content) or is_text(content) or not content.size:
        text = glance.text(content) if is_tensor(content) else plain_text(content)
        return RunValue(name=spelled(name), text=text, kinds=[])
    summary = glance.full_summary(content)
    small = content.size <= SMALL
    text = glance.text(content) if small else f"{type_text(content)} {statistics_text(content, summary)}"
    return RunValue(name=spelled(name), text=text, kinds=_non_finite(summary))


def _non_finite(summary: Summary) -> list[str]:
    found = ["nan"] if summary.nan else []
    return [*found, "inf"] if summary.posinf or summary.neginf else found
