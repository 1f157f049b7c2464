"""The run configuration: one record with a field for each setting of a run.

The flags of the command line, the keys of a launch configuration and the parameters of `Debugger` are views
of this record.  `nncdbg --help` reads it, so it imports no heavy modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from nncdbg.extensions import BACKENDS, BUILT_IN

INPUT_FORMS = (
    "FILE.npy, FILE.npz:KEY, FILE.png:STEPS, a number or list, or zeros|ones|normal|uniform|arange[SIZES]"
)

T = TypeVar("T", bound="RunConfiguration")


_BACKENDS = tuple(BUILT_IN[BACKENDS])


class Setting(NamedTuple):
    """The spelling and description of a field of the run configuration.

    `help` describes the flag, and the key of a launch configuration unless there is a `description`.
    `parameter` is the name of the Python function that accepts the field; "" if none does.
    """

    help: str
    metavar: str | None = None
    flag: str = ""
    """The flag, if it is not the field's name with dashes."""
    shown_default: str = ""
    """The default to show, if the record's value does not show it."""
    key: str = ""
    """The key of a launch configuration, if it is not the field's name in camel case."""
    description: str = ""
    values: tuple[str, ...] = ()
    extensible: bool = False
    """Installed packages may add values."""
    parameter: str = "Debugger"


def _setting(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    metadata = {"setting": Setting(help, metavar, **more)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


_NO_FLAG = ("program", "folder")
"""Fields without a flag: the positional argument, and the current folder."""

_run_setting = partial(_setting, parameter="run")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """How a program is opened and run.

    `given` has the names of the fields set by the user; a recording or a program folder supplies the others.
    """

    program: str = _setting(
        "",
        "a graph: FILE.onnx, FILE.nnc (graph text), FILE.pt2, a folder that nncdbg wrote, or MODULE:FUNCTION",
        "MODEL",
        description=(
            "Path of the model: an .onnx file, graph text (.nnc), a .pt2 file or a folder that nncdbg wrote, "
            "or `module:function`, a Python function that returns a program."
        ),
    )
    inputs: dict[str, Any] = _setting(
        dict,
        INPUT_FORMS,
        "NAME=DATA",
        flag="--input",
        description=(
            "Inputs by name. A value can be a file (x.npy, batch.npz:key, photo.png:/255,resize), a number, "
            "a list or a generator (zeros, ones, normal, uniform, arange). "
            "nncdbg chooses missing inputs at random from the seed."
        ),
    )
    dims: dict[str, int] = _setting(
        dict, "set a symbolic size", "NAME=SIZE", flag="--dim", description="Symbolic sizes, by name."
    )
    seed: int = _setting(0, "seed for random inputs and random ops")
    backend: str = _setting(
        "numpy",
        f"{', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}",
        description="The backend that runs the ops.",
        values=_BACKENDS,
        extensible=True,
    )
    fallback: bool = _setting(False, "use NumPy for ops without a kernel in the backend")
    kernels: dict[str, str] = _setting(
        dict,
        "run an op, value or line on another backend, such as Conv=torch",
        "OP|%VALUE|LINE=BACKEND",
        flag="--kernel",
        description=(
            "The backends of single statements, by op (Conv), value (%h, @layer.%h) or line: "
            'for example {"Conv": "torch"}.'
        ),
    )
    kernel_file: str | None = _setting(
        None,
        "read the kernels of statements from a file that `nncdbg autotune` wrote",
        "FILE",
        flag="--kernels",
        description="A file that `nncdbg autotune` wrote, with the backends of statements.",
        parameter="read_kernels",
    )
    op_libraries: list[str] = _setting(
        list,
        "Python file with custom kernels",
        "FILE.py",
        flag="--op-library",
        key="opLibrary",
        description="Python files that register kernels of custom ops.",
        parameter="load_op_library",
    )
    allocator: str | None = _setting(
        None,
        "debug, arena, poison or plain",
        shown_default="debug; plain on a device",
        description="debug fills memory with NaN and never reuses it. arena reuses memory, as in production.",
        values=("debug", "arena", "poison", "plain"),
    )
    outputs: list[str] = _setting(
        list,
        "compute only this value, with the statements that it needs",
        "VALUE",
        flag="--output",
        description="Compute only these values: the other statements do not run.",
    )
    history: str | int | None = _setting(
        None, "memory for old values, such as 4GiB", "BYTES", shown_default="a quarter of RAM"
    )
    max_ops: int | None = _setting(
        None,
        "stop after N statements",
        "N",
        description="End the run after this many statements.",
    )
    in_place_states: bool = _setting(
        False,
        "overwrite the old value of a state at its update, as training runtimes do",
        description=(
            "An `update` overwrites the memory of the old value of a state, as in training runtimes. "
            "Later reads of the old value are findings. The allocator is arena or poison."
        ),
    )
    check: str | None = _setting(
        None,
        "micro: compare each kernel with its micro program (slow)",
        description="micro compares each kernel with its micro program.",
        values=("micro",),
    )
    flat: bool = _setting(False, "show one graph instead of layers", parameter="load")
    training: bool = _setting(False, "open the training that an ONNX model contains", parameter="load")
    stores: list[str] = _setting(
        list,
        "additional folder for the weights of graph text",
        "DIR",
        flag="--allow-store",
        key="allowStores",
        description="More folders from which graph text may read weights.",
        parameter="load",
    )
    order: int | None = _setting(
        None,
        "play the order of a schedule that this seed draws",
        "N",
        description=(
            "Debug an order of a program with a schedule: the legal order that this seed draws, "
            "as `nncdbg races --order` plays it."
        ),
        parameter="in_order",
    )
    steps: int | None = _setting(
        None,
        "end each run of a training after N steps",
        "N",
        description="End each `run` of a training after this many steps.",
        parameter="load",
    )
    tracks: dict[str, str] = _setting(
        dict,
        "track a number per step of a training, such as 'acc=mean(%hit)'",
        "NAME=EXPR",
        flag="--track",
        key="track",
        description="Numbers to track in each step of a training: expressions by name.",
        parameter="load",
    )
    states: str | None = _setting(
        None,
        "first values of the states, from a .safetensors file or an ONNX model",
        "FILE",
        description="A .safetensors file or an ONNX model with first values of the states.",
        parameter="load_states",
    )
    strict_states: bool = _setting(
        False,
        "fail unless FILE and program have the same states",
        description="Fail unless the file of `states` and the program have the same states.",
        parameter="load_states",
    )
    record: str | None = _setting(
        None,
        "record the session in FILE: setup, commands and stops",
        "FILE",
        description="Record the session in this file. `nncdbg replay FILE` compares stops and results.",
        parameter="",
    )
    journal: str | None = _run_setting(
        None,
        "write the run of a training to this journal",
        "FILE",
        description=(
            "Write the run of a training to this journal: its results, and checkpoints at which it can be "
            "opened again."
        ),
    )
    checkpoint_every: str | None = _run_setting(
        None,
        "distance of checkpoints: 50 (steps), 3epochs or 30s",
        "N",
        shown_default="60s",
        description="The distance of two checkpoints: 50 (steps), 3epochs or 30s.",
    )
    checkpoint_budget: str | None = _run_setting(
        None,
        "size of the checkpoints of a run; older ones are thinned out",
        "BYTES",
        shown_default="4GiB",
        description="The size of the checkpoints of a run, such as 2GiB. Older ones are thinned out.",
    )
    journal_statistics: bool = _run_setting(
        False,
        "write the statistics of each value of each step to the journal",
        description="Write the statistics of each value of each step to the journal.",
    )
    journal_values: list[str] = _run_setting(
        list,
        "keep the values with this name in the journal, such as '@loss.%z' or '%w*'",
        "PATTERN",
        description="Values to keep in the journal for history: names such as @loss.%z, with * and ?.",
    )
    journal_values_every: str | None = _run_setting(
        None,
        "distance of kept values: 50 (steps), 3epochs or 30s",
        "N",
        shown_default="1",
        description="The distance of two steps whose values are kept: 50 (steps), 3epochs or 30s.",
    )
    journal_codec: str | None = _run_setting(
        None,
        "exact, f16 or blocks: how kept values are stored",
        "CODEC",
        shown_default="exact",
        description=(
            "How kept values are stored: exact, f16 (2 bytes per element) or blocks (half a byte per "
            "element). Checkpoints are always exact."
        ),
        values=("exact", "f16", "blocks"),
    )
    on_journal_error: str | None = _run_setting(
        None,
        "warn or stop: what the run does if its journal cannot be written",
        "ACTION",
        shown_default="warn",
        description=(
            "If the journal cannot be written, for example because the disk is full: `warn` reports it at "
            "once and continues, `stop` also stops the program."
        ),
        values=("warn", "stop"),
    )
    note: str | None = _run_setting(
        None,
        "remark on the run, for its journal",
        "TEXT",
        description="A remark on the run, for its journal.",
    )
    fork: bool = _run_setting(
        False,
        "start a new run at the step of a journal; the old run stays",
        description="Start a new run at the step of a journal. The old run stays.",
    )
    changes: dict[str, Any] = _run_setting(
        dict,
        "set a value of a fork: an attribute of the optimizer, a state or an input",
        "NAME=VALUE",
        flag="--set",
        key="set",
        description="Values of a fork by name: attributes of the optimizer, states or inputs.",
    )
    fork_program: str | None = _run_setting(
        None,
        "run this edited program in a fork; its states fit those of the run",
        "FILE",
        flag="--program",
        description=(
            "An edited program for a fork, relative to `cwd`. Its states have the names, types and shapes of "
            "the run's."
        ),
    )
    resume: bool = _run_setting(
        False,
        "continue a run of a journal that did not end, from its last checkpoint",
        flag="--continue",
        key="continue",
        description="Continue a run of a journal that did not end, as a fork from its last checkpoint.",
    )
    folder: str | None = _setting(
        None,
        "folder for listings, and base of relative paths",
        key="cwd",
    )
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def forks(self) -> bool:
        """Whether a run in a journal is forked or continued."""
        return self.fork or self.resume or bool(self.changes)

    def completed(self: T, base: Mapping[str, Any]) -> T:
        """Return the configuration with the values in `base` of fields that are not given.

        `inputs` and `dims` are completed by name.
        """
        missing = {name: value for name, value in base.items() if name not in self.given}
        for name in {"inputs", "dims"} & base.keys():
            own = {key.removeprefix("%"): value for key, value in getattr(self, name).items()}
            missing[name] = {**base[name], **own}
        return replace(self, **missing, given=self.given | missing.keys())


@cache
def settings() -> dict[str, tuple[Field[Any], Setting]]:
    """Return each field of the run configuration, by name, with its spellings."""
    found = {}
    for part in fields(RunConfiguration):
        if "setting" in part.metadata:
            setting: Setting = part.metadata["setting"]
            first, *words = part.name.split("_")
            flag = setting.flag or ("" if part.name in _NO_FLAG else "--" + "-".join((first, *words)))
            key = setting.key or first + "".join(map(str.capitalize, words))
            found[part.name] = part, setting._replace(flag=flag, key=key)
    return found
