"""Attacks by text that a user opens or types: programs, names, numbers, expressions and arguments."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nncdbg
from nncdbg.errors import NncdbgError
from tests.attacks.conftest import MARKER
from tests.hostile import RAW

Command = Callable[..., tuple[int, str, str]]

DIGITS = "9" * 100_000
LARGE = str(2**62)
HEAD = "#nncdbg 1\nopset 18\n\n"
SMALL = (
    HEAD + "graph @main(%x: f32[2,3]) -> (%y: f32[2,3]) {\n  %h = Relu(%x)\n  %y = Neg(%h)\n  return %y\n}\n"
)
OPEN = HEAD + "graph @main(%x: bool[]) -> (%y: bool[]) {\n"
ESCAPE = "\x1b]0;owned\x07\u202e"


def inside(statement: str, *, times: int = 1) -> str:
    return OPEN + statement * times + "}\n"


N = 5_000
TEXTS: dict[str, str] = {
    "unclosed if": OPEN + "  if %x @a {\n" * N,
    "unclosed while": OPEN + "  while @b () {\n" * N,
    "if that does not parse": OPEN + "  if %x ! {\n" * N,
    "if without a condition": OPEN + "  if {\n" * N,
    "else without if": inside("} else {\n", times=N),
    "closing braces": OPEN + "}\n" * N,
    "graphs in a graph": "graph @g() -> () {\n" * N,
    "statements that do not parse": inside("  %a = Foo(\n", times=N),
    "unknown names in siblings": inside("  if %u {\n  yield %z\n } else {\n yield %q\n  }\n", times=4000),
    "unknown operands": inside("  %y = Op(" + ", ".join(f"%a{n}" for n in range(N)) + ")\n"),
    "cycle of names": inside("".join(f"  %a{n} = Relu(%a{(n + 1) % N})\n" for n in range(N))),
    "one name many times": inside("  %a = Relu(%x)\n", times=N),
    "deep list": inside("  %a: f32[1] = " + "[" * 10**6 + "\n"),
    "deep attribute": inside("  %a = Op(%x, a=" + "[" * 10**6 + ")\n"),
    "deep type": inside("  %a: " + "sequence(" * 10**5 + "f32[2]\n"),
    "deep optional": inside("  %a: " + "optional<" * 10**5 + "\n"),
    "long number": inside(f"  %a: i64[] = {DIGITS}\n"),
    "long size": inside(f"  %a: f32[{DIGITS}] = 1.0\n"),
    "long exponent": inside(f"  %a: f32[] = 1e{DIGITS}\n"),
    "literal of 2^62 elements": inside(f"  %a: f32[{LARGE[:-1]}] = 0.0\n"),
    "long attribute": inside(f"  %a = Op(%x, a={DIGITS})\n"),
    "long opset": f"opset {DIGITS}\n" + SMALL,
    "long version": f"#nncdbg {DIGITS}\n",
    "long line number": inside(f'  %a = Relu(%x) loc("f.py":{DIGITS})\n'),
    "long stream": inside(f"  %a = Relu(%x) | s{DIGITS}\n"),
    "long times": inside(f"  while @b () times {DIGITS} {{\n"),
    "long run": HEAD + f"run @main for {DIGITS}\n",
    "open quote": inside('  %a = Op("' + '\\"' * 10**5 + "\n"),
    "open string in a location": inside('  %a = Relu(%x) loc("' + "a" * 10**6 + "\n"),
    "escapes in a string": inside('  %a = Op("' + "\\x1" * 10**5 + '")\n'),
    "null bytes": inside("  \0\0\0\n", times=1000),
    "control characters in a name": inside(f'  %"{ESCAPE}" = Relu(%nowhere)\n'),
    "control characters in an op": inside(f'  %a = "{ESCAPE}"(%nowhere)\n'),
    "control characters in a comment": inside(f"  ## {ESCAPE}\n  %a = ?\n"),
    "surrogate in a name": inside('  %"\\ud800" = Relu(%nowhere)\n'),
    "many prefixes": "".join(f'prefix a{n} "x"\n' for n in range(N)) + "graph",
    "prefix of a prefix": 'prefix a "a::a::"\n' + inside("  %a::a = Relu(%x)\n"),
    "many states": "".join(f"state %s{n}: f32[] = %s{n + 1}\n" for n in range(4000)) + "graph",
    "many stores": "".join(f'store "{n}.onnx"\n' for n in range(N)) + "graph",
    "many margins": inside("  %a = Relu(%x) | s1 wait " + "e1 " * 10**5 + "\n"),
    "blanks": inside("  %a" + " " * 10**6 + "!\n"),
    "dots": inside("  %" + "a." * 10**5 + "!\n"),
    "operands of the fast path": inside("  %a = Op(" + "%x, " * 10**5 + "\n"),
    "attributes of the fast path": inside("  %a = Op(%x, a=" + "1,b=" * 10**5 + "\n"),
    "track nested": HEAD + f"run @main for 3\n  track a = {'(' * 5000}\n" + SMALL,
    "only a brace": "{",
    "byte order marks": "\ufeff" * 1000,
    "other line ends": "graph\r@main\x85\u2028() -> () {\r}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_program_text_is_one_error_in_little_time(text: str) -> None:
    start = time.process_time()
    with pytest.raises(NncdbgError) as caught:
        nncdbg.parse(text)
    assert time.process_time() - start < 5
    assert RAW.search(str(caught.value)) is None
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 40_000


def test_the_time_for_unclosed_blocks_is_linear() -> None:
    """Each block beyond the limit costs the same; a quadratic parser takes 16 times as long for 4 times."""

    def seconds(count: int) -> float:
        start = time.process_time()
        with pytest.raises(NncdbgError, match="nested too deeply"):
            nncdbg.parse(OPEN + "  if %x @a {\n" * count)
        return time.process_time() - start

    assert seconds(64_000) < 8 * seconds(16_000) + 1


def test_a_graph_after_one_that_is_nested_too_deeply_is_checked() -> None:
    with pytest.raises(NncdbgError) as caught:
        nncdbg.parse(OPEN + "  if %x @a {\n" * 2000 + "graph @next() -> () {\n  %a = Relu(%nowhere)\n")
    text = " ".join(error.message for error in caught.value.errors)  # type: ignore[attr-defined]
    assert "nested too deeply" in text
    assert "%nowhere is not defined" in text


LINES: dict[str, str] = {
    **{
        f"{command} of 100,000 digits": f"{command} {DIGITS}"
        for command in (
            *(
                "break",
                "tbreak",
                "goto",
                "goto 1:1",
                "ignore 1",
                "step",
                "next",
                "back",
                "list",
                "up",
                "down",
            ),
            *("frame", "until", "delete", "disable", "branch", "mark", "show %x", "stats %x", "hist %x"),
            *(
                "break net.py:",
                "break 4 hits",
                "break 4 hits %",
                "why %y",
                "set width",
                "info break",
                "dump %x",
            ),
        )
    },
    "zeros of 2^62": f"p zeros({LARGE})",
    "full of 2^62": f"p full([{LARGE}], 1.0)",
    "arange of 2^62": f"p arange({LARGE})",
    "ones of 64 axes": f"p ones([{'2,' * 63}2])",
    "ones of 3,000 axes": f"p ones([{'1,' * 3000}1])",
    "power": "p 9**9**9**9",
    "power of 2^62": f"p 2**{LARGE}",
    "index of 2^62": f"p %x[{LARGE}]",
    "3,000 indices": f"p %x[{'0,' * 3000}0]",
    "reshape to 2^62": f"p reshape(%x, [{LARGE}])",
    "broadcast": "p broadcast_to(%x, [1000000, 1000000, 2, 3])",
    "outer product": "p reshape(arange(100000), [100000, 1]) * arange(100000)",
    "data of 2^62": f"set %x = zeros[{LARGE}]",
    "data of 100,000 digits": f"set %x = zeros[{DIGITS}]",
    "deep parentheses": "p " + "(" * 9000,
    "deep lists": "p " + "[" * 9000,
    "deep signs": "p " + "-" * 9000 + "1",
    "deep not": "p " + "not " * 2000 + "1",
    "deep calls": "p " + "abs(" * 2000,
    "long sum": "p " + "1+" * 4000 + "1",
    "long comparison": "p " + "1<" * 4000 + "1",
    "long name": "p %" + "a" * 9000,
    "long line": "p " + "1" * 100_000,
    "open quote": 'p "' + "a" * 5000,
    "attribute of Python": "p %x.__class__.__mro__[1].__subclasses__()",
    "import of Python": f"p __import__('os').system('touch {MARKER}')",
    "open of Python": f"p open('{MARKER}', 'w')",
    "format": "p '{0.__class__}'.format(%x)",
    "lambda": "p (lambda: 1)()",
    "walrus": "p (a := 1)",
    "function of NumPy": f"p np.save('{MARKER}.npy', %x)",
    "code in NumPy": f"p np.ctypeslib.load_library('{MARKER}', '.')",
    "file of torch": f"p torch.save(%x, '{MARKER}')",
    "condition with Python": f"break 4 if open('{MARKER}', 'w')",
    "log message with Python": f"log 4 {{open('{MARKER}', 'w')}}",
    "escape sequences": f"p {ESCAPE}",
    "unknown command with escape sequences": ESCAPE * 10,
    "null byte": "p \0",
    "file with a null byte": "source a\0b",
    "file that is a pipe": "source pipe",
    "data in a pipe": "set %x = pipe.npy",
    "command that calls itself": "source again",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_hostile_line_at_the_prompt_is_an_error_and_the_session_continues(
    command: Command, line: str
) -> None:
    Path("m.nnc").write_text(SMALL)
    os.mkfifo("pipe")
    os.mkfifo("pipe.npy")
    Path("again").write_text("source again\n")
    start = time.process_time()
    code, out, err = command("m.nnc", "--input", "x=ones", typed=f"{line}\np 6 * 7\n")
    assert time.process_time() - start < 5
    assert code == 0
    assert "42" in out
    assert RAW.search(out + err) is None
    assert len(out + err) < 60_000


ARGUMENTS: dict[str, list[str]] = {
    **{
        f"{name} {prefix}: {kind}": [f"--{name}", prefix + value]
        for name, prefix in (
            *(("seed", ""), ("max-ops", ""), ("steps", ""), ("dim", "N="), ("input", "x=")),
            *(("input", "x=zeros["), ("kernel", "Relu="), ("order", "")),
            *(("journal-values-every", ""), ("checkpoint-every", ""), ("checkpoint-budget", "")),
        )
        for kind, value in (("100,000 digits", DIGITS), ("negative", "-5x"), ("text", ESCAPE))
    },
    "input of 2^62 elements": ["--input", f"x=zeros[{LARGE}]"],
    "input of 10^17 elements": ["--input", "x=zeros[100000000000000000]"],
    "deep input": ["--input", "x=" + "[" * 9000],
    "input that is code": ["--input", f"x=__import__('os').system('touch {MARKER}')"],
    "kernel of line 100,000 digits": ["--kernel", f"{DIGITS}=numpy"],
    "kernel of another backend": ["--kernel", "Relu=os.system"],
    "backend that is a module": ["--backend", "os"],
    "library that is a folder": ["--op-library", "."],
    "store with a null byte": ["--states", "a\0b"],
    "unknown option with escape sequences": [f"--{ESCAPE}"],
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_hostile_argument_is_a_usage_error(command: Command, arguments: list[str]) -> None:
    Path("m.nnc").write_text(SMALL)
    code, out, err = command("run", "m.nnc", *arguments)
    assert code in (2, 3)
    assert re.search("^(error|usage): ", err, re.M)
    assert RAW.search(out + err) is None
    assert len(err) < 3000


def test_a_declared_size_beyond_the_memory_is_a_usage_error(command: Command) -> None:
    Path("m.nnc").write_text(SMALL.replace("2,3", "4000000000,4000000000"))
    for mode in ("run", "watch"):
        code, _, err = command(mode, "m.nnc")
        assert code == 2
        assert "more than the memory of this machine" in err
