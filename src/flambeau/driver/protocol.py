"""The driver protocol: the calls that Flambeau makes to hardware, real or virtual, and their argument types.

A driver holds no current device, no cache, no flag and no generator. Stream and event handles are opaque
integers, unique across devices. Device addresses are integers. Host memory is passed as `HostMemory`, whose
owner a queue keeps alive. The docstring of each call is its contract. `flambeau.testing.conformance` has a
test of the same name for each call and runs it against every driver.

A call may raise `OutOfMemoryError`, `DriverError`, or `NotSupportedError` if the driver lacks the
capability. A call that raises has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.frozen import Record, Value
from flambeau.core.host_arrays import address_of
from flambeau.core.meta import Meta


class PinnedMemoryObserver(Protocol):
    """A callback object that virtual GPUs notify of commands that use pinned memory.

    Its methods must make no driver call and must not raise.
    """

    def about_to_use(self, memory: HostMemory, /) -> None:
        """Prepare pinned memory before a command reads or writes it."""

    def on_change(self, memory: HostMemory, /) -> None:
        """Handle that the machine may have changed pinned memory: a command has run, or the bytes were poisoned."""


class HostMemory:
    """A range of host bytes that a copy reads or writes.

    Attributes:
        ptr: Host address.
        nbytes: Size in bytes.
        owner: The object that keeps the bytes alive.
        pinned: True if the bytes are page-locked.
        awaited: True if the host waits for the copy before the program continues.
        watch: The observer that a virtual GPU notifies of its uses of pinned bytes; None if there is none.
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
        """Return the `nbytes` bytes from `offset` on, with the same owner."""
        return HostMemory(self.ptr + offset, nbytes, self.owner, self.pinned)


class DeviceProperties(Value):
    """The properties of a device, with PyTorch's names. Sizes are in bytes; `clock_rate` is in kHz, as in
    CUDA.
    """

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
"""The reference implementation of a kernel, specialised for one launch: `body(outputs, inputs)`, two lists.

Outputs are NumPy arrays to write. Inputs are NumPy arrays, or Python scalars where the launch's input is a
dtype. The body keeps neither list. It runs with NumPy's floating-point warnings off.
"""


class NativeBody:
    """A body in native code, which takes the addresses of its operands in place of arrays.

    Attributes:
        run_at: `run_at(ptrs, scalars)`, with the addresses of the operands in host memory: outputs, then inputs that
            are tensors.
    """

    __slots__ = ("_launch", "_layouts", "run_at")

    def __init__(self, launch: Launch, run_at: Callable[[Sequence[int], Sequence[Any]], None]) -> None:
        self.run_at = run_at
        self._layouts = [(meta.shape, meta.byte_strides) for meta in launch.operands]
        self._launch = launch

    def __call__(self, outputs: list[Any], inputs: list[Any]) -> None:
        """Run on arrays. For arrays in another layout than the launch states, run the body of their layouts."""
        arrays = [*outputs, *[x for x in inputs if isinstance(x, np.ndarray)]]
        if [(x.shape, x.strides) for x in arrays] != self._layouts:
            host_body(self._launch.with_(**_operands_as(self._launch, outputs, inputs)))(outputs, inputs)
            return
        scalars = [x for x in inputs if not isinstance(x, np.ndarray)]
        self.run_at([address_of(x) for x in arrays], scalars)


def _operands_as(launch: Launch, outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the outputs and inputs of a launch in the layouts of arrays."""

    def laid(stated: Any, x: Any) -> Any:
        if not isinstance(stated, Meta):
            return stated
        strides = tuple([step // stated.itemsize for step in x.strides])
        return Meta.of(x.shape, strides, stated.dtype, stated.device)

    return {
        "outputs": tuple(map(laid, launch.outputs, outputs)),
        "inputs": tuple(map(laid, launch.inputs, inputs)),
    }


AUTOCAST = "autocast"
"""The name of the kernel that casts a weight for autocast. All streams share its result."""


class Kernel(Record):
    """A computation that a device can run, not yet specialised to shapes and dtypes.

    Attributes:
        name: The name that profilers and reports show.
        host: The reference implementation, which says what the operator means. It returns the body of a
            launch. Every other implementation is tested against it. It is called once per plan, so it makes
            all decisions that depend on shape and dtype.
        flops: Floating-point operations of one launch.
        cycles: Clock cycles, computed from the scalars, of a kernel that only spends time.
        rate: The arithmetic that limits the kernel and selects the device's peak rate: "float32", "tf32",
            ...
        cuda: The form that real GPUs run; None if there is none yet, in which case `Driver.load` raises.
        draws: True if scalars are the seed and offset of a random generator: the first two, or in a fused kernel
            those at `seed_positions`. Each launch of a graph sets them again.
        touches: The operand of which a launch touches only the elements that other operands select; None if
            it touches all of every operand.
        work: What a launch does on a device, for simulated times.
        workspace: Bytes of each block that PyTorch's kernel allocates while it runs. Virtual GPUs do so as well.
        fast: The implementation that the CPU and virtual GPUs run in place of `host`; None if they run `host`.
    """

    name: str
    host: Callable[[Launch], Body]
    flops: Callable[[Launch], int] = lambda launch: 0
    cycles: Callable[[Sequence[Any]], int] | None = None  # from the scalars; None unless it only spends time
    rate: Callable[[Launch], str] = lambda launch: output_rate(launch)
    cuda: CudaForm | None = None  # None: not implemented yet
    draws: bool = False
    touches: Callable[[Launch], Touches | None] = lambda launch: None
    work: Callable[[Launch], Work] = lambda launch: stream_work(launch)
    workspace: Callable[[Launch], tuple[int, ...]] = lambda launch: ()
    fast: HostRoutine | None = None


class HostRoutine(Record):
    """A function that implements a kernel for CPUs, faster than the reference implementation.

    Attributes:
        path: "module:function", with a module of driver/host/kernels that is imported when the kernel is first
            loaded. The function takes a launch and returns its body, or None if the reference implementation
            serves that launch.
        ulps: The largest difference from the reference implementation, in units in the last place of an
            output's largest element; 0 if the bits are equal.
    """

    path: str
    ulps: int = 0


class KernelNotes(Record):
    """A note on a kernel for reports, which know the kernel by its name.

    Attributes:
        public: The public name of the function that runs it.
        overwrites: True if it does not read what it overwrites.
    """

    public: str
    overwrites: bool = False


kernel_notes: dict[str, KernelNotes] = {}
"""Notes on kernels by name; the blocks of operators fill it."""


class Work(Record):
    """The work of a launch on a device, from which virtual GPUs compute its time.

    Attributes:
        nbytes: Bytes that move between the memory and the multiprocessors. They are more than the operands'
            bytes where an access pattern uses only part of each line, or where passes repeat.
        resident: Bytes of the data that the launch works on, which stay in the L2 cache if they fit.
        threads: Number of elements that can be worked on at the same time, one per thread.
        instructions: Number of instructions, of all threads together.
        cycles: Clock cycles of the longest chain of dependent instructions, beyond the start of a kernel.
        kernels: Number of kernels that run one after the other; 0 if the kernel before does it as well.
        product: The matrix products that are part of it; None if there are none.
        chain: Clock cycles of the longest chain of loads, meanwhile other threads move bytes and compute.
    """

    nbytes: float
    resident: float
    threads: int
    instructions: float = 0.0
    cycles: float = 0.0
    kernels: int = 1
    product: MatrixProduct | None = None
    chain: float = 0.0


class MatrixProduct(Record):
    """The sizes of equal matrix products (rows x depth) @ (depth x columns).

    Attributes:
        rate: The arithmetic, as in `Kernel.rate`.
        load: Bytes of the widest load that the beginnings of all rows allow, at most 16.
        share: The share of a plain product's rate that they reach.
    """

    count: int
    rows: int
    columns: int
    depth: int
    rate: str
    load: int
    share: float = 1.0


class Touches(Record):
    """The operand of which a launch touches only the elements that indices or masks select.

    Attributes:
        target: True if the operand is the first output, which the launch changes in place. False if it is
            the first input, which the launch reads.
        indices: Positions of the selecting operands among the inputs.
        places: Function of the arrays of `indices`. It returns the index of the selected elements in an
            array of the operand's shape, or (1,) for zero dimensions. Raises IndexError or RuntimeError for
            indices out of range.
        reads: True if the selected elements of a target are read as well as written.
        rewrites: True if the launch reads and writes back the whole target although it changes selected
            elements only.
    """

    target: bool
    indices: tuple[int, ...]
    places: Callable[[Sequence[Any]], Any]
    reads: bool = False
    rewrites: bool = False


# -- CUDA forms: how a real GPU runs a kernel. Text is C++ in the vocabulary of driver/cuda/include/prelude.cuh -------


Steps = tuple[dtype, ...]
"""Dtypes that a value is converted through, one after the other. () leaves the value unchanged."""


class Expression(Record):
    """A pointwise kernel: it computes one output element from the input elements at the same index.

    Attributes:
        text: A C++ expression of the inputs a, b, c, ..., of the constants k0, k1, ... and, if `indexed`,
            of the element's row-major index i. T is the type of a. A function of the launch if static
            params affect it.
        kinds: The conversions of each input before the expression, and of its value before the store.
        constants: Numbers derived from the params. They are passed by value, so new numbers need no
            compilation.
        indexed: True if `text` uses i.
        drawn: True if `text` uses w, the random word of the element's row-major index i: word i % 4 of the draw of
            thread i / 4, as in PyTorch's dropout. The first two inputs are a generator's seed and offset, and k0 is the
            number of threads of PyTorch's kernel. Such a kernel has no `indexed` text and no tensors as inputs.
        header: The file in driver/cuda/include whose functions `text` calls, without its suffix.
        functions: Further C++ functions that `text` calls.
    """

    text: str | Callable[[Launch], str]
    kinds: Callable[[Launch], tuple[tuple[Steps, ...], Steps]] = lambda launch: (
        ((),) * len(launch.inputs),
        (),
    )
    constants: Callable[[Launch], Sequence[float]] = lambda launch: ()
    indexed: bool = False
    drawn: bool = False
    header: str = ""
    functions: str = ""


class Expressions(Record):
    """Several pointwise kernels over the same inputs that run as one kernel: one expression for each output.

    The outputs have one shape and one layout. No expression is `indexed` or has constants.
    """

    each: tuple[Expression, ...]


class FusedStep(Record):
    """An operator of a fused kernel.

    Attributes:
        launch: The launch of the operator alone. Its CUDA form is an `Expression`, whose output is contiguous if it is
            `indexed`, or a `Fold` of one tensor, over rows of contiguous elements, without constants.
        sources: The value of each input of `launch`: input k of the fused launch, or -1 - k for the result of step k.
    """

    launch: Launch
    sources: tuple[int, ...]


class FusedView(Record):
    """A part of an earlier result of a fused kernel, or the same elements in another layout, as later steps read it.

    Attributes:
        source: -1 - k for the result of step k.
        meta: The layout of the elements in the memory of that result.
        offset: The bytes from the first element of the result to that of the view.
    """

    source: int
    meta: Meta
    offset: int


class Fused(Record):
    """A kernel that computes several expressions of one shape, each from inputs and earlier results.

    Each result is rounded to its dtype, as if a separate kernel had stored it. With `has_rows`, steps are also
    reductions of rows, the elements along the last dim, and expressions of one element for each row. Without, steps are
    also views of earlier results and `cat`: see Note [Views in fused kernels] in driver/fused_boxes.py.

    Attributes:
        steps: The operators in the order in which the program called them.
        stored: For each output of the launch, the step whose result it receives. Other results never exist in memory.
        has_rows: False if all results have one shape and no step is a reduction.
    """

    steps: tuple[FusedStep | FusedView, ...]
    stored: tuple[int, ...]
    has_rows: bool = False


class Fold(Record):
    """A reduction over dims: it maps each element to a state, combines states, and maps the last one to
    outputs.

    Attributes:
        dims: The reduced dims. All inputs have one shape.
        steps: The conversions of an element x before `lift`, and of y, z, w, v at the same index of further
            inputs. T is the resulting type of x.
        state: The C++ type of a state.
        start: The state of zero elements.
        lift: The state of the element x, whose index among the reduced elements is i.
        join: The state of the states a and b, combined in any order.
        follow: The state of the states a and b if b is of one element that follows all elements of a; "" if `join` is
            as fast.
        lower: One expression per output, of the state s and the number n of elements.
        constants: k0, k1, ... as in `Expression`.
        first: True if the expressions use `first`, the element x at index 0 (T{} if there is none).
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
    follow: str = ""


class Scan(Record):
    """A running reduction of one input along a dim: each output holds the elements up to its index, combined.

    Attributes:
        dim: The dim along which the scan runs.
        steps: As in `Fold`.
        state: As in `Fold`.
        lift: As in `Fold`.
        join: The state of the states a and b; the elements of b follow those of a.
        lower: One expression per output, of the state s.
        long: True if `join` is long code that the kernel calls instead of repeating it inline.
    """

    dim: Callable[[Launch], int]
    steps: Callable[[Launch], Steps]
    state: str
    lift: str
    join: str
    lower: tuple[str, ...]
    long: bool = False


class Source(Record):
    """A complete kernel named `run`. Its parameters are one pointer per operand, the scalars, and the
    constants.

    Attributes:
        text: C++ source for a launch. The types O0, O1, ... and I0, I1, ... are the element types of the
            operands. Scalars are double, long long, unsigned long long or c128. Constants k0, k1, ... are
            double for floats, else long long.
        grid: The number of blocks.
        block: The number of threads in a block.
        constants: As in `Expression`.
        header: As in `Expression`.
    """

    text: Callable[[Launch], str]
    grid: Callable[[Launch], int]
    block: int = 256
    constants: Callable[[Launch], Sequence[float]] = lambda launch: ()
    header: str = ""


class Routine(Record):
    """Kernels that a function of the CUDA driver builds, or calls of NVIDIA's libraries.

    The functions are named "module:function", with modules of `driver/cuda`, which are imported when a launch
    is loaded: operators import nothing of CUDA's.

    Attributes:
        builder: Function of the launch and the device. It returns the kernels of the launch, or None if the
            library runs it. "" if the library runs all launches.
        library: Function of the launch, the device and the driver. It returns the steps of the launch. "" if
            `builder` builds all launches.
        structure: Function like `library` for a launch whose sizes may be symbols, see `Driver.generic`. It returns
            numbers and the function that makes the steps of them; None if each launch must be loaded. "" for none.
        row_dims: The dims of rows whose elements the threads hold in registers, if that is how the kernel computes one
            output; None for other kernels. Inputs of the output's shape are held, and others belong to a row's places.
    """

    builder: str = ""
    library: str = ""
    structure: str = ""
    row_dims: Callable[[Launch], tuple[int, ...]] | None = None


class Lists(Record):
    """A pointwise kernel over lists of tensors that handles all tensors in one launch.

    The operands are ordered list by list.

    Attributes:
        count: Tensors per list.
        text: C++ statements of the elements x0, x1, ... (of type T) and of the scalars s0, s1, ...
            (doubles), and one expression per output list.
        kind: The name of the dtype T.
        flag: True if the last expression is a condition. The last operands, of one float32 each, are then a
            number before and after the launch; the launch sets it to 1 if the condition holds for any
            element.
    """

    count: Callable[[Launch], int]
    text: Callable[[Launch], tuple[str, tuple[str, ...]]]
    kind: Callable[[Launch], str]
    flag: bool = False


CudaForm = Expression | Expressions | Fused | Fold | Scan | Source | Routine | Lists


class Launch(Record):
    """The description of a launch without its addresses. Each plan has one, which is loaded once.

    Attributes:
        kernel: The computation.
        outputs: The operands that the launch writes.
        inputs: The operands that the launch reads, as the kernel sees them (stride 0 where broadcast). A
            dtype stands for a scalar passed by value; `object` stands for a Python object that only a host
            body uses.
        params: Static, hashable parameters: dims, flags, modes.
        updates: True if the launch also reads its output, as an in-place accumulation does.
        capability: Compute capability of the GPU that loads it, set by the driver; None on the CPU.
    """

    kernel: Kernel
    outputs: tuple[Meta, ...]
    inputs: tuple[Meta | dtype | type[object], ...]
    params: tuple[Any, ...] = ()
    updates: bool = False
    capability: tuple[int, int] | None = None

    # The constructor is spelled out because each new shape of a call creates one; this takes a third of the time.
    def __init__(
        self,
        kernel: Kernel,
        outputs: tuple[Meta, ...],
        inputs: tuple[Meta | dtype | type[object], ...],
        params: tuple[Any, ...] = (),
        updates: bool = False,
        capability: tuple[int, int] | None = None,
    ) -> None:
        vars(self).update(
            kernel=kernel,
            outputs=outputs,
            inputs=inputs,
            params=params,
            updates=updates,
            capability=capability,
        )

    @property
    def operands(self) -> tuple[Meta, ...]:
        """Return the operands that have addresses, in the order of the addresses: outputs, then inputs that are
        tensors.
        """
        return self.outputs + tuple(x for x in self.inputs if isinstance(x, Meta))

    @property
    def nbytes(self) -> int:
        """Return the bytes that the launch moves at least: each element of each operand once."""
        return sum(distinct_bytes(meta) for meta in self.operands)


def is_drawn(launch: Launch) -> bool:
    """Return True if a pointwise kernel computes its elements from random words."""
    form = launch.kernel.cuda
    return isinstance(form, Expression) and form.drawn


def uses_index(launch: Launch) -> bool:
    """Return True if a pointwise kernel computes its elements from their row-major index, or draws words by it."""
    form = launch.kernel.cuda
    return isinstance(form, Expression) and (form.drawn or form.indexed)


def seed_positions(launch: Launch) -> tuple[int, ...]:
    """Return the positions of seeds among the scalars of a launch. An offset follows each of them."""
    form = launch.kernel.cuda
    if not isinstance(form, Fused):
        return (0,) if launch.kernel.draws else ()
    scalars = [k for k, x in enumerate(launch.inputs) if not isinstance(x, Meta)]
    drawn = [step for step in form.steps if isinstance(step, FusedStep) and step.launch.kernel.draws]
    return tuple([scalars.index(step.sources[0]) for step in drawn])


def is_join(launch: Launch) -> bool:
    """Return True for a `cat`, whose params are the dim."""
    form = launch.kernel.cuda
    return isinstance(form, Routine) and form.builder == "index.joining:cat"


def holds_rows(launch: Launch) -> bool:
    """Return True for operators whose kernel holds rows in registers: softmax, layer and RMS normalization, gradients
    of softmax.
    """
    form = launch.kernel.cuda
    return isinstance(form, Routine) and form.row_dims is not None


def has_held_rows(form: Fused) -> bool:
    """Return True if a step of a fused kernel holds rows in registers."""
    return any(isinstance(step, FusedStep) and holds_rows(step.launch) for step in form.steps)


def host_body(launch: Launch) -> Body:
    """Return the function that the CPU and virtual GPUs run for a launch.

    This is native code if the library of native kernels has a kernel for the launch. Otherwise it is the fast
    implementation if that takes the launch, else the reference implementation.
    """
    fast = launch.kernel.fast
    native = native_code()
    body: Body | None = None if native is None else native.native_body(launch)
    if body is None and fast is not None:
        module, _, function = fast.path.partition(":")
        body = getattr(import_module(f"flambeau.driver.host.kernels.{module}"), function)(launch)
    return launch.kernel.host(launch) if body is None else body


@cache
def native_code() -> ModuleType | None:
    """Return the module that selects native code of launches, with `native_body` and `native_step`; None if NumPy
    computes everything. It is imported with the first launch.
    """
    package = "flambeau.driver.host.kernels.native"
    if not import_module(package).may_have_library():
        return None
    selecting = import_module(f"{package}.bodies")
    return None if selecting.library() is None else selecting


def native_library() -> tuple[str | None, str]:
    """Return the file of the library of native kernels, or None, with the reason why NumPy computes everything."""
    try:
        choice = import_module("flambeau.driver.host.kernels.native.kernel_library").choice()
    except ImportError as error:
        return None, str(error)
    return (None, choice.reason) if choice.library is None else (str(choice.library.path), "")


def copied_bytes(launch: Launch) -> int:
    """Return an estimate of the bytes of dense copies that a host body makes of broadcast inputs.

    Bodies that compute element by element broadcast without a copy; then the outputs have as many elements.
    """
    copies = [m.numel * m.itemsize for m in launch.inputs if isinstance(m, Meta)]
    spans = [m.span for m in launch.inputs if isinstance(m, Meta)]
    expanded = sum(copy for copy, span in zip(copies, spans, strict=True) if copy > span)
    return max(expanded - sum(m.numel * m.itemsize for m in launch.outputs), 0)


_RATE_OF_PART = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def output_rate(launch: Launch) -> str:
    """Return the arithmetic of the first output's dtype. Integers and booleans count as float32."""
    if not launch.outputs:
        return "float32"
    kind = launch.outputs[0].dtype
    name = _RATE_OF_PART.get(kind.name, kind.name)
    return name if kind.is_floating_point or kind.is_complex else "float32"


def distinct_bytes(meta: Meta) -> int:
    """Return the bytes of the distinct elements of a layout: expanded dimensions count once."""
    count = meta.itemsize
    for size, stride in zip(meta.shape, meta.strides, strict=True):
        count *= 1 if stride == 0 and size else size
    return count


# Note [The time of a computation by elements]
# Problem: PyTorch computes by elements with two kernels, whose instructions cost more than their bytes at times.
# Rule: Operands of one layout and dtype are one row, of which a block of 128 threads takes 1,024 elements in wide
# loads; a last block that is not full takes single ones. All others need the place of each element, by divisions.
# Threads of a warp whose elements are apart in memory take a sector of the cache each.
# Consequences: A transposed operand costs more than its bytes, an operand of one row little.

# The share of a sector's bytes that a transposing kernel uses, for each byte of an element.
_SECTOR_SHARE = 0.078
_BLOCK = 1024
_MATH = 8.0  # instructions by the square root of the operations: functions share their steps
_PLAIN, _PLACED, _PLACED_HALF = 5.0, 70.0, 57.0  # instructions of an element
_SECTOR = 4.2  # instructions of an element for each further sector that its warp takes
_CYCLES, _TAIL_CYCLES = 110.0, 530.0  # latency by the square root of the operations, and of single loads
_PLACED_CYCLES, _PLACED_HALF_CYCLES = 700.0, 1600.0
_PLACED_SHARE = 0.8  # of the memory's rate


def stream_work(launch: Launch, instructions: float = 0.0) -> Work:
    """Return the work of a kernel that computes each element of its outputs from elements of its inputs.

    See Note [The time of a computation by elements].

    Args:
        launch: The launch.
        instructions: Number of instructions per element; by default estimated from `Kernel.flops`.
    """
    operands = launch.operands
    if not operands:
        return Work(0.0, 0.0, 1)
    out = max(launch.outputs or operands, key=lambda meta: meta.numel)
    count = out.numel
    plain = all(
        meta.shape == out.shape and meta.strides == out.strides for meta in operands if meta.numel > 1
    )
    operations = math.sqrt(launch.kernel.flops(launch) / max(count, 1))
    moved = float(sum([distinct_bytes(meta) for meta in operands]))
    cycles = _CYCLES * operations
    if plain:
        each = _PLAIN + (0.0 if len({meta.dtype for meta in operands}) == 1 else 10.0)
        if count % _BLOCK and (operations > 3.0 or len(operands) - len(launch.outputs) > 1):
            cycles += _TAIL_CYCLES
    else:
        each = _PLACED if out.itemsize > 2 else _PLACED_HALF
        each += _SECTOR * max([sectors_of_warp(meta, out) - 1 for meta in operands])
        cycles += _PLACED_CYCLES if out.itemsize > 2 else _PLACED_HALF_CYCLES
        moved = sum([distinct_bytes(meta) / line_share(meta) for meta in operands]) / _PLACED_SHARE
    each += max(_MATH * operations, operations**2)
    return Work(moved, launch.nbytes, count, (instructions or each) * count, cycles)


def sectors_of_warp(meta: Meta, out: Meta) -> int:
    """Return how many sectors of 32 bytes the 32 threads of a warp touch in an operand, in the output's order.

    Neighbours, and one element for all, count as one.
    """
    if meta.ndim != out.ndim or out.numel < 2 or meta.numel < 2:
        return 1
    across = [(out.strides[i], size, meta.strides[i]) for i, size in enumerate(out.shape) if size > 1]
    _, size, stride = min(across)
    return 1 if stride in (0, 1) else min(32, size, stride * meta.itemsize)


def line_share(meta: Meta) -> float:
    """Return the share of the bytes of each line of memory that a kernel uses which runs along the last dimension."""
    for size, stride in zip(reversed(meta.shape), reversed(meta.strides), strict=True):
        if size > 1:
            return 1.0 if stride in (0, 1) else min(1.0, meta.itemsize * _SECTOR_SHARE)
    return 1.0


class Executable:
    """A loaded launch. Each driver has a subclass with the state that it prepared."""

    __slots__ = ("index", "launch", "workspace")

    def __init__(self, launch: Launch, index: int) -> None:
        self.launch = launch
        self.index = index
        self.workspace: tuple[int, ...] = ()  # bytes of blocks that the caller allocates for each launch


Dtype = dtype  # an alias for classes that have a field called dtype


class PreMul(Value):
    """The reduction NCCL calls PreMulSum: the sum over ranks of each rank's numbers times that rank's factor."""

    factor: float

    def __str__(self) -> str:
        return f"sum of {self.factor:g} times each"


class Collective(Value):
    """One member's contribution to a collective, or one end of a message between two members.

    Each kind reads and writes these numbers of elements of `dtype`:

    ==============  =========================  =========================  =======
    kind            reads at source            writes at target           peer
    ==============  =========================  =========================  =======
    all_reduce      count                      count                      -
    broadcast       count (the root)           count                      root
    reduce          count                      count (the root)           root
    all_gather      count                      count * size               -
    reduce_scatter  count * size               count                      -
    send            count                      -                          receiver
    recv            -                          count                      sender
    ==============  =========================  =========================  =======

    Attributes:
        target: Device address. It may equal `source` where NCCL allows it (in place); 0 if nothing is
            written.
        source: Device address; 0 if nothing is read.
        op: "sum", "prod", "min", "max" or "avg" for the reducing kinds. A `PreMul` for real floating-point
            numbers, whose factor may differ from rank to rank.
    """

    kind: str
    target: int
    source: int
    count: int
    dtype: dtype
    op: str | PreMul = "sum"
    peer: int = -1

    # The constructor is spelled out because each collective creates one; this takes a third of the time.
    def __init__(
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


class RecurrentNetwork(Value):
    """Layers of a recurrent network over sequences, as a library runs them.

    The rows of all time steps are concatenated. A step has a row for each sequence that has not ended.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        dtype: The dtype of data, states and weights.
        inputs: The width of a row of the input.
        hidden: The width of a state before its projection.
        projection: The width of a projected state of an LSTM; 0 if states are not projected.
        layers: Number of layers.
        bidirectional: True if each layer runs in both directions.
        biased: True if there are two biases for each layer and direction.
        steps: Number of time steps of the longest sequence.
        batch: Number of sequences.
        lengths: The lengths of the sequences, the longest first; () if all are equal.
        training: True if gradients will be computed.
        tf32: True if products of float32 round their operands to TF32.
    """

    mode: str
    dtype: Dtype
    inputs: int
    hidden: int
    projection: int
    layers: int
    bidirectional: bool
    biased: bool
    steps: int
    batch: int
    lengths: tuple[int, ...]
    training: bool
    tf32: bool

    @property
    def gates(self) -> int:
        """Return the number of gates of a cell."""
        return {"LSTM": 4, "GRU": 3}.get(self.mode, 1)

    @property
    def directions(self) -> int:
        """Return the number of directions in which each layer runs."""
        return 2 if self.bidirectional else 1

    @property
    def cells(self) -> int:
        """Return the number of cells: one for each layer and direction, the directions of a layer side by side."""
        return self.layers * self.directions

    @property
    def state(self) -> int:
        """Return the width of a state after its projection."""
        return self.projection or self.hidden

    @property
    def rows(self) -> int:
        """Return the number of rows of all time steps."""
        return sum(self.lengths) or self.steps * self.batch

    @property
    def parameters(self) -> list[tuple[int, ...]]:
        """Return the shapes of all parameters in PyTorch's order."""
        shapes: list[tuple[int, ...]] = []
        for cell in range(self.cells):
            width = self.inputs if cell < self.directions else self.directions * self.state
            shapes += [(self.gates * self.hidden, width), (self.gates * self.hidden, self.state)]
            shapes += [(self.gates * self.hidden,)] * (2 * self.biased)
            shapes += [(self.projection, self.hidden)] * (self.projection > 0)
        return shapes

    @property
    def kept_widths(self) -> dict[str, int]:
        """Return what the reference implementation keeps of each cell for the backward pass.

        Returns:
            Name -> width of the rows, one for each row of the input. "out" is the state; "gates" are values before
            their activations; "shares" is the state's contribution to the gates of a GRU; "memory" is the cell state of
            an LSTM, and "wide" its state before the projection.
        """
        widths = {"out": self.state}
        if self.gates > 1:
            widths["gates"] = self.gates * self.hidden
        if self.mode == "GRU":
            widths["shares"] = self.gates * self.hidden
        if self.mode == "LSTM":
            widths["memory"] = self.hidden
        if self.projection:
            widths["wide"] = self.hidden
        return widths


class RecurrentMemory(Value):
    """The memory that a whole recurrent network works on.

    Attributes:
        weights: Number of elements of the buffer that holds all parameters; 0 if each is a separate operand.
        offsets: The first element of each parameter in that buffer, in PyTorch's order of parameters.
        reserve: Bytes that the forward pass of a training step keeps for the backward pass.
    """

    weights: int
    offsets: tuple[int, ...]
    reserve: int


def reference_memory(network: RecurrentNetwork) -> RecurrentMemory:
    """Return the memory that the reference implementation of a network works on.

    It keeps values of all cells for the backward pass, and takes each parameter as a separate operand of the launch.
    """
    width = sum(network.kept_widths.values())
    return RecurrentMemory(0, (), network.cells * network.rows * width * network.dtype.itemsize)


Launcher = Callable[[Sequence[int], Sequence[Any], int], None]
"""A function `launcher(ptrs, scalars, stream)`; see `Driver.launcher`."""

Generic = tuple[Sequence[Any], Callable[..., Launcher]]
"""What launches of one structure need: values to compute for each shape, and what makes a launcher of them."""


class Driver(Protocol):
    """The calls that every driver implements, named `noun_verb` and grouped in families.

    `index` is a device; `stream` and `event` are handles.

    Attributes:
        name: The driver's name in `registry`.
        observes_blocks: True if the allocators must call `block_alloc`, `block_wait` and `block_free`.
        runs_bodies: True if a launch runs the kernel's reference implementation on data.
    """

    name: str
    observes_blocks: bool
    runs_bodies: bool

    # -- devices ------------------------------------------------------------------------------------
    def device_count(self) -> int:
        """Return the number of devices. Creates no context."""
        ...

    def device_properties(self, index: int) -> DeviceProperties:
        """Return the properties of a device. Creates no context."""
        ...

    def device_sync(self, index: int) -> None:
        """Wait on the host until all work of all streams of the device is done. Releases the GIL."""
        ...

    def mem_info(self, index: int) -> tuple[int, int]:
        """Return the free and the total bytes of the device's memory."""
        ...

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        """Return (process id, bytes) for each process that uses the device's memory.

        Raises:
            NotSupportedError: If the driver cannot find out.
        """
        ...

    def close(self) -> None:
        """Finish all work and release everything. Every later call raises DriverError."""
        ...

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        """Allocate `nbytes` bytes, aligned to 512, and return their address.

        Raises:
            OutOfMemoryError: If the device lacks the memory. Nothing has changed then.
        """
        ...

    def mem_free(self, ptr: int) -> None:
        """Free an address that `mem_alloc` returned. Waits for the device's work first, as cudaFree does."""
        ...

    def range_page(self, index: int) -> int:
        """Return the granularity, in bytes, of the four calls below.

        The result is 0 if the device lacks these calls; they raise NotSupportedError then.
        """
        ...

    def range_reserve(self, index: int, nbytes: int) -> int:
        """Reserve `nbytes` addresses without memory and return the first one.

        Raises:
            OutOfMemoryError: If no addresses are left.
        """
        ...

    def range_map(self, ptr: int, nbytes: int) -> None:
        """Map new memory at reserved addresses that have none.

        Raises:
            OutOfMemoryError: If the device lacks the memory. Nothing has changed then.
        """
        ...

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        """Wait for the device's work, then unmap the memory of one `range_map` call or of several adjacent
        ones.
        """
        ...

    def range_release(self, ptr: int) -> None:
        """Release addresses that `range_reserve` returned. None of them may be mapped."""
        ...

    def host_alloc(self, nbytes: int) -> HostMemory:
        """Allocate pinned host memory, aligned to 64. The copies of every device may use it asynchronously."""
        ...

    def host_free(self, memory: HostMemory) -> None:
        """Free memory that `host_alloc` returned. Waits for all devices' work first, as cudaFreeHost does."""
        ...

    def host_register(self, ptr: int, nbytes: int) -> None:
        """Page-lock host memory that the program allocated. The copies of every device may then use it asynchronously.

        Raises:
            DriverError: If the range is empty, or a part of it is page-locked already.
        """
        ...

    def host_unregister(self, ptr: int) -> int:
        """Undo `host_register`, and return its number of bytes. Waits for all devices' work first.

        Raises:
            DriverError: If `host_register` was not called with this address.
        """
        ...

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        """Return True if `nbytes` is positive and all bytes are page-locked.

        On real GPUs, memory that other libraries have page-locked counts as well.
        """
        ...

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        """Report that the host now reads or writes host bytes. Only observers use this call."""
        ...

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Report that another object exposes host bytes. Only observers use this call.

        Args:
            ptr: Host address.
            nbytes: Size in bytes.
            what: The call by which the program obtained the object, such as "numpy()". A tensor over
                foreign memory reports "from_numpy()" or similar.
            view: The object, which can be weakly referenced. The bytes are exposed while it lives; None:
                forever.
        """
        ...

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        """Report that an allocator allocated a block of its memory. Called if `observes_blocks`.

        Args:
            ptr: Address.
            nbytes: Size in bytes.
            stream: The stream that the block is allocated for; 0 for host memory.
            written: True if the next launch, from the same line of the program, writes the block.
            pool: The stream's pool that the block is from. Once freed, the memory may become part of any
                later block of this stream and pool. -1: of no other block.
        """
        ...

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        """Report that an allocator took a block back. Called if `observes_blocks`.

        `after` are the events of uses by other streams that the allocator has found complete.
        """
        ...

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        """Report that the program freed a block whose memory returns when `events`, recorded after its uses,
        are done.

        `block_free` follows at that time. Called if `observes_blocks`.
        """
        ...

    # -- copies and fills: ordered on their stream -----------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        """Copy host bytes to a device address.

        Pinned memory is read when the copy runs, pageable memory before this call returns.
        """
        ...

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        """Copy device bytes to the host.

        Pinned memory is written when the copy runs. A copy to pageable memory is complete when this call
        returns.
        """
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between device addresses of one device or of two. `stream` may belong to either device."""
        ...

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Set `nbytes` bytes to `byte`."""
        ...

    # -- streams --------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        """Return the handle of the device's default stream, which never changes. Creates no context."""
        ...

    def stream_create(self, index: int, priority: int) -> int:
        """Create a stream that is not ordered with the default stream.

        Args:
            index: Device.
            priority: -1 for high priority, 0 for low.
        """
        ...

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream. Its queued work still runs."""
        ...

    def stream_native(self, stream: int) -> int:
        """Return the vendor's handle of a stream: a cudaStream_t, 0 for the default stream."""
        ...

    def stream_adopt(self, index: int, native: int) -> int:
        """Return the handle of the stream whose vendor handle is `native`.

        It is a stream of this driver, or a stream that another library owns. 0 and 1 are the default
        stream.

        Raises:
            NotSupportedError: If the driver has no such stream and cannot use foreign streams.
        """
        ...

    def stream_query(self, stream: int) -> bool:
        """Return True if all work of the stream is done.

        Each call makes progress, so a loop around it terminates. True orders the host after the work.
        """
        ...

    def stream_sync(self, stream: int) -> None:
        """Wait on the host until the stream's work is done. Releases the GIL."""
        ...

    def stream_wait(self, stream: int, event: int) -> None:
        """Make later work of the stream wait for the event's current record, which may be of another device.

        An event that was never recorded causes no wait.
        """
        ...

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        """Create an event of the device.

        Raises:
            DriverError: If both `timing` and `interprocess` are requested.
        """
        ...

    def event_destroy(self, event: int) -> None:
        """Destroy an event. Waits on its record remain valid."""
        ...

    def event_record(self, event: int, stream: int) -> None:
        """Record the current position of the stream's queue; this replaces an earlier record.

        Event and stream must belong to one device.
        """
        ...

    def event_query(self, event: int, internal: bool = False) -> bool:
        """Return True if the recorded work is done or the event was never recorded. Makes progress, as
        `stream_query`.

        `internal` is True if the runtime polls on its own account. Observers then do not count the answer
        as known to the program.
        """
        ...

    def event_sync(self, event: int, internal: bool = False) -> None:
        """Wait on the host for the recorded work; return immediately if the event was never recorded.

        Releases the GIL. `internal` is True if the runtime waits on its own account.
        """
        ...

    def event_elapsed_ns(self, start: int, end: int) -> int:
        """Return the nanoseconds between two completed records.

        Raises:
            DriverError: If an event lacks timing, was never recorded, or is not complete.
        """
        ...

    # -- other processes ------------------------------------------------------------------------------
    # Handles are 64 bytes that may be sent to any process. They are valid while their process lives.
    def ipc_memory(self, ptr: int) -> bytes:
        """Return an IPC handle of the allocation that `mem_alloc` returned at `ptr`.

        Raises:
            NotSupportedError: If other processes cannot map the memory.
        """
        ...

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        """Map memory of another process on this device. Return its address in this process and its size in
        bytes.

        A handle may be opened once at a time, as in CUDA.

        Raises:
            DriverError: If the handle is invalid, is from this process, or its process has ended.
        """
        ...

    def ipc_close(self, ptr: int) -> None:
        """Unmap memory that `ipc_open` mapped. Waits for the device's work first, as `mem_free` does."""
        ...

    def ipc_event(self, event: int) -> bytes:
        """Return an IPC handle of an event.

        Raises:
            DriverError: If the event was not created with `interprocess`.
        """
        ...

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        """Open an event of another process as an event of this device. Each process can wait for the other's
        records.

        Raises:
            DriverError: If the handle is invalid or its process has ended.
        """
        ...

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> Executable:
        """Prepare a launch for a device: compile it, choose a library routine, plan its passes.

        Raises:
            KernelPending: If the launch is `Fused` and its kernel must be compiled first, in the background.
            NotSupportedError: If the driver cannot run the launch.
        """
        ...

    def generic(self, launch: Launch, index: int) -> Generic | None:
        """Return how all launches of one structure are launched; None if each launch must be loaded.

        The sizes and strides of the launch may be symbols (Note [Plans of a structure] in
        core/tracing/symbols.py): what the driver decides by them becomes a guard of the caller's plan.

        Returns:
            The values that a launch needs, which may contain symbols, and the function that makes a
            `Launcher` of them once they are numbers.
        """
        ...

    def unload(self, exe: Executable) -> None:
        """Release what `load` prepared, after its launches are done."""
        ...

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        """Enqueue a loaded launch.

        Args:
            exe: The loaded launch.
            ptrs: Addresses in the order of `exe.launch.operands`.
            scalars: Values in the order of the scalar inputs.
            stream: The stream.
        """
        ...

    def launcher(self, exe: Executable) -> Launcher:
        """Return a function that launches one executable, with all lookups that `launch` needs done in
        advance.
        """
        ...

    def library_handle(self, name: str, stream: int) -> int:
        """Return a handle of the library "cublas" or "cusolver" on the stream's device, for the program's own
        calls.

        The result is always the same handle. Its work goes to `stream` until the next call of this
        function.

        Raises:
            NotSupportedError: If there is no such library.
        """
        ...

    def recurrent_memory(self, index: int, network: RecurrentNetwork) -> RecurrentMemory | None:
        """Return the memory with which the device runs a recurrent network; None if it runs no whole networks."""
        ...

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        """Enqueue a host function. Later work of the stream waits for it. The function must make no driver
        call.
        """
        ...

    # -- graphs: work that is recorded once and launched as one ---------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        """Record the commands of the stream, and of streams that wait for its events, instead of running them.

        Until the capture ends, host waits and polls raise DriverError and invalidate the capture. Waits for
        captured streams and their devices always do. Other waits do for every thread in mode "global", for
        this thread in "thread_local", and never in "relaxed". Copies of pageable memory raise too.
        `mem_alloc`, `host_alloc` and `load` are allowed and not recorded.

        Raises:
            NotSupportedError: If the driver has no graphs, or the stream is a default stream.
        """
        ...

    def capture_end(self, stream: int) -> int:
        """End the capture that began on this stream and return its graph. The capture is over even if this
        call raises.

        Raises:
            DriverError: If the capture was invalidated, or `stream` has not waited for the work of a stream
                that joined the capture.
        """
        ...

    def capture_active(self, stream: int) -> bool:
        """Return True if the stream's commands are being recorded."""
        ...

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        """Enqueue a graph as one piece of work of a stream of the device that it was recorded on.

        It runs after earlier launches of the graph. On a captured stream it becomes part of that capture's
        graph, which must not outlive it.

        Args:
            graph: The graph.
            stream: The stream.
            seeds: (seed, offset) of random generators. A launch of a kernel that `draws`, recorded with the
                scalars (n, offset, ...), uses the seed of seeds[n] and adds the offset of seeds[n] to its
                own.
        """
        ...

    def graph_dump(self, graph: int, path: str) -> None:
        """Write the recorded graph to a file in Graphviz's language."""
        ...

    def graph_native(self, graph: int) -> tuple[int, int]:
        """Return the vendor's handles of the graph and of its executable form: a cudaGraph_t and a
        cudaGraphExec_t.

        Raises:
            NotSupportedError: If the driver's graphs have no such handles.
        """
        ...

    def graph_instantiate(self, graph: int) -> None:
        """Instantiate the graph again, with the changes that were made to it through its native handle."""
        ...

    def graph_destroy(self, graph: int) -> None:
        """Destroy a graph. Its enqueued launches still run."""
        ...

    # -- collectives: NCCL's rules, on every driver ---------------------------------------------------
    def comm_id(self) -> bytes:
        """Return 128 bytes that identify a new communicator to all members that join it."""
        ...

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        """Join a communicator of `size` members and return the handles of the members that this call adds.

        Returns when all members have joined, including those of other threads and processes.

        Args:
            unique: The result of `comm_id`.
            size: Number of members.
            members: (rank, index) of each member that this call adds.
            called: The program's own rank numbers of all members, for reports of virtual machines.
            name: The purpose of the communicator, for reports of virtual machines.

        Raises:
            NotSupportedError: If the driver has no collectives.
        """
        ...

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        """Leave a communicator after its queued work is done. With `abort`, leave immediately: work that waits
        for a peer fails.
        """
        ...

    def comm_error(self, comm: int) -> str | None:
        """Return the first error of the communicator, including a peer's failure; None if there is none."""
        ...

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        """Enqueue contributions (comm, collective, stream) as one group.

        The members of a group run together; none waits for one that is enqueued after it. A collective
        begins when every member has issued its contribution with equal kind, count, dtype, op and root.
        Members issue collectives in the same order. Sends match receives of the same pair in order. A
        mismatch is an error of the device.
        """
        ...

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        """Return True if the device can access the peer's memory directly. False for the device itself."""
        ...

    def peer_enable(self, index: int, peer: int) -> None:
        """Let the device access the peer's memory. The call is idempotent.

        Raises:
            NotSupportedError: If `peer_can` is False.
        """
        ...
