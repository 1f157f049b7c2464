"""The classes of callbacks of Lightning and of Hugging Face transformers."""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module
from typing import Any

from nncdbg.errors import UsageError


def lightning_callback_class(name: str) -> Any:
    """Return the class of callbacks in the package that the user imported, of the two that Lightning has.

    Raises UsageError with the `name` of what needs it.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    for package in sorted(names, key=lambda each: each not in sys.modules):
        try:
            return import_module(package).Callback
        except ModuleNotFoundError as missing:
            if not package.startswith(missing.name or "?"):
                raise
    raise UsageError(f"{name} needs Lightning", hint="pip install lightning")


def trainer_callback_class(name: str) -> Any:
    """Return the class of callbacks of transformers, whose Trainer then opens and closes those of nncdbg.

    Those with an attribute `trainer` get the trainer, and those with a method `close` are closed with the
    error when `Trainer.train` raises: the Trainer does neither.  Raises UsageError with the `name` of what
    needs the library.
    """
    try:
        transformers: Any = import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError(f"{name} needs transformers", hint="pip install transformers") from error
    trainer = transformers.Trainer
    if not hasattr(trainer.train, "closes_callbacks"):
        trainer.train = _closing_callbacks(trainer.train)
    return transformers.TrainerCallback


def _closing_callbacks(train: Any) -> Any:
    @wraps(train)
    def closing_train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        own = [
            each for each in trainer.callback_handler.callbacks if type(each).__module__.startswith("nncdbg.")
        ]
        for callback in own:
            if hasattr(callback, "trainer"):
                callback.trainer = trainer
        try:
            return train(trainer, *args, **kwargs)
        except BaseException as error:
            for callback in own:
                if hasattr(callback, "close"):
                    callback.close(error)
            raise
        finally:
            for callback in own:
                if hasattr(callback, "trainer"):
                    callback.trainer = None

    closing_train.closes_callbacks = True  # type: ignore[attr-defined]
    return closing_train
