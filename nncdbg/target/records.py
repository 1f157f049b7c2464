"""What a target tells about a debugged program: frozen records without objects of the engine."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nncdbg.ir.records import Array, Graph, Node, Path, Type
from nncdbg.text.listing import Listing

if TYPE_CHECKING:
    from nncdbg.process.crash_box import CrashBox

Status: TypeAlias = 'Literal["computed", "dropped", "gone", "awaited", "waiting"]'
"""The state of a value: `dropped` to keep within the history budget (it can be computed again), `gone` (its
memory was used again), `awaited` (its op has no kernel, and the user can set it) or `waiting` (not yet).  A
result of the next statement is `computed` once the user has set it."""

Role: TypeAlias = 'Literal["result", "input", "carried", "constant", "captured"]'
"""What makes a value of a frame: a statement, the caller, the loop, the text, an enclosing block."""


@dataclass(frozen=True, slots=True)
class Place:
    """A statement of a block; `pc` is its number in the block, the number of its nodes at the block's end.

    `block` is the same for all places of one compiled block.  `pc` is -1 for the inputs of a block, and
    `line` is then the first line of the block.
    """

    block: int
    path: Path
    pc: int
    graph: Graph = field(repr=False, compare=False)
    listing: Listing = field(repr=False, compare=False)
    """The text that contains the statement: the program, or a micro program."""
    line: int = field(compare=False)
    micro: str | None = field(default=None, compare=False)
    """The op whose micro program contains the statement; None in the program itself."""

    @property
    def node(self) -> Node | None:
        """The statement; None at the end of the block, and for its inputs."""
        return self.graph.nodes[self.pc] if 0 <= self.pc < len(self.graph.nodes) else None

    @property
    def op(self) -> str:
        """The op of the statement, or ``return``."""
        node = self.node
        return node.op if node is not None else "return"

    @property
    def text(self) -> str:
        """The text of the statement in one line, without its indentation."""
        return self.listing.statement(self.line).strip()

    @property
    def location(self) -> tuple[str, int] | None:
        """The file and line of the user's model that the statement comes from."""
        location = self.node.location if self.node is not None else None
        if location is None or not location.file or location.line is None:
            return None
        return location.file, location.line

    @property
    def is_loop(self) -> bool:
        """Whether the block is the body of a loop."""
        return bool(self.graph.inputs) and isinstance(self.path[-1], int)

    @property
    def at_end(self) -> bool:
        """Whether this is the end of the block."""
        return self.pc == len(self.graph.nodes)

    @property
    def first(self) -> int:
        """The first line of the block."""
        first = self.listing.headers.get(self.path)
        return first if first is not None else self.listing.statements[self.path][0]

    def at(self, pc: int) -> Place:
        """Return another statement of the block."""
        if pc == self.pc:
            return self
        line = self.listing.line(self.path, pc)
        return Place(self.block, self.path, pc, self.graph, self.listing, line, self.micro)

    def shares_block(self, other: Place) -> bool:
        """Return whether both are in the same block of the same text, perhaps compiled for other types."""
        return self.path == other.path and self.listing.lines == other.listing.lines


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the stack: the graph, branch or loop that runs there.

    `number` counts from the innermost frame, `depth` from the outermost one, both from 0.
    """

    number: int
    depth: int
    title: str
    """Such as `@layer1`, `@refine #3` or `the then branch`."""
    place: Place
    """The statement that runs next."""
    current: Place
    """The statement of the stop if it has just run in this frame, else the one that runs next."""
    ran: bool
    """Whether `current` has run."""
    visit: Hashable = field(repr=False)
    """Equal for the same call and iteration of a block."""
    entered: int = 0
    """The number of statements before its first one, as in `Now.tick`."""
    iteration: int = 0
    """The iteration of a loop, and the step of a run, from 0."""
    is_loop: bool = False
    is_run: bool = False
    """Whether this is the loop of a ``run`` line."""
    epoch: int | None = None
    times: int | None = None
    """The number of iterations of a loop, if it is fixed."""
    names: Collection[str] = field(default=(), repr=False, compare=False)
    """The names of all its values, in their order."""
    outer: tuple[Graph, ...] = field(default=(), repr=False)
    """The blocks around it in its graph, the nearest first."""
    collected: tuple[Sequence[Any], ...] = field(default=(), repr=False, compare=False)
    """The values that a loop has collected so far, for each of its results; the loop adds to them."""
    types: Mapping[str, Type | None] = field(default_factory=dict, repr=False, compare=False)
    """The types that are known before the run, by name."""
    callees: Mapping[str, Graph] = field(default_factory=dict, repr=False, compare=False)
    """The graphs that its statements can call, by name."""

    @property
    def graph(self) -> Graph:
        """The block that runs."""
        return self.place.graph

    @property
    def graphs(self) -> Sequence[Graph]:
        """The block that runs, and the blocks around it in its graph."""
        return (self.graph, *self.outer)

    @property
    def listing(self) -> Listing:
        """The text that contains the block."""
        return self.place.listing

    @property
    def line(self) -> int:
        """The line of the statement that runs next."""
        return self.place.line

    @property
    def node(self) -> Node | None:
        """The statement that runs next; None at the end of the block."""
        return self.place.node

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the block's inputs; the names of its carried values for a loop."""
        return tuple(value.name for value in self.graph.inputs)

    @property
    def computed(self) -> list[str]:
        """The names of the results so far of the statements of this frame, in their order."""
        nodes = self.graph.nodes[: self.place.pc]
        return [value.name for node in nodes for value in node.outputs if value.name]


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """A call of a function of the user's source, in a recorded step.

    `number` counts from the innermost call.  `names` are the Python names of tensors, each with the name of
    the value that it holds now; in an update, these are the `parameter` and its states.
    """

    number: int
    file: str
    line: int
    function: str
    call: int
    parameter: str = ""
    names: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding that stops the program: a kind of `catch`, and a description.

    `output` is the number of the affected result, None for an operand; `operand` is its name if only one
    operand is concerned.  `place` is the statement.
    """

    kind: str
    detail: str
    place: Place
    output: int | None = 0
    operand: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """The reason and place of a stop; equal only to itself.

    `reason` is entry, breakpoint, step, data, exception, goto, pause or end.  `node` and `line` are the
    statement concerned: the next one, or for `data` and `exception` the one just run.  A statement that
    failed has an `error`, and a `finding` if one about its operands is caught.
    """

    reason: str
    place: Place | None
    """The place of the frame of the stop; None at the end."""
    node: Node | None
    line: int | None
    detail: str = ""
    breakpoints: tuple[int, ...] = ()
    finding: Finding | None = None
    error: BaseException | None = None
    shows_values: bool = False
    """Whether `node` has run, and the stop shows its operands and results."""

    @property
    def op(self) -> str | None:
        """The op of the statement concerned; None at the end of a graph."""
        return self.node.op if self.node is not None else None

    @property
    def finding_text(self) -> str:
        """The text about the finding: `detail`, unless this is about the error."""
        return self.detail if self.finding is None or self.error is None else self.finding.detail


@dataclass(frozen=True, slots=True)
class ValueState:
    """A value of a frame, or an operand without a name, at this moment.

    `number` identifies it among the values of the frame, also of a state that the block defines several
    times.  `content` is that of a `computed` value, perhaps on a device (see `Target.host`), and of one that
    is `gone`, of which only type and shape are valid; None for others.  `reason` is why there is none.
    """

    name: str
    number: int
    status: Status
    content: Any = field(repr=False)
    role: Role
    place: Place
    """The statement that computes it; with `pc` -1, the beginning of the block."""
    type: Type | None = None
    """The type that is known before the run."""
    reason: str = ""
    present: bool = True
    """False for an earlier value of a state."""
    whole: bool = True
    """False if some elements of the content were never written."""
    depth: int | None = None
    """The depth of its frame, as in `Frame`; None for a value of a frame that was left."""


@dataclass(frozen=True, slots=True)
class Now:
    """The present moment: after `tick` statements of `branch`.

    `replayed` statements ran again to go back.  The history begins after `floor` statements, `undoable` of
    them can be undone without a replay.  `last_edit` is the moment of the last value set by hand, -1 if none.
    """

    branch: int
    tick: int
    ended: bool
    replayed: int
    floor: int
    undoable: int
    last_edit: int
    settled: bool = True
    """Whether values can be read and set; False on the way to another moment."""
    paused: bool = False
    """Whether a pause was requested, which takes effect before the next statement."""
    no_past: tuple[str, str] | None = None
    """Why the program cannot go back, and a hint; None if it can."""
    left_micro: bool = False
    """Whether the last statement ended a micro program that was stepped into."""
    done: tuple[int, int] = (0, 0)
    """The statements of the outermost block before the next one, and all of them."""
    problems: Sequence[str] = ()
    """The failures of listeners so far."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a branch, after `tick` statements, with the name of a mark, a value or a micro program.

    `kind` is start, checkpoint, micro, edit, mark, left or now; `place` is the next statement, if known.
    """

    branch: int
    tick: int
    name: str = ""
    kind: str = "mark"
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A run of the program, which split from its parent after `since` statements, and is now after `tick`.

    `ahead` are the edits that take effect later.
    """

    number: int
    parent: int | None
    since: int
    title: str
    tick: int
    current: bool
    ahead: tuple[Moment, ...] = ()


@dataclass(frozen=True, slots=True)
class Edited:
    """A value that was set: on a new `branch`, whose parent is unchanged.

    `branch` is None if the value is a result of the next statement (of `line`), whose op has no kernel.
    `sentences` are about decisions and values that do not change.
    """

    branch: int | None
    parent: int | None
    line: int | None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Computed:
    """The latest value of a statement's result in the history; `content` is None if it was `dropped`."""

    name: str
    place: Place
    content: Any = field(repr=False)
    """As the program holds it, perhaps on a device."""
    dropped: bool = False
    from_kernel: bool = True
    """Whether an op computes it; else it is a result of a call or of control flow."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The memory of a value: its `address` and `size`, the `type`, and whether it is still valid.

    `address` is None for a value that is not a NumPy array; `gone` is why it is no longer valid.
    """

    name: str
    role: Role
    place: Place
    type: str
    address: int | None = None
    size: int = 0
    gone: str | None = None
    relation: str = ""
    """How its memory relates to that of another value: the same elements, or overlapping bytes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a run in bytes: `results`, and `workspaces` of kernels by purpose.

    `streams` are the bytes of results in the frames by stream; None without a schedule.
    """

    allocator: str
    results: int
    workspaces: Mapping[str, int]
    total: int
    budget: int
    streams: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class AwaitedEvent:
    """An event that a statement waits for; `place` records it, None if that is in another block."""

    number: int
    place: Place | None
    reached: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a schedule, -1 for the host: its next statement here, None at its end."""

    number: int
    name: str
    device: str
    place: Place | None
    events: tuple[AwaitedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class StatementTime:
    """The times of a statement in nanoseconds; a call, branch or loop has the kernels inside it.

    `nonfinite` is how often its results had NaN or Inf in one run, None if that was not counted.
    """

    place: Place
    calls: int
    total: int
    least: int
    median: int
    runs_kernel: bool
    types: Mapping[str, Type | None] = field(repr=False)
    """The types of the values of its block that are known before the run."""
    nonfinite: int | None = None


@dataclass(frozen=True, slots=True)
class BlockTime:
    """The nanoseconds of all kernels inside a block, and the number of its executions."""

    place: Place
    calls: int
    total: int


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """One execution of a statement or block, or one iteration of a loop, in nanoseconds of the clock.

    `kernel` is the begin and end of the kernel, which runs on `stream`; None if none ran.  `is_run` marks the
    steps of a ``run`` line.
    """

    place: Place
    begin: int
    end: int
    kernel: tuple[int, int] | None = None
    stream: int = 0
    is_block: bool = False
    iteration: int | None = None
    is_run: bool = False
    types: Mapping[str, Type | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Times:
    """What was measured: nanoseconds in `kernels` and `around` them; `executed` counts statements."""

    on: bool
    executed: int
    kernels: int
    around: int
    statements: Sequence[StatementTime]
    blocks: Mapping[Path, BlockTime]
    entry: Path


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a NaN, Inf or zeros originate in a value, with a `hint`.

    `kind` is NaN, Inf, zeros, or that of another finding.  `inside` is the op of the micro program where they
    originate.  `intentional`: the op defines this result, or the program uses it as a mask.
    """

    kind: str
    name: str
    evidence: str
    hint: str
    inside: str = ""
    intentional: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """A value from which another one was computed, `distance` statements away.

    `visit` is the same for the values of one frame or iteration.  `content` is None if it is not `available`,
    for a `reason`.
    """

    name: str
    number: int
    place: Place
    role: Role
    iteration: int | None
    visit: int
    distance: int
    content: Any = field(repr=False)
    available: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Traced:
    """An origin of NaN or Inf: the statement at `place`, or a value that was bad from the start.

    `value` is the name of the value.  `entered` describes such a value, `used` is the first statement that
    reads it.
    """

    origin: Origin
    place: Place
    value: str
    cause: Cause
    entered: str = ""
    used: Place | None = None


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A statement on the path of a value that is often a mistake, for the reason in `words`."""

    origin: Origin
    words: str


@dataclass(frozen=True, slots=True)
class DeadUnits:
    """The units of an activation in some steps: `dead` of `units` were flat for all `samples`.

    `calls` are the statements that call its graph, outermost first; `flat` are the results of a dead unit.
    """

    name: str
    place: Place
    calls: tuple[Place, ...]
    dead: int
    units: int
    flat: tuple[float, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class GradientStage:
    """The gradient of a statement after it has run: the cotangents that it has changed, by name.

    `where` is the line, as ``line 4``; empty for statements outside of the listing.
    """

    where: str
    text: str
    cotangents: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Slope:
    """The derivative at one element (None: along a random direction): by the rules and by differences."""

    index: tuple[int, ...] | None
    gradient: float
    numeric: float
    below: float
    above: float
    difference: float
    relative: float


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The comparison of a gradient with differences, for a value of `type`; `kinks` are not compared."""

    type: Type | None
    ok: bool
    smooth: tuple[Slope, ...]
    kinks: tuple[Slope, ...]
    worst: Slope | None


@dataclass(frozen=True, slots=True)
class MicroCheck:
    """The comparison of kernels with micro programs: its coverage, and the latest disagreement.

    `name` and `content` are the value and what the micro program computes for it.
    """

    coverage: str
    counts: Mapping[str, Any]
    name: str | None = None
    content: Array | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What the program was opened with: `dims` are sizes by name, without those that were assumed.

    `inputs` are arrays by name, and `given` those inputs that were given, as they were given.
    """

    inputs: Mapping[str, Any] = field(repr=False)
    backend: str
    on_host: bool
    allocator: str
    seed: int
    dims: Mapping[str, int]
    given: Mapping[str, Any] = field(repr=False)
    notes: tuple[str, ...]
    """The choices for sizes and inputs that were not given."""
    files: tuple[str, ...] = ()
    """The files with data of the program."""
    reuses_memory: bool = False
    """Whether memory is used again, so that the content of a value changes."""
    facts: tuple[tuple[str, tuple[str, str] | None], ...] = ()
    """The `notes` without hints, with the kind (``input`` or ``dim``) and name of what was not given."""
    crash_box: CrashBox | None = field(default=None, repr=False)
    """Records the running kernel, in case it ends the process."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a logpoint, or about values that are set again, and the place of the program then.

    `line` is that of the statement that it is about; None for one about the run.
    """

    text: str
    place: Place
    line: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedBlock:
    """A finished visit of a block: a layer or branch that has returned, or an iteration.

    `calls` are the statements that led to it, as (block, pc), outermost first; `path` is its own block.
    `results` yields (pc, first result), perhaps on a device, of its statements in the order of the program.
    """

    calls: tuple[tuple[Path, int], ...]
    path: Path
    results: Iterator[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Visit:
    """A value at one visit of its statement, or several values of one block.

    `step` is that of the run, None outside of one.  `content` is on the host; of several values it is a tuple
    as `Target.contents` returns it.  `tick` is the moment before the end of the visit.
    """

    step: int | None
    content: Any
    tick: int | None = None
