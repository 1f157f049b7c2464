"""Opening a program: from a `RunConfiguration` to a `Debugger` at its first statement."""
