"""The Debug Adapter Protocol as typed records, and tables of its requests and events by name."""

from nncdbg.dap_server.protocol.record import Exchange, Record
from nncdbg.dap_server.protocol.tables import EVENTS, REQUESTS, REVERSE_REQUESTS

__all__ = ["EVENTS", "REQUESTS", "REVERSE_REQUESTS", "Exchange", "Record"]
