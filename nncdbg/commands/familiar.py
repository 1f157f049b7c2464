"""Commands of gdb, pdb and delve: their aliases, and hints for those without an equivalent.

`FAMILIAR` is the source of docs/FAMILIAR.md, which is generated from it; a test types each line.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """The reason why a command of another debugger has no equivalent, and the commands to use instead."""

    why: str
    hint: str


class Letter(NamedTuple):
    """The meaning of one letter here and in other debuggers; empty if a debugger has no such command."""

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
    Letter("j", "neither: use `goto` or `set`", "jump", "jump", ""),
    Letter("l", "list", "list", "list", "list"),
    Letter("n", "next", "next", "next", "next"),
    Letter("p", "print", "print", "print", "print"),
    Letter("q", "quit", "quit", "quit", "quit"),
    Letter("r", "run; needs confirmation if the program has started", "run", "return", "restart"),
    Letter("s", "step", "step", "step", "step"),
    Letter("t", "neither: use `log`", "thread", "", "trace"),
    Letter("u", "up", "until", "up", ""),
    Letter("w", "where", "", "where", ""),
    Letter("x", "neither: use `show`", "x", "", "examinemem"),
)
"""The choice per letter: the common meaning, else the harmless one, else a hint."""

ALIASES = {
    "reverse-next": "back",
    "rn": "back",
    "reverse-nexti": "backi",
    "rni": "backi",
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
    "next-instruction": "nexti",
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
    "checkpoints": "marks",
    "bookmark": "mark",
    "goto-bookmark": "goto",
    "transcript": "record",
    "apropos": "help about",
    "undo": "back",
    "!": "py",
}
"""Maps names in other debuggers to the start of the command line here."""

_NO_MACHINE = "a graph has values, not registers and instructions"
_NO_JUMP = "a graph runs its statements in order"
_NO_THREADS = "the program has one thread"
_NO_PROCESS = "the program runs in this process"
_NO_TRACE = "nncdbg has logpoints instead of traces"
_NO_LOOPS = "the prompt has no loops or conditions"
_FOLDER = "use Python: `py import os; print(os.getcwd())`"
_PYTHON = "type `py`, then Python code, then `end`, or open a Python prompt with `interact`"
_SHOW = "use `show %h[0:8]` for elements, `stats %h` for statistics"

ANSWERS = {
    "d": Advice("`delete` in gdb, `down` in pdb", "type `delete` or `down`"),
    "j": Advice(_NO_JUMP, "use `goto LINE`, or change a value with `set %h = EXPR`"),
    "jump": Advice(_NO_JUMP, "use `goto LINE`, or change a value with `set %h = EXPR`"),
    "x": Advice("nncdbg shows memory by value", _SHOW),
    "examinemem": Advice("nncdbg shows memory by value", _SHOW),
    "regs": Advice(_NO_MACHINE, "list the values of this frame with `info locals`"),
    "disassemble": Advice(_NO_MACHINE, "enter a micro program with `stepi`, or list the graph with `ll`"),
    "disass": Advice(_NO_MACHINE, "enter a micro program with `stepi`, or list the graph with `ll`"),
    "thread": Advice(_NO_THREADS, "show its stack with `where`"),
    "threads": Advice(_NO_THREADS, "show its stack with `where`"),
    "t": Advice(_NO_TRACE, "print a message at a place with `log PLACE MESSAGE`"),
    "trace": Advice(_NO_TRACE, "print a message at a place with `log PLACE MESSAGE`"),
    "dprintf": Advice(
        "format strings are not supported", "use `log PLACE MESSAGE`: `log 14 mean {mean(%s)}`"
    ),
    "printf": Advice("format strings are not supported", "use `print EXPR`, or `log PLACE MESSAGE` for text"),
    "echo": Advice("format strings are not supported", "use `print EXPR`, or `log PLACE MESSAGE` for text"),
    "rbreak": Advice("patterns are not supported", "use `break OP` to stop before each statement with an op"),
    "rwatch": Advice("nncdbg does not watch reads", "use `watch %h` to stop after each write, or `break OP`"),
    "awatch": Advice("nncdbg does not watch reads", "use `watch %h` to stop after each write, or `break OP`"),
    "on": Advice("there is no command `on`", "type `commands NUMBER`, then the commands, then `end`"),
    "goroutines": Advice(_NO_THREADS, "show its stack with `where`"),
    "toggle": Advice("there is no toggle", "use `disable NUMBER` or `enable NUMBER`"),
    "rev": Advice("there is no prefix `rev`", "use `back`, `rback`, `rfinish` or `rcontinue`"),
    "clear-checkpoint": Advice(
        "you cannot delete marks", "move a mark with `mark NAME`; list all marks with `marks`"
    ),
    "handle": Advice("there are no signals", "use `catch nan inf` to stop at findings"),
    "signal": Advice("there are no signals", "use `catch nan inf` to stop at findings"),
    "exceptions": Advice("a failure always stops the program", "use `catch nan` to stop at findings too"),
    "attach": Advice(_NO_PROCESS, "type `quit`, then `nncdbg MODEL`"),
    "detach": Advice(_NO_PROCESS, "use `continue` to run to the end, or `quit`"),
    "kill": Advice(_NO_PROCESS, "use `restart` to go back to the start, or `quit`"),
    "file": Advice("a session has one model", "type `quit`, then `nncdbg MODEL`"),
    "rebuild": Advice("a session has one model", "type `quit`, then `nncdbg MODEL`"),
    "edit": Advice("the program cannot change during a session", "change a value with `set %h = EXPR`"),
    "shell": Advice(
        "nncdbg runs no shell commands", "use `quit`, or `source FILE` to run commands from a file"
    ),
    "define": Advice("you cannot define commands", "use `source FILE` to run commands from a file"),
    "alias": Advice("you cannot define commands", "use `source FILE` to run commands from a file"),
    "while": Advice(_NO_LOOPS, _PYTHON),
    "for": Advice(_NO_LOOPS, _PYTHON),
    "if": Advice(_NO_LOOPS, _PYTHON),
    "import": Advice("the prompt cannot import modules", _PYTHON),
    "from": Advice("the prompt cannot import modules", _PYTHON),
    "pwd": Advice("nncdbg runs no shell commands", _FOLDER),
    "cd": Advice("nncdbg runs no shell commands", _FOLDER),
    "interrupt": Advice("interrupt is a key", "press Ctrl-C to stop the running program; see `help keys`"),
    "layout": Advice("there are no windows", "use `list`, or an editor with `nncdbg dap`"),
    "tui": Advice("there are no windows", "use `list`, or an editor with `nncdbg dap`"),
}
"""Maps names in other debuggers to hints."""


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
        *("set pagination off", "set trace-commands on", "save breakpoints bp.cmd", "p $1"),
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
        *("goroutines", "checkpoints", "clear-checkpoint 1", "disass", "transcript new.cmd", "ll"),
    ),
}
"""Maps debuggers to the commands that they share with nncdbg, as typed there."""
