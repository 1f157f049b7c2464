"""What the watch reports at an origin, compared with the truth of a planted case."""

from __future__ import annotations

import re
from pathlib import Path

from nncdbg.nan_watch.records import WatchFinding
from tests.torch.planted.cases import Planted

MEANINGS: dict[str, set[str]] = {
    "log of zero": {"log-of-zero"},
    "log of a negative number": {"log-of-negative"},
    "division by zero": {"division-by-zero"},
    "zero divided by zero": {"zero-over-zero"},
    "square root of a negative number": {"sqrt-of-negative"},
    "power of a negative number": {"sqrt-of-negative"},
    "overflow of the exponential": {"exp-overflow"},
    "overflow": {"matmul-overflow"},
    "infinity minus infinity": {"inf-minus-inf"},
    "zero times infinity": {"zero-times-inf"},
    "outside of the domain": {"acos-domain", "atanh-domain"},
    "empty reduction": {"empty-mean"},
    "fully masked row": {"softmax-all-masked"},
    "zero variance": {"zero-variance-norm"},
    "uninitialized read": {"uninitialized-memory"},
    "bad input": {"input-nan", "input-inf"},
    "bad parameter": {"bad-parameter"},
    "cast out of range": {"fp16-overflow"},
    "overflow of half precision": {"fp16-overflow"},
    "overflow of a product": {"cumulative-product"},
    "gradient overflow": {"gradient-overflow-loss-scale"},
    "square root at zero in backward": {"sqrt-at-zero-backward"},
    "norm at zero in backward": {"norm-at-zero-backward"},
    "power at zero in backward": {"pow-at-zero-backward"},
    "where trap in backward": {"where-trap-backward"},
    "variance of one element": {"variance-of-one"},
    "bad batch": {"bad-batch"},
    "division in the optimizer": {"optimizer-division"},
    "underflow in the optimizer": {"f16-optimizer-underflow"},
    "overflow in the optimizer": {"optimizer-overflow"},
    "learning rate too large": {"learning-rate"},
    "received": set(),  # It comes from another rank, and the corpus has one process.
}
"""The names of causes in reports to those of the corpus."""


def differences(finding: WatchFinding, case: Planted) -> list[str]:
    """Return what the report of an origin has wrong: op, line, value, file, cause, evidence or hint."""
    site = finding.site if finding.used is None else finding.used.site
    compared = {
        "op": (site.op, case.op),
        "line": (site.source_line, case.line),
        "value": (finding.kind, case.value),
        "file": (Path(site.file or "").name, Path(case.file).name),
    }
    wrong = [f"{what}: {found}, not {true}" for what, (found, true) in compared.items() if found != true]
    if not MEANINGS.get(finding.cause, set()) & {case.cause, *case.also}:
        wrong.append(f"cause: {finding.cause}, not {case.cause}")
    wrong += [what for what in ("evidence", "hint") if not getattr(finding, what)]
    return wrong


def contradictions(finding: WatchFinding) -> list[str]:
    """Return what the hint of an origin claims against its own report."""
    types = f"{finding.site.text} {' '.join(str(each.type) for each in finding.inputs)}"
    in_optimizer = finding.site.graph.startswith("optimizer")
    claims = {
        r"GradScaler|loss scale|use bf16|in f32 or bf16": "f16[" in types,
        r"learning rate|weight_decay|get_last_lr": in_optimizer,
        r"eps above 0": bool(re.search(r"\b0\b|eps=0", finding.evidence)),
        r"one element|drop_last": "1 element" in finding.evidence,
        r"-1e4": "exclude every key" in finding.evidence or "only -inf" in finding.evidence,
        r"torch\.eye": "singular" in finding.evidence,
        r"earlier checkpoint|report this bug": False,
    }
    return [claim for claim, holds in claims.items() if re.search(claim, finding.hint) and not holds]
