"""Expressions and commands: hover, watches, the debug console, the clipboard, completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nncdbg.commands.command_lines import is_expression
from nncdbg.commands.completion import candidates
from nncdbg.dap_server.console import Console, bounded, console_of
from nncdbg.dap_server.protocol.requests import CompletionsBody, EvaluateBody
from nncdbg.dap_server.protocol.types import CompletionItem, CompletionItemType
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.clipboard import python_text
from nncdbg.dap_server.variables.loss_gradients import with_loss_gradient
from nncdbg.dap_server.variables.places import values_from
from nncdbg.dap_server.variables.results import result_fields, result_of
from nncdbg.dap_server.variables.statement_time import with_time
from nncdbg.engine.expression import evaluate as value_of
from nncdbg.engine.expression import split_definition

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import CompletionsArguments, EvaluateArguments
    from nncdbg.dap_server.protocol.types import ValueFormat, Variable
    from nncdbg.dap_server.session import Session

MAX_COMPLETIONS = 200


class _Context(msgspec.Struct):
    context: str | None = None


def _is_read(arguments: bytes | None) -> bool:
    """Return whether the request may be dropped: console input is always executed."""
    try:
        return msgspec.json.decode(arguments or b"{}", type=_Context).context != "repl"
    except (msgspec.DecodeError, RecursionError):
        return False


@request(
    "evaluate",
    when=LIVE,
    capability={
        "supportsEvaluateForHovers": True,
        "supportsClipboardContext": True,
        "supportsANSIStyling": True,
    },
    reads=_is_read,
    title="Evaluating",
)
def evaluate(session: Session, arguments: EvaluateArguments) -> EvaluateBody:
    text = arguments.expression
    if arguments.context == "repl":
        console = console_of(session)
        console.select_frame(arguments.frame_id)
        line = text.strip()
        if line[:1] in ("", "#") or console.collecting or not is_expression(console.debugger, line):
            return EvaluateBody(result=console.enter(text), variables_reference=0)
        return _console_expression(session, console, line, arguments.format)
    scope = values_from(session, arguments.frame_id)
    session.check_settled()
    if arguments.context == "clipboard":
        content = value_of(scope.read(text), scope)
        return EvaluateBody(result=python_text(text, content), variables_reference=0)
    shown = result_of(session, scope, text, arguments.format)
    if arguments.context == "hover":
        shown = with_time(session, scope, text, with_loss_gradient(session, scope, text, shown))
    return _body(shown)


def _console_expression(
    session: Session, console: Console, line: str, format: ValueFormat | None
) -> EvaluateBody:
    """Evaluate and record a line of the console that is an expression or defines a name."""
    session.check_settled()
    definition = split_definition(line)
    if definition is not None:
        console.debugger.evaluate(line)
    text = line if definition is None else f"${definition[0]}"
    shown = result_of(session, console.debugger.values, text, format, keep=True)
    console.record_expression(line, text)
    return _body(shown)


def _body(shown: Variable) -> EvaluateBody:
    hint = shown.presentation_hint
    return EvaluateBody(result=bounded(shown.value), presentation_hint=hint, **result_fields(shown))


@request(
    "completions",
    when=LIVE,
    capability={
        "supportsCompletionsRequest": True,
        "completionTriggerCharacters": ["%", "@", "$", ".", "/", '"'],
    },
    reads=True,
)
def completions(session: Session, arguments: CompletionsArguments) -> CompletionsBody:
    lines = arguments.text.split("\n")
    row = 0 if arguments.line is None else session.client.incoming_line(arguments.line) - 1
    line = lines[min(max(0, row), len(lines) - 1)]
    first = session.client.outgoing_column(1)
    before = _first_units(line, arguments.column - first)
    word, names = candidates(console_of(session), before)
    start = _units(before) - _units(word) + first
    return CompletionsBody(
        targets=[
            CompletionItem(label=name, type=_kind(name), start=start, length=_units(word))
            for name in names[:MAX_COMPLETIONS]
        ]
    )


def _units(text: str) -> int:
    """The length in the protocol's unit, UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _first_units(text: str, count: int) -> str:
    data = text.encode("utf-16-le", "surrogatepass")[: 2 * max(0, count)]
    return data.decode("utf-16-le", "ignore")


def _kind(name: str) -> CompletionItemType:
    if name.startswith("%"):
        return "value"
    if name.startswith("@"):
        return "module"
    if name.startswith("$"):
        return "variable"
    return "function" if name.endswith("(") else "keyword"
