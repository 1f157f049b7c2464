"""Identity of findings across runs and across edits of the model."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

from nncdbg.nan_watch.records import WatchFinding

Key: TypeAlias = "tuple[str, str, str, str, str]"
"""(graph, value, op, kind, cause) of a finding; without its line, its numbers and its case."""


def key_of(finding: WatchFinding) -> Key:
    """Return the identity of a finding."""
    site = finding.site
    return (site.graph, site.value, site.op, finding.kind, finding.cause)


def fingerprint(finding: WatchFinding) -> str:
    """Return the key as a digest of 32 characters, the same in every process."""
    content = json.dumps(key_of(finding)).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
