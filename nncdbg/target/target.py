"""The target: what is debugged, as commands and user interfaces see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from nncdbg.comparison.kernels import StatementKernel
from nncdbg.errors import UsageError
from nncdbg.expression import Expression, VisibleValues
from nncdbg.expression.functions import Budget, DerivativeRequest
from nncdbg.ir.records import Array, Program
from nncdbg.stats import Summary
from nncdbg.stats.series import TrackedSeries
from nncdbg.target.records import (
    Branch,
    Buffer,
    Cause,
    Computed,
    DeadUnits,
    Edited,
    Frame,
    GradientCheck,
    GradientStage,
    Memory,
    Message,
    MicroCheck,
    Moment,
    Now,
    Origin,
    Place,
    Setup,
    Stop,
    Stream,
    Suspicion,
    Times,
    Traced,
    ValueState,
    Visit,
)
from nncdbg.target.stops import Stops
from nncdbg.text.listing import Listing
from nncdbg.text.short_names import ProgramNames

if TYPE_CHECKING:
    from nncdbg.target.source import SourceView

Group: TypeAlias = (
    'Literal["operands", "read", "results", "computed", "waiting", "given", "constants", "inputs", "carried",'
    ' "returned"]'
)
"""Values of a frame: the operands of its statement, those that it reads in its blocks too, the results of a
statement, the results so far and those to come in their order, inputs and captured values, constants, inputs,
carried values, what is returned.  Of a state, `computed`, `waiting`, `given` and `constants` have only the
value that the next statement reads."""

Summarize: TypeAlias = "Callable[[Any], Summary | None]"
"""Returns the statistics of a content; None if it is no tensor, or if they would take too long."""


class Scope(VisibleValues, Protocol):
    """The values that expressions see in one frame, at one moment."""

    depth: int
    """The depth of the frame, as in `Frame`."""

    def read(self, text: str, later: Iterable[str] = ()) -> Expression:
        """Parse an expression, in which the names `later` of the user's source may have no value yet.

        Raises ExpressionError.
        """

    def resolve(self, name: str) -> str:
        """Return the full name of a value, given a part of it.  Raises ExpressionError."""

    def aliases(self) -> Mapping[str, str]:
        """Return the names of values in the user's source, each with its value's name."""

    def content(self, name: str) -> Any:
        """Return a value as the program holds it, perhaps on a device.  Raises NotComputed."""

    def previous_content(self, name: str) -> Any:
        """Return the value of the previous iteration or visit, as `content` does.  Raises NotComputed."""

    def loss(self, program: Program) -> str | None:
        """Return the name of the loss that is computed in the nearest frame that has one; None without one.

        It is a scalar result that a ``backward`` line of the program differentiates.
        """

    def derivative(
        self, wanted: DerivativeRequest, vectors: Sequence[Any], budget: Budget | None = None
    ) -> Array:
        """Return a derivative at the values of this moment.

        Raises OperandError if it does not exist, BudgetExceeded, and NotComputed.
        """


class Explanation(Protocol):
    """Why a value is as it is: one search for the origins of its NaN and Inf, at one moment."""

    start: Origin
    """The value in question; of several, the first one."""
    traced: Sequence[Traced]
    """The origins of NaN and Inf, the earliest first."""
    unknown: Sequence[Origin]
    """Bad values with an operand that is no longer in the history."""

    def path(self, depth: int) -> Iterator[Origin]:
        """Yield the values from which it was computed, nearest first, up to `depth` statements away.

        For a value with NaN, Inf or only zeros, these are the values on the path to the origin.
        """

    def troubles(self, origin: Origin) -> set[str]:
        """Return the troubles of a value: `NaN`, `Inf`, or `zeros` for floats that are all 0."""

    def causes(self, origin: Origin) -> Sequence[Cause]:
        """Return why NaN, Inf or zeros originate in a value; none if they do not."""

    def around(self, origin: Origin, pc: int) -> Sequence[Origin]:
        """Return the operands and results of the statement `pc` of the block of a value."""

    def suspicions(self, origins: Iterable[Origin]) -> Sequence[Suspicion]:
        """Return those of the statements that are often mistakes."""


def check_not_ended(target: Target) -> None:
    """Raise UsageError if the program has ended."""
    if target.now.ended:
        raise UsageError("the program has ended", hint="step back, go to a mark, or restart")


def check_past(target: Target) -> None:
    """Raise UsageError if the program cannot go back: it is at its start."""
    if (no_past := target.now.no_past) is not None:
        raise UsageError(no_past[0], hint=no_past[1])


class Target(Protocol):
    """A debugged program.  Frames are numbered from the innermost, from 0.

    A target without an ability refuses it by name, with a UsageError.
    """

    program: Program
    stops: Stops
    """What stops the program."""
    convenience: dict[str, Any]
    """The variables `$x` of expressions by name, without `$`."""
    selected: int
    """The number of the frame that the user has selected; -1 for none, which means the innermost."""

    # -- the program -------------------------------------------------------------------------------

    @property
    def lowered(self) -> Program:
        """The program that runs: with the graphs of ``run`` and ``backward`` lines."""

    @property
    def listing(self) -> Listing:
        """The text of the program that runs, with its lines."""

    @property
    def setup(self) -> Setup:
        """What the program was opened with: its inputs, backend and sizes."""

    def python_names(self) -> Mapping[str, Any]:
        """Return the objects that Python code at the prompt has, by name."""

    def place(self, path: Sequence[str | int], pc: int) -> Place:
        """Return a statement of the program by the path of its block and its number there."""

    def blocks(self, start: int = 0) -> Sequence[Place]:
        """Return the beginnings of the blocks compiled so far, in their order, from number `start` on."""

    def definition(self, block: Place, name: str) -> Place | None:
        """Return the statement that defines the value with a name in a block; None if it is not visible.

        For an input or a constant, return the beginning of the block that has it.
        """

    def names(self, frame: int | None = None) -> ProgramNames:
        """Return the names of the program that a frame belongs to."""

    def place_names(self, kind: str) -> Iterable[str]:
        """Return the names of the ops, graphs, values or nodes of the program."""

    def lines(self, place: str) -> tuple[str, tuple[int, ...]]:
        """Return (kind, lines) of a place of `break`.  Raises UsageError if it does not exist."""

    @property
    def source(self) -> SourceView | None:
        """The user's source, if the program is a recorded step that has it."""

    # -- moving ------------------------------------------------------------------------------------

    @property
    def stop(self) -> Stop:
        """The latest stop; the same object until the program moves."""

    @property
    def now(self) -> Now:
        """The present moment."""

    def run(self, *, heed: bool = True, to: Iterable[int] | Place | None = None) -> Stop:
        """Run until something stops the program; without `heed`, to the end.

        With `to`, run until the statement on one of these lines is next; or, without a stop on the way, until
        the statement of a place is next.  Raises UsageError if the program would end before that place.  This
        and the other moves raise UsageError at the end of the program, or at its start.
        """

    def step_over(self, stream: int | None = None) -> Stop:
        """Execute the next statement, with its calls; with `stream`, up to that of the stream."""

    def step_into(self, *, micro: bool = False) -> Stop:
        """Execute the next statement, or enter its block, and with `micro` its micro program."""

    def step_out(self, *, back: bool = False) -> Stop:
        """Run until the innermost frame returns; with `back`, go back to the statement that began it."""

    def inside(self) -> tuple[bool, CodeType | None]:
        """Return whether the next statement has a micro program, and its kernel if that is in Python.

        Raises GraphError for operands that its op does not accept.
        """

    def step_back(self, *, into: bool = False, micro: bool = False) -> Stop:
        """Undo the last statement of the frame, or with `into` the last one that was executed.

        With `micro`, undo only the return from its micro program.
        """

    def reverse_continue(self) -> Stop:
        """Go back to the previous stop, else to the start."""

    def go_to(self, moment: str | int | Moment = 0, *, line: int | None = None) -> Stop:
        """Go to a mark by name, to the moment after this many statements, or to a moment of a branch.

        With `line` instead, go to its last execution, else run to it.
        """

    def last_visit(self, place: Place) -> int | None:
        """Return the last moment, in statements, at which a statement was next; None if it has not run."""

    def pause(self, on: bool = True) -> None:
        """Stop before the next statement; from any thread.  If not `on`, forget a late pause."""

    def messages(self) -> Sequence[str]:
        """Return the messages of logpoints since the last call."""

    # -- frames and values -------------------------------------------------------------------------

    def frames(self) -> Sequence[Frame]:
        """Return the stack, innermost first."""

    def frame(self, number: int | None = None) -> Frame:
        """Return a frame; by default the selected one.  Raises UsageError if it does not exist."""

    def scope(self, frame: int | None = None, between: Callable[[], None] | None = None) -> Scope:
        """Return the values that a frame sees, by default the selected one.

        `between` is called before each value is read; an exception from it ends the read.
        """

    def value(self, name: str) -> Array:
        """Return a value of the selected frame, read-only.  Raises NotComputed, ExpressionError."""

    def evaluate(self, text: str) -> Any:
        """Return the value of an expression; `$x = EXPR` also defines a variable.  Raises ExpressionError."""

    def host(self, content: Any) -> Any:
        """Return a content on the host."""

    def device(self, content: Any) -> str | None:
        """Return the device of a content; None for the host."""

    def summary(self, content: Any, between: Callable[[], None] | None = None) -> Summary | None:
        """Return the statistics of a tensor that were logged when it was written; None if none are kept.

        With `between`, compute them on the tensor's device, and call it between pieces on the host.
        """

    def cells(self, group: Group, frame: int | None = None, pc: int | None = None) -> Sequence[int]:
        """Return the numbers of values of a frame; `pc` is the statement, by default the next one."""

    def contents(self, numbers: Iterable[int], frame: int | None = None) -> Iterator[Any]:
        """Yield the contents of values of a frame by their numbers, perhaps on a device.

        None stands for a value that is not computed, or no longer valid.
        """

    def state(self, value: str | int, frame: int | None = None) -> ValueState:
        """Return a value by its number in a frame, or by its full name.

        A name is that of this frame or the nearest one around it that has it.  Raises NotComputed if no frame
        has it, ExpressionError if no value has it.
        """

    def visits(self, value: str | Sequence[int], frame: int | None = None) -> Iterator[Visit]:
        """Yield a value at its latest and earlier visits, newest first.  Raises NotComputed.

        Of several values of a frame, by their numbers, yield the earlier visits.  None stands for a content
        that has left the history; the memory of others may have been used again.
        """

    def computed(self, which: str = "", *, latest: bool = True) -> Iterator[Computed]:
        """Yield the computed values in the history that ``@graph``, an op, a value or patterns select.

        With `latest`, only the latest visit of each.  Raises UsageError for an unknown name.
        """

    def set_value(self, name: str, value: Any, index: Any = None, frame: int | None = None) -> Edited:
        """Change a value, or a part of it, and recompute what depends on it.  Raises UsageError."""

    @property
    def outputs(self) -> Mapping[str, Array] | None:
        """The results of the program; None until it has ended."""

    @property
    def states(self) -> Mapping[str, Array]:
        """The present values of the program's states, without those that have no value yet."""

    @property
    def tracks(self) -> Sequence[TrackedSeries]:
        """The numbers of the program's ``track`` lines."""

    # -- moments -----------------------------------------------------------------------------------

    @property
    def marks(self) -> Mapping[str, Moment]:
        """The marks by name."""

    def mark(self, name: str, to: str | None = None) -> None:
        """Name this moment; or with `to` rename a mark, or remove it if `to` is empty.

        Raises UsageError for unknown and for used names.
        """

    def moments(self, branch: int) -> Sequence[Moment]:
        """Return the moments of a branch: its start, checkpoints, edits, marks, and where it is."""

    @property
    def branches(self) -> Mapping[int, Branch]:
        """The branches by number: the original run, and one for each edit."""

    def on_branch(self, name: str, branch: int) -> Array:
        """Return a value on another branch, at the same step.  Raises NotComputed."""

    # -- diagnosis ---------------------------------------------------------------------------------

    def explain(
        self,
        value: str | Sequence[int] | tuple[Place, int | None],
        summarize: Summarize,
        frame: int | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Explanation:
        """Return the explanation of a value by its full name, or of values of a frame by their numbers.

        A statement of the stop's frame and the number of its result mean this result, or with None its
        operands.  `between` is called before each value is read.  Raises NotComputed, ExpressionError.
        """

    def causes(self, between: Callable[[], None] = lambda: None) -> Sequence[Traced]:
        """Return the origins behind the finding that stopped the program, the earliest first."""

    def gradient(self, y: str, xs: Sequence[str]) -> Sequence[GradientStage]:
        """Return the steps of the backward pass from `y` to `xs`.  Raises OperandError."""

    def check_gradient(self, y: str, x: str) -> GradientCheck:
        """Compare the gradient of `y` by `x` with differences in f64.  Raises OperandError."""

    def dead_units(self) -> tuple[int, int, Sequence[DeadUnits]] | None:
        """Return (first step, last step, units) over the steps in the history; None if no step has ended.

        Raises UsageError if no ``run`` line has run.
        """

    @property
    def micro(self) -> MicroCheck | None:
        """The comparison of kernels with micro programs; None without one."""

    # -- measures ----------------------------------------------------------------------------------

    def times(self, on: bool | None = None) -> Times:
        """Return what was measured so far; `on` begins to measure statements, from nothing, or ends it."""

    def memory(self) -> Memory:
        """Return the memory of the run."""

    def buffers(self, value: str | int, frame: int | None = None) -> Iterator[Buffer]:
        """Yield the memory of a value, by name or number, then the values in the history that share it.

        Raises NotComputed.
        """

    def streams(self, frame: int = 0) -> Sequence[Stream]:
        """Return the streams of the schedule at the next statement of a frame; none without a schedule."""

    def kernels(self, *, fallen: bool = False) -> Sequence[StatementKernel]:
        """Return the backend of each statement, or of those that fell back to NumPy so far."""

    def implementation(self, place: Place) -> tuple[str | None, Sequence[str]]:
        """Return the function or library that runs a statement, and the ops of its micro program.

        The function is None for control flow.  There are no ops without a micro program, and if the types of
        operands are not fully known before the run.
        """

    # -- while the program runs --------------------------------------------------------------------

    def listen(self, message: Callable[[Message], None] | None) -> None:
        """Call `message` at once with each message, instead of collecting them; None ends this."""

    def between_statements(self, action: Callable[[], None]) -> None:
        """Run an action before the next statement of a run in progress; from any thread."""
