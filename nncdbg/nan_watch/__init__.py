"""The watch for CI: runs a program and tells which op gave birth to the first NaN, and why."""
