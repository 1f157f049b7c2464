"""A recorded training step: its program, its inputs, and what can be done with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from nncdbg.comparison.verification import DeterminismVerification
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.verification import verify_determinism
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.errors import RunError, UsageError
from nncdbg.ir.records import Program, SavedRun
from nncdbg.opening.folder_writing import write_folder
from nncdbg.representation import RichOutput, representations
from nncdbg.torch.program import RecordedProgram

BACKEND = "torch"

_NUMBERS = count(1)


class RecordedStep(RichOutput):
    """A recorded step.  It is complete when the block of `record` has ended.

    A step that does not fit in memory is not recorded, and its block runs on: `notes` says so, and all that
    needs the program raises RunError.

    Functions that take a program take a recorded step as well: `nncdbg.Debugger(step)`.
    """

    def __init__(self) -> None:
        self._recorded: RecordedProgram | None = None
        self._build: Callable[[], RecordedProgram] | None = None
        self.failure: RunError | None = None
        """Why nothing was recorded."""
        self._program: Program | None = None
        self._notes: tuple[str, ...] = ()
        self._number = next(_NUMBERS)
        self.bad_gradients: bool | None = None
        """Whether gradients had NaN or Inf at the end of a second run, which does not communicate with other
        ranks; None for a first run, or one that ended early."""
        self.same_states = True
        """Whether a second run made the same states NaN or Inf."""

    @property
    def complete(self) -> bool:
        """Whether the block of `record` has ended, and the step was recorded."""
        return self._build is not None

    @property
    def program(self) -> Program:
        """The program: graphs `@forward`, `@backward`, `@optimizer`, and one for each module.

        It runs on the backend torch with the inputs of the step, unless others are given.
        """
        if self._program is None:
            recorded = self._complete()
            saved = SavedRun(
                origin=f"recorded step {self._number}",
                inputs=self._inputs,
                backend=BACKEND,
                checksums=recorded.checksums,
                sources=recorded.sources,
            )
            self._program = replace(recorded.program, notes=self.notes, saved=saved)
        return self._program

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The values before the step by name: parameters, buffers, moments, random states, the batch.

        The batch is inputs of the program, all others are its states.
        """
        first = self._complete().states
        return {**{name: host_array(tensor) for name, tensor in first.items()}, **self._inputs}

    @property
    def _inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs of the program."""
        return {name: host_array(tensor) for name, tensor in self._complete().inputs.items()}

    @property
    def changed(self) -> dict[str, str]:
        """Parameter, buffer, gradient (``w.grad``) or moment (``w.exp_avg``) to its value at the end."""
        return dict(self._complete().changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the program cannot show, a sentence each."""
        if self.failure is not None:
            return (*self._notes, self.failure.message)
        return (*self._notes, *self._complete().notes)

    def plot(self, axes: Any = None) -> Any:
        """Run the step, and plot norm and largest absolute value of each float result over its statements.

        Forward pass, backward pass and optimizer are on one axis; red lines mark NaN and Inf.  Return
        matplotlib's axes, new ones if none are given.  Raises UsageError without matplotlib.
        """
        return representations().plot(self.program, self._inputs, axes)

    def save(
        self, directory: str | os.PathLike[str], *, title: str | None = None, notes: Iterable[str] = ()
    ) -> None:
        """Save the step as a program folder, which `nncdbg DIRECTORY` and `nncdbg.load(directory)` open.

        `title` is the line shown when the folder opens, and `notes` are shown below it.  The folder is
        created, or replaced if nncdbg wrote it.

        Raises UsageError if the path holds anything else; LoadError if the folder cannot be written.
        """
        title = title if title is not None else f"recorded step{self._script()}"
        notes = [*self.notes, *notes]
        write_folder(
            directory,
            self.program,
            self._inputs,
            backend=BACKEND,
            settings={"checksums": self.program.saved.checksums},
            title=title,
            notes=notes,
        )

    def verify_determinism(self) -> DeterminismVerification:
        """Run the step twice, and compare the bits of each result, and those of the training at the end.

        The report names the first statement that differs, as ``print(step.verify_determinism())`` shows.
        Its `ok` is False too if both runs agree, but a parameter, buffer, gradient or moment has other bits
        than the step left in it: the step depends on more than its inputs.
        """
        return verify_determinism(
            lambda: Debugger(self.program, statistics=False), self.program.saved.checksums
        )

    def _script(self) -> str:
        """Return the file that ran the first operator, as `` of train.py``; "" if there is none."""
        for graph in self._complete().program.graphs.values():
            for place in (node.location for node in graph.nodes if node.location is not None):
                lines = [place.file or "", *(file for file, _ in place.stack)]
                files = [os.path.basename(file) for file in lines if file and not file.startswith("<")]
                if files:
                    return f" of {files[-1]}"
        return ""

    def __repr__(self) -> str:
        if self.failure is not None:
            return f"<RecordedStep, {self.failure.message}>"
        if self._build is None:
            return "<RecordedStep, not complete>"
        return f"<RecordedStep {self.program.summary()}>"

    def _complete(self) -> RecordedProgram:
        if self.failure is not None:
            # Each time without the frames of the last time, which hold tensors.
            raise self.failure.with_traceback(None)
        if self._build is None:
            raise UsageError(
                "the step is not complete yet",
                hint="use it after the block of `with nncdbg.torch.record(...)`",
            )
        if self._recorded is None:
            self._recorded = self._build()
        return self._recorded
