"""The driver: what the rest of Flambeau asks of hardware, real or virtual, and the records it uses.

A driver holds no current device, no cache, no flag, no generator. Stream and event handles are opaque
ints, unique across devices (the default streams' too). Device addresses are ints; host memory crosses
as `HostMemory`, so that a queue keeps it alive. Each call's contract is its docstring, and
`flambeau.testing.conformance` has a test of the same name for each, which runs against every driver.

Errors: `OutOfMemoryError`, `DriverError`, `NotSupportedError` (a capability that this driver lacks).
A call that raises changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flambeau.core.dtype import dtype
from flambeau.core.frozen import Record, Value
from flambeau.core.meta import Meta


class PinnedMemoryObserver(Protocol):
    """Notified by virtual GPUs of what commands do to pinned memory. It must make no driver call and not raise."""

    def about_to_use(self, memory: HostMemory, /) -> None:
        """A command is about to read or write these bytes."""

    def on_change(self, memory: HostMemory, /) -> None:
        """The machine may have changed these bytes: a command has run, or they were poisoned."""


class HostMemory:
    """Host bytes for a copy.

    Attributes:
        ptr: Host address.
        nbytes: Size in bytes.
        owner: The object that keeps them alive.
        pinned: Whether they are page-locked.
        awaited: Whether the host waits for the copy before the program goes on.
        watch: Whom a virtual GPU notifies of what it does to pinned bytes; set by observers.
    """

    __slots__ = ("awaited", "nbytes", "owner", "pinned", "ptr", "watch")

    def __init__(
        self, ptr: int, nbytes: int, owner: object, pinned: bool = False, awaited: bool = False
    ) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.owner = owner
        self.pinned = pinned
        self.awaited = awaited
        self.watch: PinnedMemoryObserver | None = None

    def part(self, offset: int, nbytes: int) -> HostMemory:
        """`nbytes` bytes from `offset` on, of the same owner."""
        return HostMemory(self.ptr + offset, nbytes, self.owner, self.pinned)


class DeviceProperties(Value):
    """What a program may know of a device. Sizes in bytes, clock in kHz as CUDA gives it."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_multiprocessor: int = 102400
    L2_cache_size: int = 0
    clock_rate: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    uuid: str = ""
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0


Body = Callable[..., None]
"""A host body, specialised for one launch: `body(outputs, inputs)`, two lists. Outputs are NumPy arrays
to write; inputs are NumPy arrays, or the Python scalar where the launch's input is a dtype. It keeps neither
list, and runs with NumPy's floating-point warnings off."""


AUTOCAST = "autocast"
"""The name of the kernel that casts a weight for autocast, which keeps the result for all streams."""


class Kernel(Record):
    """Something a device can run, not yet specialised to shapes and dtypes.

    `host` is its meaning: given a launch it returns the body that the CPU and the virtual GPU run and
    that every other form is tested against. It is called once per plan, so it decides all that shape and
    dtype decide (casts, axes, temporary types), and the body it returns does the arithmetic alone.
    `flops` counts floating-point operations of one launch; bytes moved follow from its operands. `rate`
    names the arithmetic that does them, hence a device's peak rate: "float32", "tf32", "float64", ...
    `draws`: its first two scalars are a random generator's seed and offset, which each launch of a graph sets anew.
    `touches`: the operand of which a launch touches only the places that other operands name; None for no operand.
    """

    name: str
    host: Callable[[Launch], Body]
    flops: Callable[[Launch], int] = lambda launch: 0
    cycles: Callable[[Sequence[Any]], int] | None = None  # of a kernel that only spends time: from scalars
    rate: Callable[[Launch], str] = lambda launch: output_rate(launch)
    cuda: CudaForm | None = None  # what real GPUs run; None: no form yet, and `load` says so
    draws: bool = False
    touches: Callable[[Launch], Touches | None] = lambda launch: None


class Touches(Record):
    """The operand of which a launch touches only the places that other operands, indices or masks, name.

    Attributes:
        target: True if the operand is what the launch changes: the first output, where it is in place, that is, at the
            address of the first input. False if it is the first input, which the launch reads.
        indices: Positions among the inputs of the operands that name the places.
        places: Function of the arrays of `indices`; returns what selects the places of an array that has the operand's
            shape, (1,) for no dimensions. Raises IndexError or RuntimeError for indices out of range.
        reads: True if a target's places are read as well as written.
        rewrites: True if the launch reads and writes back all of the target, although only its places change.
    """

    target: bool
    indices: tuple[int, ...]
    places: Callable[[Sequence[Any]], Any]
    reads: bool = False
    rewrites: bool = False


# -- CUDA forms: how a real GPU runs a kernel. Text is C++ in the vocabulary of driver/cuda/include/prelude.cuh -------


Steps = tuple[dtype, ...]
"""Dtypes that a value is converted through, one after the other; () leaves it as it is."""


class Expression(Record):
    """A pointwise kernel: the one output's element from the inputs' elements at the same place.

    text: an expression of the inputs a, b, c, ... (T is the type of a), of the constants k0, k1, ..., and, where
        `indexed`, of the element's row-major index i. Of the launch if it depends on static params.
    kinds: the steps of each input before the expression, and of its value before the store.
    constants: numbers that the params give; passed by value, so that they cost no compilation.
    header: the file of driver/cuda whose functions it calls, without its ending. functions: more of them, as text.
    """

    text: str | Callable[[Launch], str]
    kinds: Callable[[Launch], tuple[tuple[Steps, ...], Steps]] = lambda launch: (
        ((),) * len(launch.inputs),
        (),
    )
    constants: Callable[[Launch], Sequence[float]] = lambda launch: ()
    indexed: bool = False
    header: str = ""
    functions: str = ""


class Expressions(Record):
    """Several pointwise kernels over the same inputs as one, which reads them once: an expression for each output.

    The outputs have one shape and one layout. None is `indexed` or has constants.
    """

    each: tuple[Expression, ...]


class Fold(Record):
    """A reduction over dims: each element is lifted, states are joined, the last one is lowered.

    Inputs have one shape. dims: those reduced. steps: of an element x before it is lifted, and of y, z, w, v at the
    same place of further inputs; T is the type that x then has.
    state: the C++ type that is folded. start: the state of no elements. lift: of x at place i of the reduced
    elements. join: of states a and b, in any order. lower: one expression per output, of the state s and the
    number n of elements. constants: k0, k1, ... as of an Expression. first: all of these may name `first`, the x at
    place 0 (T{} where there is none).
    """

    dims: Callable[[Launch], tuple[int, ...]]
    steps: Callable[[Launch], Steps]
    state: str
    start: str
    lift: str
    join: str
    lower: tuple[str, ...]
    constants: Callable[[Launch], Sequence[float]] = lambda launch: ()
    first: bool = False


class Scan(Record):
    """A running fold of the one input along a dim: each output holds the elements up to its place, joined.

    dim: along which. steps, state, lift: as of a Fold. join: of states a and b, whose places follow a's. lower: one
    expression per output, of the state s. long: the join is much code, so that it is called, not repeated.
    """

    dim: Callable[[Launch], int]
    steps: Callable[[Launch], Steps]
    state: str
    lift: str
    join: str
    lower: tuple[str, ...]
    long: bool = False


class Source(Record):
    """A kernel `run` in full. Its parameters: a pointer per operand, the scalars, the constants k0, k1, ...

    text: of the launch; `types` O0, O1, ... and I0, I1, ... name the operands' element types. Scalars come as
    double, long long, unsigned long long or c128, constants as double where they are floats, else long long.
    grid, block: threads. header: the file of driver/cuda whose functions it calls, without its ending.
    """

    text: Callable[[Launch], str]
    grid: Callable[[Launch], int]
    block: int = 256
    constants: Callable[[Launch], Sequence[float]] = lambda launch: ()
    header: str = ""


class Routine(Record):
    """A library's routine, by the name that driver/cuda knows it by."""

    name: str


class Lists(Record):
    """A pointwise kernel over lists of tensors, every tensor in one launch. Operands come list after list.

    count: tensors per list. text: C++ statements of the lists' elements x0, x1, ... (of type T) and of the scalars s0,
    s1, ... (doubles), and an expression per output list. kind: the dtype T, by name. flag: the last expression is a
    condition; the last operands, of one float32 each, are a number before and after, 1 where it holds somewhere.
    """

    count: Callable[[Launch], int]
    text: Callable[[Launch], tuple[str, tuple[str, ...]]]
    kind: Callable[[Launch], str]
    flag: bool = False


CudaForm = Expression | Expressions | Fold | Scan | Source | Routine | Lists


class Launch(Record):
    """All that is known of a launch before its addresses: one per plan, loaded once.

    `outputs` are written; `inputs` are read, as the kernel sees them (broadcast: stride 0). An input that
    is a dtype is a scalar passed by value; `object` is a Python object that a host body alone uses. An
    output that is read as well (in-place accumulation) is in `updates`. `params` are static and hashable:
    dims, flags, modes. `capability` is the compute capability of the GPU that loads it, filled in by the
    driver; None on the CPU.
    """

    kernel: Kernel
    outputs: tuple[Meta, ...]
    inputs: tuple[Meta | dtype | type[object], ...]
    params: tuple[Any, ...] = ()
    updates: bool = False
    capability: tuple[int, int] | None = None

    @property
    def operands(self) -> tuple[Meta, ...]:
        """Metas of the addresses of a launch, in their order: outputs, then inputs that are tensors."""
        return self.outputs + tuple(x for x in self.inputs if isinstance(x, Meta))

    @property
    def nbytes(self) -> int:
        """Bytes that the launch moves at least: each element of each operand once."""
        return sum(distinct_bytes(meta) for meta in self.operands)


_RATE_OF_PART = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def output_rate(launch: Launch) -> str:
    """The arithmetic of the first output's dtype; integers and booleans count as float32."""
    if not launch.outputs:
        return "float32"
    kind = launch.outputs[0].dtype
    name = _RATE_OF_PART.get(kind.name, kind.name)
    return name if kind.is_floating_point or kind.is_complex else "float32"


def distinct_bytes(meta: Meta) -> int:
    """Bytes of the distinct elements of a layout: expanded dimensions count once."""
    count = meta.itemsize
    for size, stride in zip(meta.shape, meta.strides, strict=True):
        count *= 1 if stride == 0 and size else size
    return count


class Executable:
    """A loaded launch. Drivers subclass it with what they prepared."""

    __slots__ = ("index", "launch")

    def __init__(self, launch: Launch, index: int) -> None:
        self.launch = launch
        self.index = index


Dtype = dtype  # where a field has that name


class PreMul(Value):
    """An op: the sum of the ranks' numbers, each multiplied by its rank's factor first, in their dtype's arithmetic."""

    factor: float

    def __str__(self) -> str:
        return f"sum of {self.factor:g} times each"


class Collective(Value):
    """One member's part in a collective operation of a communicator, or its end of a message to a peer.

    kind and what `count`, elements of `dtype`, means:

    ==============  =========================  =========================  =======
    kind            reads at source            writes at target           peer
    ==============  =========================  =========================  =======
    all_reduce      count                      count                      -
    broadcast       count (the root)           count                      root
    reduce          count                      count (the root)           root
    all_gather      count                      count * size               -
    reduce_scatter  count * size               count                      -
    send            count                      -                          to whom
    recv            -                          count                      from whom
    ==============  =========================  =========================  =======

    target and source may be the same address where NCCL allows it (in place); 0 where nothing is read or written.
    op: "sum", "prod", "min", "max" or "avg" of the reducing kinds; of real floating-point numbers a PreMul, too, whose
    factor may differ from rank to rank.
    """

    kind: str
    target: int
    source: int
    count: int
    dtype: dtype
    op: str | PreMul = "sum"
    peer: int = -1

    def __init__(  # each collective of a program makes one: written out it takes a third of the time
        self,
        kind: str,
        target: int,
        source: int,
        count: int,
        dtype: Dtype,
        op: str | PreMul = "sum",
        peer: int = -1,
    ) -> None:
        vars(self).update(kind=kind, target=target, source=source, count=count, dtype=dtype, op=op, peer=peer)


Launcher = Callable[[Sequence[int], Sequence[Any], int], None]
"""`launcher(ptrs, scalars, stream)`: see `Driver.launcher`."""


class Driver(Protocol):
    """Some 40 calls, in families; `noun_verb`. `index` is a device, `stream` and `event` are handles."""

    name: str
    observes_blocks: bool  # whether block_alloc and block_free want to be called
    runs_bodies: bool  # whether a launch runs its kernel's host body, on the data

    # -- devices ------------------------------------------------------------------------------------
    def device_count(self) -> int:
        """How many devices there are. Creates no context."""
        ...

    def device_properties(self, index: int) -> DeviceProperties:
        """The properties of a device. Creates no context."""
        ...

    def device_sync(self, index: int) -> None:
        """Wait on the host until all work of all streams of the device is done; releases the GIL."""
        ...

    def mem_info(self, index: int) -> tuple[int, int]:
        """(free, total) bytes of the device's memory."""
        ...

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        """(process id, bytes) of each process that uses the device's memory. NotSupportedError if nobody knows."""
        ...

    def close(self) -> None:
        """Finish all work and give everything back. Every later call raises DriverError."""
        ...

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        """The address of `nbytes` new bytes, aligned to 512. OutOfMemoryError leaves all as it was."""
        ...

    def mem_free(self, ptr: int) -> None:
        """Give back an address that mem_alloc returned. Waits for the device's work first, as cudaFree does."""
        ...

    def range_page(self, index: int) -> int:
        """Bytes that the four calls below count in. 0: the device has no such calls, which raise NotSupportedError."""
        ...

    def range_reserve(self, index: int, nbytes: int) -> int:
        """The first of `nbytes` addresses that nothing else gets, without memory. OutOfMemoryError: none are left."""
        ...

    def range_map(self, ptr: int, nbytes: int) -> None:
        """Put new memory behind reserved addresses that have none. OutOfMemoryError leaves all as it was."""
        ...

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        """Wait for the device's work, then take away memory: what one range_map put there, or several side by side."""
        ...

    def range_release(self, ptr: int) -> None:
        """Give back addresses from range_reserve; none may have memory."""
        ...

    def host_alloc(self, nbytes: int) -> HostMemory:
        """New pinned host memory, aligned to 64; every device's copies may use it asynchronously."""
        ...

    def host_free(self, memory: HostMemory) -> None:
        """Give back what host_alloc returned. Waits for all devices' work first, as cudaFreeHost does."""
        ...

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        """Return True if there are bytes and all are page-locked: by host_alloc, or on real GPUs by other libraries."""
        ...

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        """Say that the host reads or writes host bytes now. For observers; a driver may do nothing."""
        ...

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Say that another object shows host bytes while `view` lives; None: for ever. For observers.

        `what` is the call by which the program got it, as "numpy()". `view` can be weakly referenced. A tensor over the
        bytes that another object shows says so too, by "from_numpy()" or the like.
        """
        ...

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        """Say that an allocator hands out part of its memory, to a stream (0: host memory).

        `written`: by the launch that comes next, from the same line of the program. Called where `observes_blocks`.
        `pool`: which of the stream's pools it comes from: once freed, the memory may be part of any later block of the
        same stream and pool. -1: of no other block.
        """
        ...

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        """Say that an allocator took a block back. For observers; called where `observes_blocks`.

        `after` are the events of its uses by other streams, which the allocator has seen done.
        """
        ...

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        """Say that the program freed a block, which comes back when these events of its uses are done.

        `block_free` follows then. For observers; called where `observes_blocks`.
        """
        ...

    # -- copies and fills: ordered on their stream -----------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        """Copy host bytes to a device address. Pinned: read when the copy runs. Pageable: read before return."""
        ...

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        """Copy device bytes to the host. Pinned: written when the copy runs. Pageable: done on return."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between device addresses, of one device or two; `stream` may be of either device."""
        ...

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Set `nbytes` bytes to `byte`."""
        ...

    # -- streams --------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        """The handle of the device's default stream; the same each time. Creates no context."""
        ...

    def stream_create(self, index: int, priority: int) -> int:
        """A new stream that does not wait for the default stream, nor it for this one. -1 is high priority, 0 low."""
        ...

    def stream_destroy(self, stream: int) -> None:
        """Give a stream back; its queued work still runs."""
        ...

    def stream_native(self, stream: int) -> int:
        """What the vendor calls this stream: a cudaStream_t, 0 for the default stream."""
        ...

    def stream_adopt(self, index: int, native: int) -> int:
        """The handle of the stream that the vendor calls `native`: this driver's, or another library's, which keeps it.

        0 and 1 are the default stream. NotSupportedError: the driver knows no such stream, and can take none over.
        """
        ...

    def stream_query(self, stream: int) -> bool:
        """Whether all its work is done. Makes progress: a loop around it ends. True orders the host after the work."""
        ...

    def stream_sync(self, stream: int) -> None:
        """Wait on the host until the stream's work is done; releases the GIL."""
        ...

    def stream_wait(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the event's last record, of any device; never recorded: no wait."""
        ...

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        """A new event of the device. Interprocess events carry no timing: DriverError where both are asked for."""
        ...

    def event_destroy(self, event: int) -> None:
        """Give an event back; a recorded wait on it still holds."""
        ...

    def event_record(self, event: int, stream: int) -> None:
        """Mark the point that the stream's queue has reached; replaces an earlier record. Devices must match."""
        ...

    def event_query(self, event: int, internal: bool = False) -> bool:
        """Whether the recorded work is done; True if never recorded. Makes progress, as stream_query.

        `internal` says that the runtime polls, not the program: observers keep the two orders apart.
        """
        ...

    def event_sync(self, event: int, internal: bool = False) -> None:
        """Wait on the host for the recorded work; returns at once if never recorded. Releases the GIL.

        `internal` as in event_query: the runtime waits for its own reasons, the program did not ask.
        """
        ...

    def event_elapsed_ns(self, start: int, end: int) -> int:
        """Nanoseconds between two completed records. DriverError: no timing, never recorded, not complete."""
        ...

    # -- other processes ------------------------------------------------------------------------------
    # Handles are 64 bytes that may be sent to any process. They are good while the process that made them lives.
    def ipc_memory(self, ptr: int) -> bytes:
        """A handle of all the memory that mem_alloc returned at `ptr`. NotSupportedError: nobody else can map it."""
        ...

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        """Map another process's memory of this device; its address here, and its bytes. Once per handle, as in CUDA.

        DriverError: it is no handle, it is this process's own, or its process has ended.
        """
        ...

    def ipc_close(self, ptr: int) -> None:
        """Unmap what ipc_open mapped. Waits for the device's work first, as mem_free does."""
        ...

    def ipc_event(self, event: int) -> bytes:
        """A handle of an event that was created `interprocess`. DriverError: it was not."""
        ...

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        """Another process's event, as an event of this device here: what each records the other may wait for.

        DriverError: it is no handle, or its process has ended.
        """
        ...

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> Executable:
        """Prepare a launch for a device: compile, pick a library routine, plan. NotSupportedError if it cannot."""
        ...

    def unload(self, exe: Executable) -> None:
        """Drop what load prepared, once its launches are done."""
        ...

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        """Queue a loaded launch: addresses in `exe.launch.operands`' order, scalars in its inputs' order."""
        ...

    def launcher(self, exe: Executable) -> Launcher:
        """`launch` of one executable, for who launches it often: what can be looked up before was."""
        ...

    def library_handle(self, name: str, stream: int) -> int:
        """A handle of the vendor's library "cublas" or "cusolver" on the stream's device, for the program's own calls.

        It is the same each time; its work goes to the stream until it is asked for again.
        NotSupportedError: there is no such library.
        """
        ...

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        """Queue a host function; later work of the stream waits for it. It must make no driver call."""
        ...

    # -- graphs: work that is recorded once and launched as one ---------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        """From now on record what the stream is given, and streams that wait for its events, instead of running it.

        Meanwhile waits and questions of the host raise DriverError and spoil the capture: those on the recorded streams
        and their devices always; others of any thread in mode "global", of this thread in "thread_local", of nobody in
        "relaxed". Copies of pageable memory raise too; mem_alloc, host_alloc and load are allowed and not recorded.
        Not of a default stream. NotSupportedError: the driver has no graphs.
        """
        ...

    def capture_end(self, stream: int) -> int:
        """The graph of what was recorded since capture_begin on this stream, which is over then, also if it raises.

        DriverError: the capture was spoiled, or work of a stream that joined it was not waited for by `stream`.
        """
        ...

    def capture_active(self, stream: int) -> bool:
        """Whether what the stream is given is recorded."""
        ...

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        """Queue all that a graph recorded, as one piece of work of a stream of the device that it was recorded on.

        It comes after earlier launches of the graph. On a stream that is captured it becomes part of that graph, which
        must not outlive it. A launch of a kernel that `draws`, recorded with scalars
        (n, offset, ...), gets the seed of seeds[n], and its offset is counted from the one there.
        """
        ...

    def graph_dump(self, graph: int, path: str) -> None:
        """Write what a graph recorded to a file, in Graphviz's language."""
        ...

    def graph_native(self, graph: int) -> tuple[int, int]:
        """What the vendor calls the graph and its launchable form: a cudaGraph_t, a cudaGraphExec_t.

        NotSupportedError: the driver's graphs have no such names.
        """
        ...

    def graph_instantiate(self, graph: int) -> None:
        """Make the launchable form anew, of what was recorded and what others changed of it through its native name."""
        ...

    def graph_destroy(self, graph: int) -> None:
        """Give a graph back; what was launched still runs."""
        ...

    # -- collectives: NCCL's rules, on every driver ---------------------------------------------------
    def comm_id(self) -> bytes:
        """128 bytes that name a communicator to be, for all who join it."""
        ...

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        """Join a communicator of `size` members: this call brings those given as (rank, index).

        A virtual machine's reports say `called`, the program's own numbers of all members, and `name`, what it is for.

        Returns when all members have joined, other threads' and processes' too. NotSupportedError: no collectives here.
        """
        ...

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        """Leave a communicator when its queued work is done; abort: at once, what waits for a peer fails."""
        ...

    def comm_error(self, comm: int) -> str | None:
        """What went wrong on the communicator since it was made, a peer's failure too; None while all is well."""
        ...

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        """Queue parts (comm, collective, stream) as one group: they run together, none waits for one queued after it.

        A part begins when each member has come to its own, the same in kind, count, dtype, op and root; members issue
        them in the same order. Sends match receives of the same pair in order. A mismatch is an error of the device.
        """
        ...

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        """Whether the device can reach the peer's memory directly. False for itself."""
        ...

    def peer_enable(self, index: int, peer: int) -> None:
        """Let the device reach the peer's memory. Again is allowed. NotSupportedError where peer_can is False."""
        ...
