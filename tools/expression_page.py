"""The page of expressions, from the table of functions."""

from __future__ import annotations

from nncdbg.commands.session_files import SYNTAX
from nncdbg.expression.functions import GROUPS, PARAMETERS, SPELLINGS

_HEAD = """# Expressions

`make docs` generates this page. `help expressions` shows a short form at the prompt.

Conditions, watches, log messages, gates, `print` and `set` use one small language over tensors. Expressions
look like Python with NumPy. Expressions have no loops, no imports and no access to Python. To run Python
code, use `py` at the prompt.

```
print mean(%h, axis=0)[3]
break MatMul if max(abs($out)) > 6e4
watch %loss if $out > 2 * prev(%loss)
set %h[isnan(%h)] = 0
$before = %h
print allclose(%h, $before)
```

## Syntax

| expression | meaning |
|---|---|
"""

_STATEMENT = """
## Names of values

A screen shows each value of a program under one name, everywhere and at each width: the name itself, or, if
it has more than 24 characters, the shortest end that no other value of the program has, such as
`%self_attn/MatMul_1_output_0`. Output to a pipe and `set names full` show the names in full; `whatis %h`
always does. Every name that nncdbg prints can be copied: to expressions, and to commands that take a value
or a place.

You can write a unique part of a name instead of the whole name, with or without `%`: `print
%Conv_output_0`, `watch %fc/Add`, `debugger.value("Conv_output_0")`. An exact name has priority. Otherwise,
the text may be the end of a name, from the start of a word or component (after `/`, `:`, `.` or `__`).
After `%`, the text may also be any other part of a name, and `...` in it stands for any text. Names that
are visible in the selected frame hide all other names. If several names match, the error lists them.

## The current statement

`$out` is the first result of the current statement, and `$out1` is the second. `$in0` is the first operand,
and `$in1` is the second.

- In a condition or log message, the current statement is the statement of the breakpoint. If a condition
  reads `$out`, nncdbg evaluates the condition after the statement, and the program stops after the
  statement. If a condition reads only `$in0`, nncdbg evaluates the condition before the statement.
- At a stop, `$in0` is the first operand of the next statement. `$out` is the first result of the
  statement that this block executed last. After a stop at a watchpoint, a finding or a condition on
  `$out`, `$in0` and `$out` belong to the reported statement.
- At the start of a block, `$out` and `$out1` are the inputs of the block.

`$x = EXPR` defines a convenience name. The value stays the same across steps, `restart` and branches. To
define a name without output, use `set $x = EXPR`. `info convenience` lists the convenience names.

## Changing values

`set %v = EXPR` changes a value, and `set %v[INDEX] = EXPR` changes a part of it. `+=`, `-=`, `*=` and `/=`
compute from the current value. The shape and type of the value do not change. nncdbg rounds floats to the
type of the value, but an integer type accepts only numbers that it can represent exactly. A scalar fills
the tensor.

## Gradients

`grad(%loss, %h)` is the gradient of a computed value with respect to another. You can write it in every
expression:

```
print norm(grad(%loss, %h))
break 12 if norm(grad(%loss, %h)) > 1e3
display max(abs(grad(%loss, %w)))
print hvp(%loss, %w, grad(%loss, %w))
print grad(grad(%loss, %h), %w)
```

- The gradient is that of the values in the frame at this moment, so it follows edits. The first value may
  have any shape: `grad` differentiates the sum of its elements. For other weights, use `vjp`.
- Both values are of the selected frame or of its callers. The gradient passes through calls, and from a
  called graph to what its caller passes. An input with the caller's name of a value is that value, so the
  gradient by a state counts all uses of the state. In a loop, the gradient covers the current iteration.
- A vector has the shape of its value, or is one number for all elements.
- If the first value does not depend on the second one, an error says so, as in PyTorch. A derivative of a
  derivative can be constant, and is then zero. An error for ops without a gradient lists all of them.
- nncdbg compiles the graph of a gradient once per place, and runs it apart from the program: the program,
  its history and its random numbers stay the same. Values that were dropped from the history are computed
  again; values in memory that was reused are an error.

## Functions

You can also call a function as a method: `%h.mean(axis=0)`. Arguments in brackets are optional.
"""

_TAIL = """
## Spellings

Functions, constants (`inf`, `nan`, `pi`, `newaxis`) and types (`np.float16`) may have the prefix `np.`,
`numpy.` or `torch.`. `torch.std`, `torch.var`, `torch.median` and `torch.transpose` are errors, because
these PyTorch functions compute different results.

"""

_DIFFERENCES = """
## Differences from NumPy

- Sums, means, standard deviations and norms of floats accumulate in f64 and return f64.
- nncdbg converts values of `bf16`, `f8` and 4-bit types to f32, i8 or u8 before it computes.
- Integer division by zero (`//`, `mod`) is an error.
- `%` is only a prefix of names. Use `mod(a, b)` for the remainder.
- `zeros` and `ones` return f32. `full` and `arange` return f32 for floats.
- `topk` and `unique(x, return_counts=true)` return two tensors. Select one of them by name:
  `topk(%h, 3).indices`.
- `max(a, b)` is an error, because NumPy reads `b` as an axis: write `maximum(a, b)`.
- `and`, `or` and `not` need single truth values. `any(...)` and `all(...)` reduce a tensor to one truth
  value.

## Limits

An expression has at most 10,000 characters and 100 nesting levels. A result may be at most 64 MiB larger
than its largest operand. A larger result, such as `zeros(100000, 100000)`, is an error.
"""


def page() -> str:
    """Return docs/EXPRESSIONS.md."""
    rows = [f"| {_code(example)} | {meaning} |" for example, meaning in SYNTAX]
    parts = [_HEAD + "\n".join(rows), _STATEMENT.rstrip()]
    for title, group in GROUPS.items():
        parts.append(f"\n### {title}\n\n| function | result |\n|---|---|")
        parts += [f"| {_code(function.usage(name))} | {function.help} |" for name, function in group.items()]
    parts.append(_TAIL + _table("function", SPELLINGS) + "\n\n" + _table("argument", PARAMETERS))
    return "\n".join(parts) + "\n" + _DIFFERENCES


def _table(kind: str, spellings: dict[str, str]) -> str:
    rows = [f"| `{other}` | `{ours}` |" for other, ours in sorted(spellings.items())]
    return f"| {kind} in NumPy or PyTorch | here |\n|---|---|\n" + "\n".join(rows)


def _code(text: str) -> str:
    """Code spans; two spaces separate examples, and a pipe would end the cell."""
    return " ".join(f"`{part}`".replace("|", "\\|") for part in text.split("  ") if part)
