"""Print all figures as one JSON line each; exit with 1 if a figure misses its bar."""

from __future__ import annotations

import json
import sys

import bench_backends
import bench_corpus
import bench_dap
import bench_diff
import bench_eager
import bench_flight_recorder
import bench_journal
import bench_journal_training
import bench_large
import bench_lsp
import bench_machine
import bench_models
import bench_mutants
import bench_parse
import bench_public_models
import bench_ranks
import bench_reduce
import bench_schedules
import bench_start
import bench_stats
import bench_time
import bench_torch
import bench_training
import bench_watch


def main() -> int:
    missed = 0
    for module in (
        bench_machine,
        bench_eager,
        bench_stats,
        bench_parse,
        bench_public_models,
        bench_time,
        bench_start,
        bench_large,
        bench_models,
        bench_backends,
        bench_dap,
        bench_lsp,
        bench_watch,
        bench_mutants,
        bench_corpus,
        bench_reduce,
        bench_schedules,
        bench_diff,
        bench_torch,
        bench_training,
        bench_journal,
        bench_journal_training,
        bench_flight_recorder,
        bench_ranks,
    ):
        figures = module.measure()
        for figure in figures if isinstance(figures, list) else [figures]:
            missed += figure["bar"] is not None and figure["ratio"] > figure["bar"]
            print(json.dumps(figure), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
