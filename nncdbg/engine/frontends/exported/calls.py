"""The call of a PyTorch module that is traced: its arguments, and why the module cannot take them."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os.path import dirname
from typing import Any

from nncdbg.errors import LoadError, NncdbgError, UsageError

_LOGGERS = ("torch.export", "torch._subclasses.fake_tensor", "torch._dynamo")


def positional_arguments(arguments: Any) -> tuple[Any, ...]:
    """Return the positional arguments of a call as a tuple; a tensor is the only argument.

    Raises UsageError for other objects than a tensor, a tuple and a list.
    """
    import torch

    if isinstance(arguments, torch.Tensor):
        return (arguments,)
    if isinstance(arguments, (tuple, list)):
        return tuple(arguments)
    kind = type(arguments).__name__
    raise UsageError(
        f"the arguments of a module are a tensor or a tuple, not an object of type {kind}",
        hint="pass (x,) for one argument x, and keyword arguments as a dict in `keywords`",
    )


def check_call(module: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise UsageError if `forward` has not these parameters."""
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        given = [
            *map(_described, positional),
            *(f"{name}={_described(each)}" for name, each in named.items()),
        ]
        raise UsageError(
            f"{type(module).__name__} cannot be called with ({', '.join(given)}): {error}",
            hint=f"its parameters are {signature}",
        ) from None


@contextmanager
def tracing(
    what: str, module: Any, positional: tuple[Any, ...], named: Mapping[str, Any], hint: str
) -> Iterator[None]:
    """Explain an error of the body, which lets torch trace a module; torch does not log it.

    Raises UsageError for arguments that the module cannot take, and for other errors a LoadError: `what`
    failed, with `hint`.
    """
    check_call(module, positional, named)
    with quiet():
        try:
            yield
        except NncdbgError:
            raise
        except Exception as error:
            wrong = _wrong_arguments(module, positional, named)
            if wrong is not None:
                raise wrong from error
            first = str(error).strip().partition("\n")[0]
            raise LoadError(
                f"{what}: {type(error).__name__}: {first}", source=_user_line(error), hint=hint
            ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Do not log the tracebacks of errors that are raised."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# -- wrong arguments -------------------------------------------------------------------------


def _wrong_arguments(module: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> UsageError | None:
    """Return the error of a call on tensors without data, with the module inside of which it fails.

    None if the call succeeds, or needs the data.
    """
    from nncdbg.engine.ops.aten.internals import call_without_data

    running: list[tuple[Any, tuple[Any, ...]]] = []
    with _following(running):
        try:
            call_without_data(module, positional, named)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            # torch has classes of its own for a call that needs the data.
            if type(error).__module__ == "builtins" and running:
                return _explained(module, *running[-1], error)
        except Exception:  # noqa: BLE001  the first error is reported
            return None
    return None


@contextmanager
def _following(running: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[None]:
    """Keep the modules that run now in `running`, the innermost one last; one that fails remains."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    def enter(*call: Any) -> None:
        running.append(call)

    def leave(*_: Any) -> None:
        running.pop()

    handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _explained(root: Any, part: Any, inputs: tuple[Any, ...], error: Exception) -> UsageError:
    path = next((name for name, each in root.named_modules() if each is part), "")
    place = f"module {path} ({type(part).__name__})" if path else "its forward"
    own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
    operands = [f"input: {', '.join(map(_described, inputs))}"]
    operands += [f"{name}: {_described(each)}" for name, each in own]
    first = str(error).strip().partition("\n")[0].removesuffix(".")
    return UsageError(
        f"{type(root).__name__} cannot be called with these arguments: {place} fails: {first}",
        source=_user_line(error),
        operands=operands,
        hint="pass arguments with the sizes and dtypes that the module expects",
    )


def _user_line(error: Exception) -> str | None:
    """Return the innermost place of an error outside of torch and this package; None without one."""
    import torch

    libraries = dirname(torch.__file__), dirname(dirname(dirname(dirname(__file__))))
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*libraries, "<"))]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _described(value: Any) -> str:
    """Return the type of a tensor as a program has it, or the text of another value."""
    import torch

    from nncdbg.engine.ops.aten.signatures import DTYPES

    if isinstance(value, torch.Tensor):
        known = DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{known}[{','.join(map(str, value.shape))}]"
    if isinstance(value, (int, float, complex, bool, str, type(None))):
        return repr(value)
    return type(value).__name__
