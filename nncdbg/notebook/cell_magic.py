"""The cell magic `%%nncdbg`: record the training step that a cell runs."""

from __future__ import annotations

from typing import Any

from nncdbg.errors import NncdbgError, UsageError


def register_magic(shell: Any) -> None:
    """Register `%%nncdbg` in an IPython shell; `%load_ext nncdbg` calls this."""

    def nncdbg(line: str, cell: str) -> None:
        """Record the cell as a training step, and show it.

          %%nncdbg [NAME]

        The step is the variable NAME, by default `step`.
        """
        from IPython.core.error import UsageError as ShellError

        try:
            _record_cell(shell, line.strip() or "step", cell)
        except NncdbgError as error:
            # IPython prints this error without a traceback.
            raise ShellError(str(error)) from None

    shell.register_magic_function(nncdbg, "cell")


def _record_cell(shell: Any, name: str, cell: str) -> None:
    if not name.isidentifier():
        raise UsageError(
            f"{name!r} is not the name of a variable",
            hint="%%nncdbg NAME keeps the step in the variable NAME",
        )
    import torch
    from IPython.display import display

    from nncdbg.torch.named_models import live_objects, models_of
    from nncdbg.torch.step_recording import record

    optimizers = live_objects(torch.optim.Optimizer)
    with record(models_of(optimizers), optimizers) as step:
        _run_cell(shell, cell)
    shell.user_ns[name] = step
    display(step)  # type: ignore[no-untyped-call]


def _run_cell(shell: Any, cell: str) -> None:
    """Run a cell with the number and the lines of the cell that begins with the magic.

    The shell prints the traceback of a cell that fails; the step ends there.
    """
    following = shell.execution_count
    shell.execution_count = len(shell.user_ns["In"]) - 1
    try:
        # The magic is the first line; another one below it must stay the first of its cell.
        shell.run_cell(cell if cell.startswith("%%") else f"# %%nncdbg\n{cell}")
    finally:
        shell.execution_count = following
