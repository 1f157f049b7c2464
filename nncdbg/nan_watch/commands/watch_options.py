"""The options of `nncdbg watch`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from nncdbg.opening.command_line import (
    ArgumentParser,
    add_journal,
    add_kernels,
    add_machine,
    add_model,
    add_states_in_place,
    add_tracks,
    add_verification,
)
from nncdbg.opening.corpus.options import add_corpus, check_corpus

FILES = ("junit", "sarif", "markdown")
"""Reports that are written to a file, each with an option of its name."""

_CORPUS = "--inputs-dir and --runs"

_EXIT_CODES = """exit code: 0 fine, 1 a gate tripped, 2 wrong usage, 3 a file could not be read or written,
           4 the graph failed while running, 130 interrupted; of several codes, the highest"""


def watch_options(arguments: Sequence[str]) -> Namespace:
    """Return the options of a command line.  Raises UsageError."""
    parser = watch_parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def watch_parser() -> ArgumentParser:
    """Return the parser of the options."""
    from nncdbg.nan_watch.measuring.gates import USUAL, table

    width = max(len(gate) for gate, _ in table()) + 2
    gates = "\n".join(f"  {gate:<{width}}{meaning}" for gate, meaning in table())
    parser = ArgumentParser(
        "nncdbg watch",
        "Run a graph and report the op where the first NaN originates, and why.",
        epilog=(
            f"gates, separated by commas:\n{gates}\n\n{_EXIT_CODES}\n\n"
            "To watch the training of a PyTorch script: nncdbg watch SCRIPT.py --help"
        ),
    )
    add_model(parser)
    add_machine(parser)
    add_kernels(parser)
    add_states_in_place(parser)
    add_journal(parser)
    add_tracks(parser)
    add_verification(parser)
    add = parser.add_argument
    add(
        "--fail-on",
        metavar="GATES",
        help=f"the gates ({','.join(USUAL)})",
    )
    add(
        "--assert", action="append", default=[], dest="asserted", metavar="EXPR", help="fail if EXPR is false"
    )
    add("--strict", action="store_true", help="also fail on findings that do not affect an output")
    add("--max-findings", type=int, default=20, metavar="N", help="list at most N findings (default: 20)")
    add_corpus(parser, runs=True)
    add(
        "--memory", action="store_true", help="find memory errors: compare runs with and without memory reuse"
    )
    add("--plan", metavar="FILE", help="with --memory: check the offsets planned by another framework")
    add("--write-plan", metavar="FILE", help="with --memory: write nncdbg's own plan of offsets")
    add("--record", metavar="FILE", help="write the statistics of this run, for --against")
    add("--against", metavar="FILE", help="compare with the good run recorded in FILE (gate: change)")
    add(
        "--baseline",
        metavar="FILE",
        help="accept the known findings in FILE; fail only on new findings",
    )
    add("--write-baseline", metavar="FILE", help="write the current findings as the baseline")
    add("--bundle", metavar="DIR", help="write a repro of the first finding; `nncdbg DIR` opens it")
    add("--json", action="store_true", help="print one JSON document on standard output")
    for form in FILES:
        add(f"--{form}", metavar="FILE", help=f"write a {form} report")
    add("--github", action="store_true", help="print annotations for GitHub Actions")
    return parser


def _check(parser: ArgumentParser, options: Namespace) -> None:
    if options.max_findings < 1:
        parser.error(f"--max-findings {options.max_findings}: list at least one")
    check_corpus(parser, options)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: use 1 or more; --runs 1 runs the program once")
    for name in ("plan", "write_plan"):
        if getattr(options, name) and not options.memory:
            parser.error(f"--{name.replace('_', '-')} needs --memory")
    if options.bundle and (options.kernels or options.kernel_file):
        parser.error("--bundle cannot be combined with --kernel and --kernels: a bundle does not keep them")
    if options.memory:
        for name, given in (
            (_CORPUS, options.inputs_dir or options.runs > 1),
            ("--record and --against", options.record or options.against),
            ("--allocator", options.allocator),
            ("--backend", options.backend not in (None, "numpy")),
            ("--kernel and --kernels", options.kernels or options.kernel_file),
        ):
            if given:
                parser.error(f"--memory cannot be combined with {name}")
