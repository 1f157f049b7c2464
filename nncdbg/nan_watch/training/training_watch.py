"""A watch that begins and ends with the training of another library, for its callbacks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from nncdbg.nan_watch.training.records import BadStep, TrainingReport
from nncdbg.nan_watch.training.watching import watch
from nncdbg.torch.named_models import Models, Optimizers


class TrainingWatch:
    """The watch of one training; `options` are those of `nncdbg.torch.watch`.

    It also ends when it raises NaNFound: libraries do not report each exception to their callbacks.
    """

    def __init__(self, **options: Any) -> None:
        self.report = TrainingReport()
        """The report of this training, or of the last one."""
        self._options = options
        self._found = options.pop("found", None)
        self._entered = ExitStack()

    def begin(self, model: Models, optimizer: Optimizers) -> None:
        """Watch a training.  Raises UsageError for unknown options, and inside of another watch."""
        self.end()
        self.report = self._entered.enter_context(
            watch(model, optimizer, found=self._on_found, **self._options)
        )

    def end(self, error: BaseException | None = None) -> None:
        """End the watch, if it is active; `error` is that of a training that failed."""
        self._entered.__exit__(None if error is None else type(error), error, None)

    def _on_found(self, bad: BadStep) -> None:
        if self._found is not None:
            self._found(bad)
        if self._options.get("on_nan", "raise") == "raise":
            self.end()
