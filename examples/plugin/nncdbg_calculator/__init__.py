"""An example of an nncdbg extension."""
