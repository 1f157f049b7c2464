"""The naive rule for the origin of a NaN or Inf, as proof of the truth of the planted cases.

It needs no part of nncdbg: a dispatch mode reads the inputs of each op before and its outputs after.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = ("nan", "inf")
_ALLOCATIONS = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


@dataclass(frozen=True)
class Birth:
    """An op whose outputs have a NaN or Inf that its inputs do not have, or, in "data", that reads one."""

    op: str
    phase: str
    node: str
    line: int
    module: str
    kinds: frozenset[str]
    step: int


def kinds_in(leaf: Any) -> set[str]:
    """Return which of NaN and Inf a tensor or a Python number contains."""
    if isinstance(leaf, float):
        leaf = torch.tensor(leaf, dtype=torch.float64)
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return set()
    if not (leaf.is_floating_point() or leaf.is_complex()):
        return set()
    return {kind for kind, test in (("nan", torch.isnan), ("inf", torch.isinf)) if bool(test(leaf).any())}


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an op writes in place."""
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += tree_leaves(value)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def user_line(file: str) -> tuple[int, str]:
    """Return the innermost line of a file on the stack, and "optimizer" or "forward", the kind of its code.

    Code that backward calls ends the search: the line is 0 where it calls no code of the file.
    """
    frame: FrameType | None = sys._getframe(1)
    line, context = 0, "forward"
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        is_user = frame.f_code.co_filename == file
        is_update = frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), Optimizer)
        if is_update and not line:
            context = "optimizer"
        if is_user and not line:
            line = frame.f_lineno
        frame = frame.f_back
    return line, context


class BirthMode(TorchDispatchMode):
    """Collects the births of NaN and Inf in training code of one file."""

    def __init__(self, model: nn.Module, file: str) -> None:
        super().__init__()
        self.file = file
        self.paths = {module: path for path, module in model.named_modules()}
        self.modules: list[str] = []
        self.forward_of: dict[int, tuple[int, str]] = {}
        self.undefined: set[int] = set()
        self.made: set[int] = set()
        self.births: list[Birth] = []
        self.reads: list[Birth] = []
        self.step = 0
        self.alarms: list[str] = []

    def __enter__(self) -> BirthMode:
        def enter(module: nn.Module, inputs: Any) -> None:
            self.modules.append(self.paths.get(module, ""))

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            self.modules.pop()

        self.hooks = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for hook in self.hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if not self.is_undefined(leaf)]
        before = set().union(*map(kinds_in, inputs))
        external = [
            leaf for leaf in inputs if isinstance(leaf, Tensor) and self.storage(leaf) not in self.made
        ]
        read = set().union(*map(kinds_in, external))
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        outputs += written(func, args, kwargs)
        line, module = self.place(func)
        storages = {self.storage(leaf) for leaf in outputs}
        self.made |= storages
        if func._schema.name.removeprefix("aten::") in _ALLOCATIONS:
            self.undefined |= storages
            self.alarms.append(str(func))
            return result
        self.undefined -= storages
        after = set().union(*map(kinds_in, outputs))
        self.alarms += [str(func)] if after or before else []
        if read:
            self.reads.append(self.birth(func, "data", line, module, read))
        if after - before:
            self.births.append(self.birth(func, "", line, module, after - before))
        return result

    @staticmethod
    def storage(leaf: Tensor) -> int:
        """Return the identity of a tensor's memory."""
        return leaf.untyped_storage()._cdata if leaf.layout is torch.strided else id(leaf)

    def is_undefined(self, leaf: Any) -> bool:
        """Return whether a leaf is a tensor without a write since its allocation."""
        return isinstance(leaf, Tensor) and self.storage(leaf) in self.undefined

    def place(self, func: Any) -> tuple[int, str]:
        """Return line and module of an op, and store them for the autograd node that it gets."""
        line, module = user_line(self.file)[0], self.modules[-1] if self.modules else ""
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled():
            self.forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, (line, module))
        return line, module

    def birth(self, func: Any, phase: str, line: int, module: str, kinds: set[str]) -> Birth:
        """Return the record of an op, with the phase from the stack where none is given."""
        node = torch._C._current_autograd_node()
        context = user_line(self.file)[1]
        name = ""
        if not phase and node is not None:
            phase, name = "backward", node.name()
            in_forward = self.forward_of.get(node._sequence_nr(), (0, ""))
            line, module = line or in_forward[0], in_forward[1]
        return Birth(str(func), phase or context, name, line, module, frozenset(kinds), self.step)
