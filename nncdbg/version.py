"""The version of nncdbg."""

__version__ = "0.1.0"
