"""Concurrent parsing and reading in threads."""

from __future__ import annotations

import ast
import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nncdbg.engine.inputs.npy import load_array
from nncdbg.process.threads import parsed


def test_parsing_is_repeated_after_interference_of_another_thread() -> None:
    calls: list[None] = []

    def parse() -> str:
        calls.append(None)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch")
        return "tree"

    assert parsed(parse) == "tree"
    assert len(calls) == 3


def test_syntax_errors_are_raised_without_a_retry() -> None:
    with pytest.raises(SyntaxError):
        parsed(lambda: ast.parse("1 +"))


def test_a_parser_that_always_fails_raises() -> None:
    def parse() -> None:
        raise SystemError("broken")

    with pytest.raises(SystemError, match="broken"):
        parsed(parse)


def test_arrays_are_read_while_another_thread_parses(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    code = "[" + ", ".join(f"(1, {{'a': {number}}})" for number in range(200)) + "]"
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            parsed(lambda: ast.parse(code))

    def wait(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0)

    worker = threading.Thread(target=work)
    before = gc.get_threshold()
    gc.callbacks.append(wait)
    gc.set_threshold(50)
    try:
        worker.start()
        assert all(load_array(path).sum() == 3 for _ in range(300))
    finally:
        stopped.set()
        worker.join()
        gc.callbacks.remove(wait)
        gc.set_threshold(*before)
