"""Main program of the watchdog (see `black_box`): wait for the server's end, report the op it died in."""

from __future__ import annotations

import json
import os
import signal
import sys

from nncdbg.dap_server.transport.framing import frame
from nncdbg.process.crash_report_reader import read_box, sentence


def main() -> None:
    """Wait for the end of standard input, which closes with the server; standard output is its client."""
    # Ctrl-C goes to all processes of a terminal; the server handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    words = read_box(sys.argv[2])
    if words.record is None or words.sending:
        # No message can be sent between the halves of another one.
        return
    text = f"the program's process ended {sentence(words.record)}\n"
    for number, (event, body) in enumerate(
        (("output", {"category": "important", "output": text}), ("terminated", {})), words.sent + 1
    ):
        message = {"seq": number, "type": "event", "event": event, "body": body}
        _write(frame(json.dumps(message).encode()))


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
