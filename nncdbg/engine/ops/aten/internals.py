"""Names that torch does not document, with a variant for each version in which they differ.

All are in this file, except those of saved programs (`engine/frontends/exported/archive.py`, `records.py`,
`size_expressions.py`), which take a second to import.
"""

from __future__ import annotations

import ctypes
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial, wraps
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch.cuda import _gpu_trace
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

Function = TypeVar("Function", bound=Callable[..., Any])


def not_compiled(function: Function) -> Function:
    """Mark a function of nncdbg: `torch.compile` runs it, and what it calls, as plain Python.

    The compiler otherwise compiles each frame that a compiled function enters, such as a hook.
    """
    _compile(function, _FrameAction.SKIP, _FrameAction.SKIP)
    # Otherwise it is traced, as part of a function that is compiled, up to what the compiler warns of.
    vars(function)["_torchdynamo_disable"] = True
    return function


_FrameAction: Any = torch._C._dynamo.eval_frame._FrameAction


def _compile(function: Callable[..., Any], own: Any, inside: Any) -> None:
    """Set what `torch.compile` does with the frames of a function and of the functions it calls."""
    compiler = torch._C._dynamo.eval_frame
    compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(own, inside))


VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
"""The version of torch, such as ``(2, 13)``."""

mode_flags: dict[str, Any] = vars(_python_dispatch)
"""A dictionary with `MODE_FLAGS`."""

MODE_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""The names of three flags that say which kinds of modes are entered now."""

_flags_exist = {*MODE_FLAGS} <= mode_flags.keys()
_read_flags = operator.itemgetter(*MODE_FLAGS)
_in_mode = dict.fromkeys(MODE_FLAGS, True)

tell_compiler_of_mode: Any = (
    mode_flags.get("set_is_in_mode_without_ignore_compile_internals") if _flags_exist else None
)
"""Tells the compiler the last one of the flags; None if torch keeps other flags."""

_push_mode: Any = torch._C._push_on_torch_dispatch_stack
_pop_mode: Any = torch._C._pop_torch_dispatch_stack


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode without the wrapper that keeps the compiler out, which costs 6 us per operator.

    The compiler compiles no function of the user while a dispatch mode is entered.  Its own frames are marked
    instead: torch leaves a mode while it runs.

    Entering and leaving does what torch's methods do, with fewer calls: a guard does it eight times in a
    step, when none of this code is in the processor's caches.
    """

    supports_higher_order_operators = True
    stops_compiler = True
    """Whether the compiler compiles nothing while the mode is entered."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        not_compiled(cls.__torch_dispatch__)

    def run_inside(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that this mode received; it also receives what the implementation runs."""
        implementation = below_modes(operator, args, kwargs)
        if implementation is None:
            return operator(*args, **kwargs)
        with self:
            return implementation(*args, **kwargs)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return not cls.stops_compiler

    # Another version of torch may keep something else.
    if tell_compiler_of_mode is not None:

        def __enter__(self) -> DispatchMode:
            before = _read_flags(mode_flags)
            self.old_dispatch_mode_flags.append(before)
            mode_flags.update(_in_mode)
            if self.stops_compiler:
                tell_compiler_of_mode(True)
            else:
                mode_flags[MODE_FLAGS[-1]] = before[-1]
            _push_mode(self)
            return self

        def __exit__(self, *_: object) -> None:
            flags = self.old_dispatch_mode_flags.pop()
            mode_flags.update(zip(MODE_FLAGS, flags, strict=True))
            tell_compiler_of_mode(flags[-1])
            _pop_mode(None)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def check_whole_graphs(checked: bool) -> None:
    """Let functions of `torch.compile` with `fullgraph=True` raise on this thread if they are not compiled.

    Without, they run eagerly under a dispatch mode, as all other compiled functions do there.
    """
    # A count that has begun belongs to an outer call, and only the outermost call raises.
    count_whole_graphs(-1 if checked else 0)


count_whole_graphs: Any = getattr(
    torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", lambda count: count
)
"""See `check_whole_graphs`.  Without it, as in torch 2.10, no such function raises."""


def compiled_call_functions() -> tuple[Any, str, str]:
    """Return the owner and names of a function that compiled calls use at their begin, and one at their end.

    Both are called while the compiler is off: it would restore what a function of Python changes of it.
    """
    from torch._dynamo import eval_frame

    return eval_frame, "_is_skip_guard_eval_unsafe_stance", "_maybe_set_eval_frame"


_COMPILED_CALL = {"fn", "args", "kwargs", "callback", "saved_dynamic_layer_stack_depth"}
"""The variables of a call of a compiled function that nncdbg reads."""


class CompiledResult:
    """The result of a call of a compiled function that begins now, once the call is at its end.

    Its frame has a variable with the result.  Without one, as in torch 2.10, this is called in place of the
    function that the frame calls.
    """

    def __init__(self, frame: types.FrameType) -> None:
        function = frame.f_locals["fn"]
        # Another thread may be about to call the same function.
        self.function: Any = function.function if isinstance(function, CompiledResult) else function
        """The function that was compiled."""
        self._frame = frame
        self._result: Any = None
        self._has_variable = _RESULT in frame.f_code.co_varnames
        if not self._has_variable:
            _set_variable(frame, "fn", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        _set_variable(self._frame, "fn", self.function)
        result = self.function(*args, **kwargs)
        # Another thread may have come first, in a call of its own.
        if sys._getframe(1) is self._frame:
            self._result = result
        return result

    def take(self) -> Any:
        """Return the result, None after an exception; the call is at its end."""
        if self._has_variable:
            return self._frame.f_locals.get(_RESULT)
        _set_variable(self._frame, "fn", self.function)
        return self._result


_compile(CompiledResult.__call__, _FrameAction.SKIP, _FrameAction.DEFAULT)

_RESULT = "result"
"""The variable with the result."""


def _set_variable(frame: types.FrameType, name: str, value: Any) -> None:
    """Assign to a variable of a frame that runs."""
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def compiler_of(frame: types.FrameType) -> Any:
    """Return the backend of the compiled function that is called in a frame."""
    return _innermost_backend(frame.f_locals["callback"])


def _innermost_backend(backend: Any) -> Any:
    while hasattr(backend, _INNER_BACKEND):
        backend = getattr(backend, _INNER_BACKEND)
    return backend


_INNER_BACKEND = "_torchdynamo_orig_backend"
"""The attribute of what wraps a backend of the compiler."""


def compiled_call_ends(frame: types.FrameType, uses: int) -> bool:
    """Return whether a frame that uses the second of these functions is at its end.

    The first of its `uses` before turns the compiler on, unless an exception came first.
    """
    return uses > 0 or "saved_dynamic_layer_stack_depth" not in frame.f_locals


def stand_in(replacement: Function, original: Callable[..., Any]) -> Function:
    """Let `torch.compile` and `torch.jit.script` use the original of a function that replaces it."""
    marks = vars(replacement)
    marks["__script_if_tracing_wrapper"], marks["__original_fn"] = True, original
    marks["__prepare_scriptable__"] = lambda: original
    return replacement


OpOverload: Any = torch._ops.OpOverload

_BELOW_MODES: Any = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
"""The dispatch keys after that of dispatch modes."""

_BACKEND_SELECT: Any = torch._C.DispatchKey.BackendSelect
"""The key of kernels that choose a device for operators without tensors."""


def below_modes(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the implementation that a call of an operator reaches when it has passed all dispatch modes.

    None if another mode or a tensor subclass is to get the call before.
    """
    keys = torch._ops._compute_keyset(args, kwargs, torch._C._dispatch_keyset_full())
    if keys.has("Python"):
        return None
    keys &= _BELOW_MODES
    if isinstance(operator, OpOverload):
        # The call of a kernel by its key does not skip what the dispatcher skips.
        skipped = not has_kernel(operator, "BackendSelect")
        return partial(operator.redispatch, keys.remove(_BACKEND_SELECT) if skipped else keys)
    key = (keys & operator.non_fallthrough_keys).highestPriorityTypeId()
    kernel: Callable[..., Any] = operator.py_kernels[torch._ops.resolve_key(operator, key)]
    function: Any = getattr(kernel, "__func__", kernel)
    if _MODE_CHECK not in getattr(function, "__globals__", ()):
        return kernel
    # Some kernels raise where a mode is entered, to find modes that forgot to be left.
    variables = {**function.__globals__, _MODE_CHECK: lambda: None}
    copy = types.FunctionType(
        function.__code__, variables, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy if function is kernel else partial(copy, kernel.__self__)  # type: ignore[attr-defined]


def call_as_kernel(function: Callable[[], None]) -> None:
    """Call a function as the kernel of an operator that no dispatch mode sees.

    Until torch 2.12, a function can only pass on dispatch keys that an operator had before, as the autograd
    function of a custom operator does, while an operator runs that began under the modes of now.
    """
    if VERSION >= (2, 13):
        function()
        return
    library = torch.library.Library("nncdbg", "FRAGMENT")
    # torch keeps a kernel that raises, so it must not keep the function.
    pending = [function]
    try:
        library.define("call() -> ()")
        library.impl("call", lambda: pending.pop()(), "CompositeImplicitAutograd")
        library.impl("call", torch.library.fallthrough_kernel, "Python")
        torch.ops.nncdbg.call()
    finally:
        library._destroy()


_MODE_CHECK = "_get_current_dispatch_mode"
"""The function by which kernels of higher-order operators look for a mode."""


def is_higher_order(operator: Any) -> bool:
    """Return whether an operator has functions of Python among its arguments, as `torch.cond` has."""
    return isinstance(operator, torch._ops.HigherOrderOperator)


_TRACING_MODES = torch._C._TorchDispatchModeKey.__members__.values()


def is_traced(classes: Iterable[type]) -> bool:
    """Return whether a compiler or exporter runs operators on tensors without data, of such classes."""
    return any(map(torch._C._get_dispatch_mode, _TRACING_MODES)) or any(map(_is_of_tracer, classes))


def _is_of_tracer(kind: type) -> bool:
    return any(
        module in sys.modules and issubclass(kind, getattr(sys.modules[module], name))
        for module, name in _TRACED
    )


_TRACED = (
    ("torch._subclasses.fake_tensor", "FakeTensor"),
    ("torch._subclasses.functional_tensor", "FunctionalTensor"),
)
"""The classes of the tensors of tracers, which are imported with a tracer."""


def with_elements(tensor: Any) -> Any:
    """Return the tensor that has the elements of a tensor; None if none has: a tracer made it.

    A tensor of `torch.func` wraps the tensor that has them.
    """
    while is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return None if tensor.is_meta or _is_of_tracer(type(tensor)) else tensor


without_dispatch: Any = torch._C._DisableTorchDispatch
"""Context manager: operators called inside skip all dispatch modes and tensor subclasses."""

dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns the number of dispatch modes that operators called now pass through."""

function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""Returns the number of function modes that calls of torch's functions now pass through."""

unseen_by_functions: Any = torch._C.DisableTorchFunction
"""Context manager: calls inside pass through no function mode and no `__torch_function__` of a subclass."""

seen_by_functions: Any = torch._C._EnableTorchFunction
"""Context manager: the opposite, for code of the user inside of it."""


def unseen(function: Function) -> Function:
    """Return a function whose calls are in a block of `unseen_by_functions`."""

    @not_compiled
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unseen_by_functions():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


below_autograd: Any = torch._C._AutoDispatchBelowAutograd
"""Context manager: operators called inside record nothing for a backward pass, as those below autograd."""

current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
"""Returns the autograd node that runs on this thread, None outside a backward pass."""

current_backward: Callable[[], int] = torch._C._current_graph_task_id
"""Returns the number of the backward pass that runs on this thread, -1 outside of one."""

next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr
"""Returns the number that the next autograd node of this thread gets."""

any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Returns whether a block of `torch.autocast` is active on this thread, for any device."""

innermost_mode: Callable[[], Any] = _get_current_dispatch_mode
"""Returns the dispatch mode that was entered last on this thread, None without one."""

gpu_trace: Any = _gpu_trace
"""The module with the registries of callbacks for events and synchronization on a GPU."""

activate_gpu_trace: Callable[[], None] = torch._C._activate_gpu_trace
"""Lets torch call the callbacks of `gpu_trace` for events and synchronization, from now on."""

norms_of: Callable[..., list[Any]] = torch._foreach_norm
"""Returns the norm of each tensor of a list; a fused kernel on a GPU."""

keeping_version: Any = torch.autograd._unsafe_preserve_version_counter
"""Context manager: writes to a tensor inside do not count as changes of what autograd saved."""


@contextmanager
def profiler_marks_undispatched() -> Iterator[None]:
    """Let dispatch modes not see the marks of the profiler in the block, such as those around an update.

    Each one costs 10 us in a mode, although no kernel is behind it.
    """
    library = torch.library.Library("profiler", "IMPL")
    try:
        for name in ("_record_function_enter_new", "_record_function_exit._RecordFunction"):
            library.impl(name, torch.library.fallthrough_kernel, "Python")
        yield
    finally:
        library._destroy()


TRACERS = ((torch.jit, "trace"), (torch.jit, "trace_module"))
"""Functions that run code of the user to trace it.  The tracer fails under a dispatch mode."""


def traced_undispatched(stack: ExitStack) -> None:
    """Let no dispatch mode see the operators that `torch.jit` runs to trace code, until `stack` ends."""

    def undispatched(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with without_dispatch():
                return original(*args, **kwargs)

        return stand_in(call, original)

    for owner, name in TRACERS:
        original = getattr(owner, name)
        stack.callback(setattr, owner, name, original)
        setattr(owner, name, undispatched(original))


module_call: Any = torch.nn.Module._call_impl.__code__
"""The code that runs while a module is called; its local variable `self` is the module."""

module_entry: Any = torch.nn.Module._wrapped_call_impl
"""The function that `torch.nn.Module.__call__` is."""

operator_file: str = torch._ops.__file__
"""The file with the code that calls an operator."""

own_batches: Any = torch.utils.data.dataloader._BaseDataLoaderIter
"""The class of the iterators that a `DataLoader` itself makes."""

backward_call: Any = torch.autograd.graph._engine_run_backward.__code__
"""The code that runs while a backward pass does."""

random_tag: Any = torch.Tag.nondeterministic_seeded

pointwise_tag: Any = torch.Tag.pointwise
"""Operators that compute each element from the elements at its place."""

reshaping_tag: Any = torch.Tag.inplace_view
"""Operators that change the sizes, strides or memory of the tensor that they are given."""


transformation: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""Returns the innermost transformation of `torch.func` that runs now, None outside of all."""

is_wrapped: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Returns whether a tensor stands for a batch or a level of `torch.func`, and so has no memory of its own."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions, by overload."""
    from torch._decomp import decomposition_table

    table: dict[Any, Callable[..., Any]] = decomposition_table
    return table


def schema_of(overload: Any) -> Any:
    """Return the `FunctionSchema` of an overload."""
    return overload._schema


def fast_call(overload: Any) -> Callable[..., Any]:
    """Return the overload as a function without Python's own dispatch in front of it."""
    called: Callable[..., Any] = overload._op
    return called


@cache
def out_form(overload: Any) -> Any:
    """Return the form of an operator in place that writes to an argument `out` instead; None without one.

    Both forms have a kernel of their own on the CPU: so torch generates them from one kernel, and they
    give the same bits.  Other forms with `out` are made of the functional form.
    """
    name = overload._schema.name.removesuffix("_")
    if name == overload._schema.name or not has_kernel(overload, "CPU"):
        return None
    packet = getattr(getattr(torch.ops, overload.namespace), name.partition("::")[2], None)
    wanted = [(each.name, str(each.real_type)) for each in overload._schema.arguments]
    for other in packet.overloads() if packet is not None else ():
        form = getattr(packet, other)
        *arguments, last = form._schema.arguments
        if (
            last.name == "out"
            and last.kwarg_only
            and [(each.name, str(each.real_type)) for each in arguments] == wanted
            and has_kernel(form, "CPU")
        ):
            return form
    return None


def has_kernel(overload: Any, key: str) -> bool:
    """Return whether an operator has a kernel for a dispatch key, such as ``CPU``."""
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)
    return found


def all_operator_names() -> Iterable[str]:
    """Return the names of all registered operators, as ``aten::add.Tensor``."""
    names: Iterable[str] = torch._C._dispatch_get_all_op_names()
    return names


def sequence_number(node: Any) -> int:
    """Return the number of an autograd node: forward operators and their backward nodes share it."""
    number: int = node._sequence_nr()
    return number


def joint_graph(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the `torch.fx.GraphModule` of a module's forward and backward pass.

    Nodes have `desc` in their `meta`: for a placeholder what it is, for the output that of each result.
    Raises what torch raises for a module that it cannot trace.
    """
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._guards import TracingContext, tracing

    traced: Any = dynamo_graph_capture_for_export(module)(*arguments, **keywords)
    with ExitStack() as stack:
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        mode = traced.meta.get("fake_mode")
        if mode is not None:
            stack.enter_context(tracing(TracingContext(mode)))
        return aot_export_joint_with_descriptors(stack, traced, arguments, keywords).graph_module


def call_without_data(module: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Call a module on tensors that have only sizes and dtypes; the module does not change.

    Raises what the module raises, and exceptions of torch if it needs the data.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own, positional, named = tree_map_only(torch.Tensor, mode.from_tensor, (own, positional, dict(named)))
    with mode, torch.no_grad():
        torch.func.functional_call(module, own, positional, named)


def without_elements() -> Any:
    """Return a mode in which tensors have sizes, types and devices, but no elements."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def storage_address(tensor: Any) -> int:
    """Return a number that identifies a tensor's storage while that, or a weak reference to it, lives."""
    number: int = tensor.untyped_storage()._cdata
    return number


def key_of(tensor: Any) -> tuple[int, int, torch.Size, tuple[int, ...], torch.dtype, int]:
    """Return the memory of a strided tensor: storage, offset, sizes, strides, dtype, conjugated and negated.

    The first number is `storage_address`; the last one is 1 for conjugated plus 2 for negated.
    """
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj() + 2 * tensor.is_neg(),
    )


def weak_storage(tensor: Any) -> int:
    """Return a weak reference to the storage of a tensor; end it with `free_weak_storage`.

    It keeps the number of the storage from being used again, but not the memory.
    """
    reference: int = tensor.untyped_storage()._weak_ref()
    return reference


def free_weak_storage(reference: int) -> None:
    """End a weak reference."""
    torch.UntypedStorage._free_weak_ref(reference)


def compile_body(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that calls a higher-order operator, as torch does: it compiles the function first."""
    from torch._higher_order_ops.utils import setup_compilation_env

    with setup_compilation_env() as backend:
        return torch.compile(function, backend=backend, fullgraph=True)(*args, **kwargs)


def compiles_body(frame: types.FrameType) -> bool:
    """Return whether a frame with `is_compiled_call` is the call of a function of torch as above."""
    caller = frame.f_back
    if caller is None:
        return False
    code = caller.f_code
    return code is compile_body.__code__ or code.co_filename.startswith(_COMPILING)


_COMPILING = tuple(
    f"{torch.__path__[0]}/{each}" for each in ("_higher_order_ops/", "nn/attention/flex_attention.py")
)
"""The files of torch with such functions."""


def traced_places(frame: types.FrameType) -> list[tuple[str, int]]:
    """Return the places from which the statement was traced that a frame of generated code runs.

    The innermost place is the first; empty if they are unknown.
    """
    graph = frame.f_locals.get("self")
    if not isinstance(graph, torch.fx.GraphModule):
        return []
    index = (graph._lineno_map or {}).get(frame.f_lineno - frame.f_code.co_firstlineno)
    if index is None:
        return []
    trace = [*graph.graph.nodes][index].meta.get("stack_trace") or ""
    return [(file, int(line)) for file, line in reversed(_TRACED_PLACE.findall(trace))]


_TRACED_PLACE = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)

GENERATED = "<eval_with_key>"
"""The start of the names of files with generated code."""


def is_compiled_call(code: Any) -> bool:
    """Return whether a code object calls the function or module that `torch.compile` wraps."""
    name, file = code.co_name, str(code.co_filename)
    return bool(name == "compile_wrapper" and file.endswith("/_dynamo/eval_frame.py"))


_COMPILED = "_orig_mod"
"""The attribute of a compiled module that is the module itself."""


def uncompiled(module: Any) -> Any:
    """Return the module that `torch.compile` wraps; another module is returned unchanged."""
    inside = getattr(module, _COMPILED, None)
    return inside if isinstance(inside, torch.nn.Module) else module


def uncompiled_name(path: str) -> str:
    """Return a path in a module without the wrappers of `torch.compile`."""
    if _COMPILED not in path:
        return path
    return ".".join(part for part in path.split(".") if part != _COMPILED)


def backend_named(name: str) -> Callable[..., Any]:
    """Return the function of a backend of `torch.compile`: it compiles a graph for example inputs."""
    found: Callable[..., Any] = torch._dynamo.lookup_backend(name)
    return found


_COMPILER = "torch._dynamo"


_KEY_FUNCTIONS = ("_dynamo_save_local_dispatch_key_set", "_dynamo_restore_local_dispatch_key_set")
"""Functions of `torch._C` that a compiled call calls at its begin and its end, from torch 2.14 on."""

_key_functions: Any = [getattr(torch._C, name, None) for name in _KEY_FUNCTIONS]
_blocks: list[object] = []
"""The blocks in which compiled calls that begin save no dispatch keys."""
_without_keys: set[int] = set()
"""The frames of the calls that saved none: they must restore none, even after the block."""


@not_compiled
def _save_keys() -> None:
    if _blocks:
        _without_keys.add(id(sys._getframe(1)))
    else:
        _key_functions[0]()


@not_compiled
def _restore_keys() -> None:
    frame = id(sys._getframe(1))
    if frame in _without_keys:
        _without_keys.remove(frame)
        _put_key_functions_back()
    else:
        _key_functions[1]()


def _put_key_functions_back() -> None:
    if not _blocks and not _without_keys:
        for name, function in zip(_KEY_FUNCTIONS, _key_functions, strict=True):
            setattr(torch._C, name, function)


def _keys_not_restored(stack: ExitStack) -> None:
    """Let compiled calls that begin before `stack` ends restore no dispatch keys."""
    if None not in _key_functions:
        _blocks.append(stack)
        stack.callback(_put_key_functions_back)
        stack.callback(_blocks.remove, stack)
        for name, function in zip(_KEY_FUNCTIONS, (_save_keys, _restore_keys), strict=True):
            setattr(torch._C, name, function)
        return
    guard = torch._C._ForceDispatchKeyGuard  # In torch 2.13; a call restores none before.

    def guard_outside_of_calls(included: Any, excluded: Any) -> Any:
        by_call = is_compiled_call(sys._getframe(1).f_code)
        return nullcontext() if by_call else guard(included, excluded)

    stack.callback(setattr, torch._C, "_ForceDispatchKeyGuard", guard)
    torch._C._ForceDispatchKeyGuard = guard_outside_of_calls


@contextmanager
def compiling_nothing() -> Iterator[None]:
    """Run functions of `torch.compile` eagerly in the block.

    The compiler takes seconds to import, so it is imported only if the block does that itself.  A dispatch
    mode may be entered inside of such a function and left after it: the call restores no dispatch keys.

    What torch compiles for a higher-order operator is compiled: what its functions read besides their
    arguments has a gradient only then.
    """
    with ExitStack() as stack:
        traced_undispatched(stack)
        _keys_not_restored(stack)
        stack.callback(when_compiler_is_imported(lambda: _compile_only_bodies(stack)))
        yield


def _compile_only_bodies(stack: ExitStack) -> None:
    """Let the compiler compile for higher-order operators only, until `stack` ends."""
    from torch._dynamo import eval_frame

    @not_compiled
    def callback_from_stance(callback: Any) -> Any:
        frame = sys._getframe(1)
        return callback if is_compiled_call(frame.f_code) and compiles_body(frame) else None

    stack.enter_context(torch.compiler.set_stance("force_eager"))
    stack.callback(setattr, eval_frame, "_callback_from_stance", eval_frame._callback_from_stance)
    eval_frame._callback_from_stance = callback_from_stance


def when_compiler_is_imported(act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` now if the compiler is imported, else as soon as it is; return how to give up.

    The compiler takes seconds to import, so nncdbg does not import it for a program that compiles nothing.
    """
    if _COMPILER in sys.modules:
        act()
        return lambda: None
    finder = _CompilerFinder(act)
    sys.meta_path.insert(0, finder)

    def give_up() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return give_up


class _CompilerFinder:
    """Finds the compiler, and calls `act` when it is imported."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(self, name: str, path: Sequence[str] | None, _: object = None) -> ModuleSpec | None:
        if name != _COMPILER:
            return None
        # Another finder of this class may be behind it.
        sys.meta_path.remove(self)
        found = find_spec(name)
        if found is not None and found.loader is not None:
            loader: Any = found.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._act()

            loader.exec_module = exec_module
        return found


def on_collective(noted: Callable[[str, Mapping[str, Any], Any], None]) -> Callable[[], None]:
    """Call `noted` before each collective of this process; return a function that ends this.

    `noted` receives the name (``allreduce_``), the arguments by name, and the process group.  Collectives of
    C++ code, such as those of DistributedDataParallel, are included.
    """
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")

    def observe(overload: Any) -> None:
        names = [each.name for each in overload._schema.arguments]

        def kernel(keys: Any, *args: Any) -> Any:
            given = dict(zip(names, args, strict=False))
            noted(overload._opname, given, torch.distributed.ProcessGroup.unbox(given["process_group"]))
            return overload.redispatch(keys & after, *args)

        library.impl(overload._opname, kernel, "BackendSelect", with_keyset=True)

    for registered in all_operator_names():
        namespace, _, name = registered.partition("::")
        if namespace == "c10d":
            overload = getattr(torch.ops.c10d, name).default
            if any(each.name == "process_group" for each in overload._schema.arguments):
                observe(overload)
    end: Callable[[], None] = library._destroy
    return end


COLLECTIVES = "_c10d_functional"
"""The library of collectives that return their results, which must be waited for."""


def await_collective(tensor: Any) -> None:
    """Wait until the memory of a tensor has the result of a collective; it may be waited for again."""
    torch.ops._c10d_functional.wait_tensor(tensor)


@cache
def waits() -> frozenset[Any]:
    """Return the operators that wait for the result of a collective, now or at its first use."""
    library, names = torch.ops._c10d_functional, ("wait_tensor", "_wrap_tensor_autograd")
    return frozenset(getattr(library, each).default for each in names if hasattr(library, each))


def ranks_of_group(group: Any) -> list[int]:
    """Return the ranks of a process group; while it is being made, as many ranks from 0 on."""
    known = getattr(torch.distributed.distributed_c10d._world, _RANKS)
    for each, ranks in known.items():
        if each.group_name == group.group_name:
            return sorted(ranks)
    return [*range(group.size())]


_RANKS = "pg_group_ranks"
"""The attribute with the ranks of all process groups."""


def default_store() -> Any:
    """Return the store through which the ranks of the default process group met."""
    return torch.distributed.distributed_c10d._get_default_store()


def gradient_buckets(parallel: torch.nn.parallel.DistributedDataParallel) -> list[list[Any]]:
    """Return the parameters of each bucket of gradients, in the order in which ranks reduce them.

    The buckets of the first step are known by their sizes in bytes alone, which hold the parameters from the
    last to the first; empty if these do not fit, as with several dtypes.
    """
    logged: Any = parallel._get_ddp_logging_data()
    parameters = [each for each in parallel._module_parameters if each.requires_grad]
    rebuilt = logged.get("rebuilt_per_bucket_param_indices")
    if rebuilt:
        return [[parameters[int(index)] for index in bucket.split()] for bucket in rebuilt.split(",")]
    buckets = []
    for size in map(int, logged["bucket_sizes"].split(",")):
        bucket: list[Any] = []
        while parameters and sum(each.nbytes for each in bucket) < size:
            bucket.append(parameters.pop())
        if sum(each.nbytes for each in bucket) != size:
            return []
        buckets.append(bucket)
    return buckets


def skip_batches(batches: Any, count: int) -> None:
    """Leave out batches of the iterator of a `DataLoader`.

    Without workers, the samples of a dataset with indices are not loaded.  Workers load theirs again: their
    random generators depend on it.
    """
    data = torch.utils.data
    by_index = (
        isinstance(batches, data.dataloader._SingleProcessDataLoaderIter)
        and batches._dataset_kind == data._DatasetKind.Map
    )
    for _ in range(count):
        if by_index:
            batches._next_index()
        else:
            next(batches)


def check_names() -> None:
    """Use the names that this file reads late, and those with a meaning that may change.

    Raises RuntimeError, or what torch raises, if one is missing or means something else.
    """
    _check_compiler()
    _check_operators()
    _check_kernels()
    if torch.distributed.is_available():
        _check_distributed()
    generator = torch.Generator()
    data = torch.utils.data.TensorDataset(torch.ones(2))
    batches = iter(torch.utils.data.DataLoader(data, generator=generator))
    skip_batches(batches, 1)
    _require(len([*batches]) == 1, "a loader of batches")


def _check_compiler() -> None:
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export  # noqa: F401
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors  # noqa: F401
    from torch._guards import TracingContext, tracing  # noqa: F401
    from torch._higher_order_ops.utils import setup_compilation_env

    owner, *functions = compiled_call_functions()
    _require(all(hasattr(owner, each) for each in functions), "what a compiled function calls")
    constants = owner._TorchDynamoContext.__call__.__code__.co_consts
    codes = [each for each in constants if isinstance(each, types.CodeType) and is_compiled_call(each)]
    _require(len(codes) == 1, "the call of a compiled function")
    names = {*codes[0].co_names, *codes[0].co_varnames, *codes[0].co_freevars}
    _require(hasattr(owner, "_callback_from_stance"), "the functions that are compiled")
    _require(_COMPILED_CALL | {*functions} <= names, "what the call of a compiled function reads")
    variables = codes[0].co_varnames, codes[0].co_freevars
    _require(_RESULT in variables[0] or "fn" in variables[1], "the result of a compiled function")
    keys = {"_ForceDispatchKeyGuard"} if None in _key_functions else {*_KEY_FUNCTIONS}
    # Before torch 2.13 it restores none.
    restored = {each for each in names if re.search("dispatch_?key", each, re.IGNORECASE)}
    _require(restored in (keys, set()), "how a compiled function restores dispatch keys")
    counts = "set_fullgraph_compiled_frame_count"
    _require(counts not in names or count_whole_graphs is getattr(owner, counts), "the count of whole graphs")
    _require(_COMPILED in owner.OptimizedModule.__init__.__code__.co_names, "the module of a compiled one")
    _require("self" in module_call.co_varnames, "the call of a module")
    _require(torch.nn.Module.__call__ is module_entry, "the function that calls a module")
    with compiling_nothing():
        pass
    setup_compilation_env()
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    _require(hasattr(graph, "_lineno_map"), "the lines of generated code")
    _require(graph.forward.__code__.co_filename.startswith(GENERATED), "the name of generated code")
    backend = backend_named("eager")
    compiler = torch._dynamo.optimize(backend).callback
    _require(_innermost_backend(compiler) is backend, "the compiler of a compiled function")


def _check_operators() -> None:
    seen: list[Any] = []

    class Mode(DispatchMode):
        def __torch_dispatch__(
            self, overload: Any, _: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            seen.append((overload, dispatch_modes()))
            return overload(*args, **kwargs or {})

    with torch.inference_mode(False), torch.enable_grad():
        tensor = torch.ones(2, requires_grad=True)
        number, modes = next_sequence_number(), dispatch_modes()
        with Mode():
            result = tensor.sin()
        _require(seen == [(torch.ops.aten.sin.default, modes)], "a dispatch mode")
        node = result.grad_fn
        _require(node is not None and sequence_number(node) == number, "the number of an autograd node")
        passes = [current_backward()]
        result.register_hook(lambda _: seen.append(current_autograd_node()))
        result.register_hook(lambda _: passes.append(current_backward()))
        torch.autograd.grad(result, tensor, torch.ones(2))
    _require(len(seen) == 2 and seen[-1] is not None, "the autograd node that runs")
    _require(passes[0] == -1 < passes[-1], "the number of a backward pass")
    reference = weak_storage(tensor)
    _require(key_of(tensor)[0] == storage_address(tensor) == reference, "the address of a storage")
    free_weak_storage(reference)
    form = out_form(torch.ops.aten.mul_.Tensor)
    _require(form is not None and len(schema_of(form).arguments) == 3, "the schema of an operator")
    call_without_data(torch.nn.Identity(), (torch.ones(1),), {})
    with without_elements(), keeping_version(tensor), below_autograd(), without_dispatch():
        fast_call(torch.ops.aten.ones.default)([1])
    _require(transformation() is None and not is_wrapped(tensor), "the transformations of torch.func")
    with without_elements():
        _require(is_traced([type(torch.ones(1))]), "a tensor without elements")
    _require(torch.ops.aten.silu.default in decompositions(), "the decompositions of operators")


def _check_kernels() -> None:
    """Check the implementations that a call reaches below dispatch modes."""
    tensor = torch.ones(2)
    for overload, given in (
        (torch.ops.aten.sin.default, (tensor,)),
        (torch.ops.aten.ones.default, ([2],)),
        (torch.ops.higher_order.cond, (True, torch.sin, torch.cos, (tensor,))),
    ):
        kernel = below_modes(overload, given, {})
        _require(kernel is not None, "the kernel of an operator")
        assert kernel is not None
        expected = overload(*given)
        _require(str(kernel(*given)) == str(expected), "the kernel of an operator")
    with profiler_marks_undispatched(), DispatchMode(), torch.profiler.record_function("nncdbg"):
        pass


def _check_distributed() -> None:
    library = torch.ops._c10d_functional
    _require(hasattr(library, "wait_tensor"), "the operator that waits for a collective")
    _require(hasattr(library, "_wrap_tensor_autograd") == (len(waits()) == 2), "the wait of a collective")
    known = vars(torch.distributed.distributed_c10d)
    _require({"_world", "_get_default_store"} <= known.keys(), "the groups of ranks")
    _require(hasattr(known["_world"], _RANKS), "the ranks of a group")
    parallel = torch.nn.parallel.DistributedDataParallel
    made = parallel.__init__.__code__.co_names
    _require("_module_parameters" in made, "the parameters of DistributedDataParallel")
    _require(hasattr(parallel, "_get_ddp_logging_data"), "the buckets of DistributedDataParallel")
    on_collective(lambda *_: None)()


def _require(right: bool, what: str) -> None:
    if not right:
        raise RuntimeError(f"{what} is not as nncdbg expects it")
