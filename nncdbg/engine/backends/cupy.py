"""The built-in kernels on CuPy arrays: values stay on the device, and the host waits only if it must.

Results of kernels stay on the device in their slots; statistics are one more kernel, and its row
stays on the device until it is read.  Shapes, axes and other operands that a kernel needs on the
host are kept on the host, and so are small integer tensors computed from them.  A value is copied
to the host only to display it, to decide a condition, or if a kernel needs a computed operand there.

Tested against a substitute for CuPy that refuses every implicit conversion.  With CuPy 14.2 itself only
the names of the functions, their keywords and the error without a device were checked: no kernel
has run on a device yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.backends import Backend, Call, Execute, Kernels, array_storage, refusal, unpacked
from nncdbg.engine.backends.cupy_streams import CuPyStreams
from nncdbg.engine.backends.device_statistics import Summing, summing
from nncdbg.engine.backends.numpy import bind_over
from nncdbg.engine.ops.influence import Content
from nncdbg.errors import UnsupportedOp, UsageError

SMALL = 1024
"""The most elements of host-computed integers that stay on the host."""


class CuPy(Backend):
    """The built-in kernels over `cupy`, on the current device and stream.

    Raises UsageError if CuPy is not installed or there is no device.
    """

    name = "cupy"
    on_host = False
    runs_op_kernels = True

    def __init__(self) -> None:
        self.xp: Any = _library()
        self._summing: Summing = summing(self.xp)
        self._constants: ByIdentity[Any] = ByIdentity()
        """The copies of constants on the device."""
        self.streams: CuPyStreams | None = None
        """The streams of a scheduled program."""

    def begin_streams(self, devices: Mapping[int, str]) -> CuPyStreams:
        """Run statements on the streams of their margins from now on; `devices` are those of the streams."""
        self.streams = CuPyStreams(self.xp, devices)
        return self.streams

    def bind(self, call: Call) -> Kernels:
        return bind_on_device(self, self.xp, call)

    def to_device(self, array: Any) -> Any:
        return moved(self.xp, array)

    def to_host(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.to_host(item) for item in value]
        if self.streams is not None and not self.streams.inside and isinstance(value, self.xp.ndarray):
            self.streams.wait()
        return value.get() if isinstance(value, self.xp.ndarray) else value

    def wait(self) -> None:
        if self.streams is not None and not self.streams.inside:
            self.streams.wait()
        else:
            self.xp.cuda.get_current_stream().synchronize()

    def to_host_together(self, values: Sequence[Any]) -> list[Any]:
        found = [each if isinstance(each, self.xp.ndarray) else self.to_host(each) for each in values]
        moving = [index for index, each in enumerate(found) if isinstance(each, self.xp.ndarray)]
        if moving:
            if self.streams is not None and not self.streams.inside:
                self.streams.wait()
            arrays = [found[index] for index in moving]
            packed = self.xp.concatenate([each.ravel().view(np.uint8) for each in arrays]).get()
            shapes = [(each.dtype, each.shape) for each in arrays]
            for index, array in zip(moving, unpacked(packed.tobytes(), shapes), strict=True):
                found[index] = array
        return found

    def memory(self, value: Any) -> tuple[int, int] | None:
        return None

    def storage(self, value: Any) -> tuple[int, int] | None:
        if not isinstance(value, self.xp.ndarray):
            return array_storage(value)
        owner = value if value.base is None else value.base
        return owner.data.ptr, owner.nbytes

    def device(self, value: Any) -> str | None:
        # Kernels move host arrays to the device themselves.
        return f"cuda:{value.device.id}" if isinstance(value, self.xp.ndarray) else None

    def mixes_devices(self, kernel: Execute, operands: Sequence[Any]) -> bool:
        return False

    def device_bytes(self, values: Iterable[Any]) -> int | None:
        return int(self.xp.cuda.runtime.memGetInfo()[1])

    def drain(self) -> int:
        pool = self.xp.get_default_memory_pool()
        before = pool.total_bytes()
        pool.free_all_blocks()
        return int(before - pool.total_bytes())

    def summarize(self, value: Any, row: Any) -> None:
        self._summing(value, row)

    def constant(self, array: Any) -> Any:
        """Return a constant on the device; it is copied once."""
        known = self._constants.get(array)
        if known is None:
            copy = self.to_device
            known = copy(array) if self.streams is None else self.streams.placed(array, copy)
            self._constants.set(array, known)
        if self.streams is not None:
            self.streams.await_copy(known)
        return known


def _library() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise UsageError(
            "the backend cupy needs the package CuPy, which is not installed",
            hint="pip install nncdbg[gpu]",
        ) from error
    # Without a driver `import cupy` works, but every call raises.
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UsageError(
            f"the backend cupy found no device: {error}", hint="use --backend numpy or onnxruntime"
        ) from error
    if count == 0:
        raise UsageError("the backend cupy found no device", hint="use --backend numpy or onnxruntime")
    library: ModuleType = cupy
    return library


def moved(xp: Any, array: Any) -> Any:
    """Copy a NumPy array of numbers to the device; text stays on the host.

    Raises UnsupportedOp for element types that the device's arrays do not support.
    """
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.hasobject:
        return array
    if array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
        raise UnsupportedOp(
            f"the backend {xp.__name__} does not support {array.dtype}",
            hint="use --backend numpy, or use --fallback to run these ops on NumPy",
        )
    return xp.asarray(array)


def bind_on_device(backend: CuPy, xp: Any, call: Call) -> Kernels:
    """Return the kernel of a statement that moves each operand to where the kernel needs it."""

    def lacking(error: AttributeError) -> tuple[str, str]:
        message = f"{call.node.op} has no kernel on {xp.__name__}: there is no {xp.__name__}.{error.name}"
        return message, "use --fallback to run this op on NumPy"

    try:
        kernels = bind_over(xp, call, backend.bind)
    except AttributeError as error:
        return refusal(*lacking(error))
    on_device, on_host = kernels.run, bind_over(np, call).run
    steering, reads_shapes = call.op.host_operands, call.op.content is Content.SIZES

    def run(*inputs: Any) -> Any:
        if reads_shapes:
            return on_host(*inputs)
        if not call.op.reference and _is_shape_arithmetic(inputs, steering):
            return _kept_small(backend, on_host(*inputs))
        operands = [
            _moved_operand(backend, xp, value, index in steering, index in call.constants)
            for index, value in enumerate(inputs)
        ]
        try:
            return on_device(*operands)
        except AttributeError as error:
            if getattr(error, "obj", None) is not xp:
                raise
            message, hint = lacking(error)
            raise UnsupportedOp(message, hint=hint) from error

    return Kernels(run)


def _is_shape_arithmetic(inputs: Sequence[Any], steering: Sequence[int]) -> bool:
    """Return whether all operands are small integers on the host, from which sizes are computed."""
    given = [value for index, value in enumerate(inputs) if value is not None and index not in steering]
    return bool(given) and all(
        isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biu" and value.size <= SMALL
        for value in given
    )


def _kept_small(backend: CuPy, results: Any) -> Any:
    """Return host-computed results; keep them on the host unless they are large, as from Expand."""
    if isinstance(results, (list, tuple)):
        return [_kept_small(backend, result) for result in results]
    return results if results is None or results.size <= SMALL else backend.to_device(results)


def _moved_operand(backend: CuPy, xp: Any, value: Any, steers: bool, constant: bool) -> Any:
    """Return an operand on the host if it steers the kernel, else on the device."""
    if value is None or isinstance(value, (list, tuple)):
        return value
    if steers:
        return backend.to_host(value)
    if isinstance(value, xp.ndarray):
        return value
    if value.dtype.hasobject:
        raise UnsupportedOp(
            f"{xp.__name__} does not support strings", hint="use --fallback to run this op on NumPy"
        )
    return backend.constant(value) if constant else backend.to_device(value)
