"""Commands of gdb, pdb and delve: their aliases here, and answers for those without a meaning here.

`FAMILIAR` is the written table: docs/FAMILIAR.md is generated from it, and a test types each line.
"""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """Why a command of another debugger does not exist here, and the commands to use instead."""

    why: str
    hint: str


class Letter(NamedTuple):
    """What one letter means here and elsewhere; empty where the debugger has no such command."""

    letter: str
    here: str
    gdb: str
    pdb: str
    delve: str


LETTERS = (
    Letter("a", "info args", "", "args", "args"),
    Letter("b", "break", "break", "break", "break"),
    Letter("c", "continue", "continue", "continue", "continue"),
    Letter("d", "neither: type `delete` or `down`", "delete", "down", ""),
    Letter("f", "frame", "frame", "", ""),
    Letter("h", "help", "help", "help", "help"),
    Letter("i", "info", "info", "", ""),
    Letter("j", "neither: the answer names `goto` and `set`", "jump", "jump", ""),
    Letter("l", "list", "list", "list", "list"),
    Letter("n", "next", "next", "next", "next"),
    Letter("p", "print", "print", "print", "print"),
    Letter("q", "quit", "quit", "quit", "quit"),
    Letter("r", "run; needs confirmation if the program has started", "run", "return", "restart"),
    Letter("s", "step", "step", "step", "step"),
    Letter("t", "neither: the answer names `log`", "thread", "", "trace"),
    Letter("u", "up", "until", "up", ""),
    Letter("w", "where", "", "where", ""),
    Letter("x", "neither: the answer names `show`", "x", "", "examinemem"),
)
"""The choice per letter: the common meaning, else the harmless one, else the question."""

ALIASES = {
    "reverse-next": "back",
    "rn": "back",
    "reverse-nexti": "back",
    "rni": "back",
    "reverse-step": "rback",
    "rs": "rback",
    "reverse-stepi": "rback",
    "rsi": "rback",
    "reverse-continue": "rcontinue",
    "rewind": "rcontinue",
    "rw": "rcontinue",
    "reverse-finish": "rfinish",
    "cont": "continue",
    "fg": "continue",
    "nexti": "next",
    "ni": "next",
    "next-instruction": "next",
    "step-instruction": "stepi",
    "stepout": "finish",
    "so": "finish",
    "return": "finish",
    "advance": "until",
    "start": "restart",
    "starti": "restart",
    "rerun": "run",
    "hbreak": "break",
    "thbreak": "tbreak",
    "cond": "condition",
    "clearall": "delete",
    "breakpoints": "info breakpoints",
    "bp": "info breakpoints",
    "args": "info args",
    "a": "info args",
    "locals": "info locals",
    "vars": "info constants",
    "funcs": "info program",
    "sources": "info program",
    "stack": "where",
    "ls": "list",
    "longlist": "ll",
    "pp": "print",
    "inspect": "print",
    "output": "print",
    "call": "print",
    "ptype": "whatis",
    "types": "whatis",
    "retval": "stats",
    "rv": "stats",
    "checkpoint": "mark",
    "check": "mark",
    "checkpoints": "marks",
    "bookmark": "mark",
    "goto-bookmark": "goto",
    "transcript": "record",
    "apropos": "help",
    "undo": "back",
    "!": "py",
}
"""Name in another debugger to the command line that it begins here."""

_NO_MACHINE = "a graph has values, not registers and instructions"
_NO_JUMP = "the statements of a graph run in order"
_NO_THREADS = "the program has one thread"
_NO_PROCESS = "the program runs in this process"
_NO_TRACE = "a trace is a logpoint here"
_NO_LOOPS = "loops and conditions are written in Python"
_FOLDER = "`py import os; print(os.getcwd())` is Python"
_PYTHON = "`py`, the lines, then `end`; `interact` opens a Python prompt"
_SHOW = "`show %h[0:8]` shows elements, `stats %h` the statistics"

ANSWERS = {
    "d": Answer("`delete` in gdb, `down` in pdb", "type `delete` or `down`"),
    "j": Answer(_NO_JUMP, "`goto NUMBER` goes to another moment, `set %h = EXPR` changes a value"),
    "jump": Answer(_NO_JUMP, "`goto NUMBER` goes to another moment, `set %h = EXPR` changes a value"),
    "x": Answer("memory is shown by value", _SHOW),
    "examinemem": Answer("memory is shown by value", _SHOW),
    "regs": Answer(_NO_MACHINE, "`info locals` lists the values of this frame"),
    "disassemble": Answer(_NO_MACHINE, "`stepi` enters the micro program of an op, `ll` lists the graph"),
    "disass": Answer(_NO_MACHINE, "`stepi` enters the micro program of an op, `ll` lists the graph"),
    "thread": Answer(_NO_THREADS, "`where` shows its stack"),
    "threads": Answer(_NO_THREADS, "`where` shows its stack"),
    "t": Answer(_NO_TRACE, "`log PLACE MESSAGE` prints a message at a place"),
    "trace": Answer(_NO_TRACE, "`log PLACE MESSAGE` prints a message at a place"),
    "dprintf": Answer(
        "a message takes values in braces", "`log PLACE MESSAGE`, such as `log 14 mean {mean(%s)}`"
    ),
    "printf": Answer(
        "formats are not supported", "`print EXPR` shows values, `log PLACE MESSAGE` prints text"
    ),
    "echo": Answer("formats are not supported", "`print EXPR` shows values, `log PLACE MESSAGE` prints text"),
    "rbreak": Answer("a breakpoint can be at an op", "`break OP` stops before each statement with the op"),
    "rwatch": Answer(
        "reads are not watched", "`watch %h` stops after each write, `break OP` before a statement"
    ),
    "awatch": Answer(
        "reads are not watched", "`watch %h` stops after each write, `break OP` before a statement"
    ),
    "on": Answer("a breakpoint has a list of commands", "`commands NUMBER`, the commands, then `end`"),
    "goroutines": Answer(_NO_THREADS, "`where` shows its stack"),
    "toggle": Answer("a number is needed", "`disable NUMBER` or `enable NUMBER`"),
    "rev": Answer("each step back is a command", "`back`, `rback`, `rfinish` or `rcontinue`"),
    "clear-checkpoint": Answer(
        "marks cannot be deleted here", "`marks` lists them, `mark NAME` sets one again"
    ),
    "handle": Answer("there are no signals", "`catch nan`, `catch inf` stop at findings"),
    "signal": Answer("there are no signals", "`catch nan`, `catch inf` stop at findings"),
    "exceptions": Answer(
        "a failure stops the program", "`where` shows the stack, `catch nan` stops at findings"
    ),
    "attach": Answer(_NO_PROCESS, "`quit`, then `nncdbg MODEL`"),
    "detach": Answer(_NO_PROCESS, "`continue` runs to the end, `quit` leaves"),
    "kill": Answer(_NO_PROCESS, "`restart` goes back to the start, `quit` leaves"),
    "file": Answer("a session has one model", "`quit`, then `nncdbg MODEL`"),
    "rebuild": Answer("a session has one model", "`quit`, then `nncdbg MODEL`"),
    "edit": Answer("the text of the program is fixed", "`set %h = EXPR` changes a value"),
    "shell": Answer("there is no shell here", "`quit` leaves, `source FILE` runs commands from a file"),
    "define": Answer("commands are not defined here", "`source FILE` runs commands from a file"),
    "alias": Answer("commands are not defined here", "`source FILE` runs commands from a file"),
    "while": Answer(_NO_LOOPS, _PYTHON),
    "for": Answer(_NO_LOOPS, _PYTHON),
    "if": Answer(_NO_LOOPS, _PYTHON),
    "import": Answer("modules are imported in Python", _PYTHON),
    "from": Answer("modules are imported in Python", _PYTHON),
    "pwd": Answer("there is no shell here", _FOLDER),
    "cd": Answer("there is no shell here", _FOLDER),
    "interrupt": Answer("Ctrl-C does this", "it stops the running program within one op, see `help keys`"),
    "layout": Answer("there are no windows", "`list` shows the text; editors show more, see `nncdbg dap`"),
    "tui": Answer("there are no windows", "`list` shows the text; editors show more, see `nncdbg dap`"),
}
"""Name in another debugger to the answer that it gets."""


FAMILIAR: dict[str, tuple[str, ...]] = {
    "gdb pdb delve": (
        *("next", "n", "next 2", "step", "s", "continue", "c", "restart"),
        *("break 15", "b 15", "break 15 if $iter > 1", "tbreak 15", "condition 1 $iter > 1", "clear 13"),
        *("print %s", "p %s", "whatis %s", "args", "list", "l", "list 12", "up", "down", "source FILE"),
        *("display %s", "help", "h", "help next", "quit", "q", "exit"),
    ),
    "gdb pdb": (
        *("until", "until 15", "where", "run", "jump 15", "j 15", "return", "undisplay 1", "display"),
        *("delete 1", "disable 1", "enable 1", "ignore 1 2", "commands 1"),
    ),
    "gdb delve": (
        *(
            "stepi",
            "si",
            "call max(%s)",
            "set %s = 1",
            "watch %s",
            "frame 1",
            "bt",
            "bt 1",
            "disassemble",
            "x %s",
        ),
        *("thread 1", "info locals", "edit"),
    ),
    "pdb delve": ("cont", "a", "ls", "display max(%s)"),
    "gdb": (
        *("r", "start", "finish", "fin", "nexti", "ni", "advance 15", "unt", "u", "d", "w", "f", "f 1"),
        *("reverse-next", "rn", "reverse-step", "rs", "reverse-stepi", "rsi", "reverse-nexti", "rni"),
        *("reverse-continue", "rc", "reverse-finish", "hbreak 15", "thbreak 15", "rbreak S", "rwatch %s"),
        *("awatch %s", "watch %s[0,1]", "watch max(%s) > 1", "tb 15", "delete", "catch nan", "dprintf 15,a"),
        *("info args", "info line", "info breakpoints", "i b", "info frame", "info stack", "info display"),
        *("info watchpoints", "info source", "info functions", "info checkpoints", "info registers"),
        *(
            "info threads",
            "info symbol %s",
            "info signals",
            "backtrace",
            "inspect %s",
            "output %s",
            "ptype %s",
        ),
        *(
            "p %s, %taken",
            "printf a",
            "echo a",
            "search Softmax",
            "forward-search Softmax",
            "reverse-search MatMul",
        ),
        *("list 12,14", "set var %s = 1", "set variable %s = 1", "checkpoint", "handle SIGINT", "signal 0"),
        *("attach 1", "detach", "kill", "file m.onnx", "shell ls", "define x", "layout src", "tui enable"),
        *("apropos break", "record r.cmd", "while 1", "if 1", "pwd", "cd ..", "interrupt", "python 1 + 1"),
        *("info s", "info variables", "info sources", "info reg"),
    ),
    "pdb": (
        *("w", "u", "d", "unt", "r", "l .", "ll", "longlist", "pp %s", "rv", "retval", "cl 13", "exceptions"),
        *("alias x y", "tbreak", "b", "display $iter", "!1 + 1"),
    ),
    "delve": (
        *(
            "breakpoints",
            "bp",
            "clearall",
            "cond 1 $iter > 1",
            "on 1 print %s",
            "toggle 1",
            "trace 15",
            "t 15",
        ),
        *("stepout", "so", "step-instruction", "next-instruction", "rewind", "rw", "rev next", "rebuild"),
        *("locals", "vars", "funcs", "sources", "types %s", "stack", "regs", "examinemem %s", "threads"),
        *("goroutines", "checkpoints", "check m", "clear-checkpoint 1", "disass", "transcript new.cmd", "ll"),
    ),
}
"""Debuggers to the commands that they share, as they are typed there."""
