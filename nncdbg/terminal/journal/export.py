"""`nncdbg export FILE[#RUN]`: write runs for TensorBoard or MLflow."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from nncdbg.engine.errors import UsageError
from nncdbg.engine.text.counting import counted
from nncdbg.opening.command_line import ArgumentParser
from nncdbg.opening.journal_address import is_journal
from nncdbg.terminal.journal.files import chosen_run, open_journal, run_address


def main(arguments: Sequence[str]) -> int:
    """Export one run, or all runs of a journal.  Raises UsageError if the library is missing or fails."""
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    if Path(options.run).is_file() and not is_journal(options.run):
        raise UsageError(
            f"{options.run} is not a journal",
            hint=f"to write a program as an ONNX model: nncdbg print {options.run} -o FILE.onnx",
        )
    address = run_address(options.run)
    screen = Screen()
    with open_journal(address) as journal:
        last = chosen_run(journal, address)
        runs = journal.runs() if address.run is None else [last]
        if options.tensorboard is not None:
            from nncdbg.journal.export import write_event_files

            for folder in write_event_files(journal, runs, Path(options.tensorboard)):
                screen.put(f"wrote {folder}")
            screen.note(f"show them: tensorboard --logdir {options.tensorboard}")
        if options.mlflow is not None:
            from nncdbg.journal.export import log_runs

            identifiers = log_runs(
                journal, runs, options.mlflow, options.experiment or Path(address.file).stem
            )
            for run, identifier in zip(runs, identifiers, strict=True):
                screen.put(f"run {run.number} is run {identifier} of MLflow")
            screen.note(f"exported {counted(len(runs), 'run')} to {options.mlflow}")
    return 0


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg export",
        "Write the runs of a journal for TensorBoard or MLflow, with their own libraries.",
        usage="nncdbg export FILE[#RUN] [--tensorboard DIR] [--mlflow URI]",
        epilog=(
            "without #RUN, all runs; to write a program as an ONNX model, use\n"
            "`nncdbg print MODEL -o FILE.onnx`"
        ),
    )
    add = parser.add_argument
    add("run", metavar="FILE[#RUN]", help="a journal, and the number of a run, as in run.db#2")
    add("--tensorboard", metavar="DIR", help="write event files below DIR, one folder per run and part")
    add("--mlflow", metavar="URI", help="create runs at a tracking server or in a folder of MLflow")
    add("--experiment", metavar="NAME", help="the experiment of MLflow (default: the name of the file)")
    options = parser.parse_args(arguments)
    if options.tensorboard is None and options.mlflow is None:
        parser.error("there is no target: add --tensorboard DIR or --mlflow URI")
    for name in ("tensorboard", "mlflow", "experiment"):
        if getattr(options, name) == "":
            value = {"tensorboard": "DIR", "mlflow": "URI"}.get(name, "NAME")
            parser.error(f"--{name} is empty: {value} is missing")
    if options.experiment is not None and options.mlflow is None:
        parser.error("--experiment names an experiment of MLflow: add --mlflow URI")
    return options
