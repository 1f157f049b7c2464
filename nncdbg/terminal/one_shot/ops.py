"""`nncdbg ops`: the support for every op, from the declarations and ONNX's schemas."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import asdict

from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable
from nncdbg.opening.command_line import add_json, one_shot, option


@one_shot(
    "nncdbg ops",
    "List all ops with their implementations, or describe one.",
    option("name", nargs="?", metavar="NAME", help="an op (Conv, aten.add.Tensor), or a domain: aten"),
    add_json,
)
def main(options: Namespace) -> int:
    """Print the table of all ops or of a domain, or the details of one op.

    Raises UsageError for an unknown name.
    """
    from nncdbg.opening.op_support import OpDescription, supported_ops

    ops = supported_ops(options.name, _warn)
    if options.json:
        print(json.dumps(ops.as_dict() if isinstance(ops, OpDescription) else [*map(asdict, ops)]))
    elif isinstance(ops, OpDescription):
        print(ops.signature)
        print(f"  {', '.join(ops.support.support())}; since {', '.join(map(str, ops.support.since))}")
        print(f"  gradient: {ops.gradient}")
        for attribute in ops.attributes:
            print(f"  {attribute}")
        if ops.doc:
            print(f"\n{ops.doc}")
    else:
        width = max(len(entry.name) for entry in ops)
        for entry in ops:
            versions = ",".join(map(str, entry.since))
            print(f"{entry.name:<{width}}  {versions:<12}  {', '.join(entry.support())}")
    return 0


def _warn(error: NncdbgError) -> None:
    print(printable(f"warning: {error}"), file=sys.stderr)
