"""`check grad`: compare gradients with differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nncdbg.commands.table import command, needs
from nncdbg.dtypes import FLOATS
from nncdbg.errors import UsageError
from nncdbg.expression import resolve_name, spelled
from nncdbg.expression.operators import OperandError
from nncdbg.ir.records import tensor_only, type_of
from nncdbg.target.breakpoint_syntax import split_value

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import GradientCheck, Slope

_HINT = "write `check grad %loss by %h`, or `check grad %h` for the statement that computes %h"


@command("check", group="looking", arguments="grad %value [by %value]", completes=("value",))
def check(session: CommandSession, text: str) -> None:
    """Compare a gradient with two-sided differences in f64: `check grad %loss by %h`.

    `check grad %h` checks the statement that computes the value, by each of its float operands.  What lies
    between the two values runs again in f64.  Of a tensor with more than 256 elements, 256 random ones are
    checked, and 4 random directions.  The elements at a kink, such as 0 for Relu, are counted apart.
    """
    what, _, rest = needs("check", text).partition(" ")
    if what != "grad" or not rest.strip():
        raise UsageError("`check` needs what to check", hint=_HINT)
    scope = session.target.scope()
    first, rest = split_value(rest.strip())
    y = resolve_name(first, scope.has, scope.names, scope.aliases)
    word, _, second = rest.strip().partition(" ")
    if word and (word != "by" or not second.strip()):
        raise UsageError(f'`check grad` cannot read "{rest.strip()}"', hint=_HINT)
    by = (
        [resolve_name(second.strip(), scope.has, scope.names, scope.aliases)]
        if word
        else _float_operands(session, y)
    )
    for x in by:
        try:
            session.screen.put("\n".join(_report(session, y, x)))
        except OperandError as error:
            if word:
                raise UsageError(str(error), hint=error.hint) from None
            session.screen.put(f"gradient of {spelled(y)} by {spelled(x)}: {error}")


def _float_operands(session: CommandSession, name: str) -> list[str]:
    """Return the float operands of the statement that computes a value."""
    scope = session.target.scope()
    node = session.target.state(name).place.node
    if node is None:
        raise UsageError(f"no statement of this frame computes {spelled(name)}", hint=_HINT)
    operands = dict.fromkeys(each for each in node.inputs if isinstance(each, str))
    types = {each: tensor_only(type_of(scope.content(each))) for each in operands}
    found = [each for each, known in types.items() if known is not None and known.dtype in FLOATS]
    if not found:
        raise UsageError(f"{spelled(name)} is computed without float operands")
    return found


def _report(session: CommandSession, y: str, x: str) -> list[str]:
    found = session.target.check_gradient(y, x)
    lines = [f"gradient of {spelled(y)} by {spelled(x)}, {found.type}: {_verdict(found)}"]
    if (worst := found.worst) is not None:
        largest = max(slope.difference for slope in found.smooth)
        place = "along a random direction" if worst.index is None else f"at {list(worst.index)}"
        lines.append(f"  largest difference {largest:.2g}, relative {worst.relative:.2g}")
        lines.append(f"  worst {place}: gradient {worst.gradient:.6g}, differences {worst.numeric:.6g}")
    if found.kinks:
        lines.append(f"  {_kinks(found.kinks)}")
    return lines


def _verdict(found: GradientCheck) -> str:
    elements = sum(slope.index is not None for slope in found.smooth)
    if not found.smooth:
        return "not checked, every element is at a kink"
    return f"{'ok' if found.ok else 'wrong'}, {elements} element{'s' if elements != 1 else ''} checked in f64"


def _kinks(kinks: Sequence[Slope]) -> str:
    first = kinks[0]
    place = "a random direction" if first.index is None else f"{list(first.index)}"
    many = f"{len(kinks)} elements are at a kink" if len(kinks) > 1 else "1 element is at a kink"
    slopes = f"slopes {first.below:.4g} and {first.above:.4g}, gradient {first.gradient:.4g}"
    return f"{many}, such as {place}: {slopes}"
