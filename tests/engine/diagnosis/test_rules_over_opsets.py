"""Every rule of an op works for every version of the op, and its failure never fails the statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.diagnosis.explaining import cause_of, legal
from nncdbg.engine.observers import statement_checks
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.influence import Application, whole
from nncdbg.engine.ops.schema import for_rules, schema, versions_of
from nncdbg.errors import NncdbgError
from tests.engine.diagnosis.births import results
from tests.engine.diagnosis.test_causes_over_ops import Template, templates


def older(template: Template) -> Iterator[tuple[Op, int, dict[str, Any]]]:
    """Yield the op of a case in each version up to that of the case, with its attributes there."""
    for version in versions_of(template.op):
        op, found = lookup(template.op, version), schema(template.op, version)
        if op is None or found is None or version > template.opset:
            continue
        given = {key: value for key, value in template.attributes.items() if key in found.attributes}
        try:
            yield op, version, for_rules(template.op, version, given)
        except NncdbgError:
            continue  # This version requires an attribute that the case does not have.


def with_bad(outputs: Sequence[Any], number: float) -> dict[int, Any]:
    """Return the results with a bad first element, where they are floats; sequences have no rules."""
    changed = {}
    for index, value in enumerate(outputs):
        if isinstance(value, list):
            continue
        array = np.array(value)
        if array.dtype.kind == "f" and array.size:
            array.reshape(-1)[0] = number
        changed[index] = array
    return changed


def influenced(op: Op, version: int, attributes: dict[str, Any], template: Template) -> None:
    """Apply the influence rule as a run does: with the attributes of the kernel, over its own results."""
    known = schema(template.op, version)
    assert known is not None
    own = {key: value for key, value in attributes.items() if key in known.attributes}
    arguments = dict(op.arguments(own, version, template.outputs))
    operands = list(template.operands)
    try:
        found = op.bind(np, arguments)(*operands)
    except Exception:  # noqa: BLE001 - this version refuses the operands of the case
        return
    outputs = found if isinstance(found, tuple) else (found,)
    op.influence.find(Application(op, arguments, operands, outputs, [whole(each) for each in operands]))


def rules_failing(op: Op, version: int, attributes: dict[str, Any], template: Template) -> list[str]:
    """Return the failures of the rules of an op over the operands of a case."""
    failed: list[str] = []
    operands = list(template.operands)
    try:
        outputs = results(template.op, template.opset, template.attributes, operands, template.outputs)
    except (NncdbgError, ValueError, TypeError, RuntimeError, LookupError, ArithmeticError):
        return failed  # The kernel refuses the case in this form: there is no statement to explain.
    for kind, number in (("nan", np.nan), ("inf", np.inf)):
        for index, result in with_bad(outputs, number).items():
            names = list(template.names)
            birth = Birth(kind, template.op, version, attributes, names, operands, result, index)
            if kind == "inf":
                legal(birth, [None] * len(operands))
            evidence = cause_of(birth).evidence
            if " failed: " in evidence:
                failed.append(evidence)
    rules = {
        "integer_fault": lambda: op.integer_fault and op.integer_fault(attributes, operands),
        "squares": lambda: op.squares and op.squares.suspicious(attributes, operands, outputs[0]),
        "exact_infinity": lambda: op.gives_exact_infinity(operands),
        "influence": lambda: influenced(op, version, attributes, template),
    }
    for name, rule in rules.items():
        try:
            rule()
        except Exception as error:  # noqa: BLE001 - any exception of a rule is a failure to report
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def test_each_rule_works_in_each_version_of_its_op() -> None:
    found = {}
    for template in templates():
        if not all(isinstance(value, np.ndarray) for value in template.operands):
            continue
        for op, version, attributes in older(template):
            if failed := rules_failing(op, version, attributes, template):
                found[f"{template.op} {version}"] = failed
    assert not found, "\n".join(f"{name}: {failed}" for name, failed in found.items())


QUANTIZED = """#nncdbg 1
opset {opset}
graph @main(%x: f32[3]) -> (%y: u8[3]) {{
  %scale: f32[] = 0.0
  %zero: u8[] = 0
  %y: u8[3] = QuantizeLinear(%x, %scale, %zero)
  return %y
}}
"""


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
def test_scale_of_zero_is_found_in_each_version(opset: int) -> None:
    report = nncdbg.watch(nncdbg.parse(QUANTIZED.format(opset=opset)), {"x": np.ones(3, np.float32)})
    assert [each.cause for each in report.tripping] == ["scale of zero"]
    assert report.error is None


def test_a_check_whose_rule_fails_is_not_checked_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("block_size")

    def declared(name: str, opset: int) -> Any:
        op = lookup(name, opset)
        return op and replace(op, integer_fault=broken)

    monkeypatch.setattr(statement_checks, "lookup", declared)
    monkeypatch.setattr("nncdbg.engine.backends.lookup", declared, raising=False)
    monkeypatch.setattr("nncdbg.engine.backends.composed.lookup", declared, raising=False)
    report = nncdbg.watch(nncdbg.parse(QUANTIZED.format(opset=19)), {"x": np.ones(3, np.float32)})
    assert report.error is None
    assert any("`integer_fault` of QuantizeLinear) failed: KeyError" in each for each in report.unchecked)
