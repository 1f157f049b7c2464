"""What tells one finding from another, from run to run and from edit to edit of the model."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

from nncdbg.nan_watch.records import WatchFinding

Key: TypeAlias = "tuple[str, str, str, str, str]"
"""(graph, value, op, kind, cause) of a finding: not its line, its numbers or the case it was seen in."""


def key_of(finding: WatchFinding) -> Key:
    """What a finding is known by."""
    site = finding.site
    return (site.graph, site.value, site.op, finding.kind, finding.cause)


def fingerprint(finding: WatchFinding) -> str:
    """The key as 32 characters, the same in every process."""
    content = json.dumps(key_of(finding)).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
