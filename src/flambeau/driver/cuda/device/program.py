"""`KernelProgram`: a kernel built for one launch. `CudaExecutable`: a compiled kernel that is ready to launch."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from cuda.bindings import driver as cu

from flambeau.core.dtype import BOOL, FLOATING, dtype, uint64
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import Packed, pack
from flambeau.driver.cuda.device.assertions import Guard
from flambeau.driver.protocol import Executable, Launch, Launcher

if TYPE_CHECKING:
    from flambeau.driver.cuda.device.streams import CudaStream

ADDRESS = struct.Struct("<Q")

C_NAMES = {
    "bool": "bool", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "half", "bfloat16": "bf16",
    "float32": "float", "float64": "double", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


SOURCES = Path(__file__).parents[1] / "include"
"""The folder of the CUDA C++ files."""


def c_name(kind: dtype) -> str:
    """Return the C++ type of a dtype's elements, as prelude.cuh names it."""
    return C_NAMES[kind.name]


@cache  # the package has few files
def header_text(name: str) -> str:
    """Return the text of the header file that a kernel names; "" for none."""
    return (SOURCES / f"{name}.cuh").read_text() if name else ""


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """The source of a kernel, its grid, and the parameters that are equal for each launch.

    Attributes:
        tail: Parameters after addresses and scalars, as bytes.
        scratch: Bytes of scratch memory, whose address is the last parameter; 0 for none.
        slots: Length of the table of addresses if the addresses are one parameter; otherwise 0.
        shared: Bytes of shared memory in addition to those that the source declares.
        name: The name that profilers show; default: operator and dtype.
    """

    source: str
    grid: tuple[int, int, int]
    block: int
    tail: tuple[bytes, ...] = ()
    scratch: int = 0
    slots: int = 0
    shared: int = 0
    name: str = ""

    def name_and_source(self, launch: Launch) -> tuple[str, str]:
        """Return the kernel's public name, and its source, in which it is called `run`."""
        name = self.name or name_of(launch)
        return name, f"#define run {name}\n{self.source}"

    def addresses(self, count: int) -> tuple[str, list[int]]:
        """Return the struct format that packs `count` addresses, and the sizes of these parameters."""
        if not self.slots:
            return "Q" * count, [8] * count
        return f"{count}Q{8 * (self.slots - count)}x", [8 * self.slots]


def name_of(launch: Launch) -> str:
    """Return the kernel name of a launch that profilers show, such as `add_float32`."""
    metas = launch.operands
    return re.sub(r"\W", "_", f"{launch.kernel.name}_{metas[0].dtype.name}" if metas else launch.kernel.name)


@dataclass(frozen=True, slots=True)
class Late:
    """Parameters that are known only at a launch: the address of `scratch` bytes, and the numbers of guards."""

    scratch: int
    scratch_at: int
    guards: Sequence[tuple[int, int]]

    def values(self, queue: CudaStream, stream: int) -> list[tuple[int, int]]:
        """Return the offset and the value of each parameter for a launch on `stream`."""
        values: list[tuple[int, int]] = []
        if self.scratch:
            values.append((self.scratch_at, queue.device.scratch_of(stream, self.scratch, queue.native)))
        if self.guards:
            launch = queue.device.assertions.note_launch()
            values += [(at, launch | number) for at, number in self.guards]
        return values


class CudaExecutable(Executable):
    """A compiled launch with a reusable buffer of parameters, whose address is passed to the driver API.

    Attributes:
        late: Parameters that are known only at the launch, in addition to those of `pack`; None for none.
        offsets, addresses, scalar_kinds: As in `GenericKernel`.
        lock: Held from packing the parameters until the launch has read them, because the driver call releases the GIL.
        run: `launch_on(ptrs, scalars, stream)` of a launch that is not one kernel, such as a library routine.
    """

    __slots__ = (
        "address", "addresses", "block", "call", "flat", "function", "grid", "keep", "late", "launch_on", "lock",
        "offsets", "pack", "params", "run", "scalar_kinds", "scalars_at", "shared",
    )  # fmt: skip

    call: Callable[..., Any]  # the driver API's launch, with all arguments up to the stream
    run: Callable[[Sequence[int], Sequence[Any], Any, int], None] | None
    launch_on: Launcher

    def __init__(self, launch: Launch, index: int) -> None:
        super().__init__(launch, index)
        self.run = None
        self.lock = Lock()
        self.late: Late | None = None

    def prepare(self, program: KernelProgram, function: Any) -> None:
        """Lay out the parameters of the loaded `function`: addresses, scalars, the program's tail, scratch."""
        self.function, self.grid = function, program.grid
        self.block, self.shared = program.block, program.shared
        self.call = partial(cu.cuLaunchKernel, function, *program.grid, program.block, 1, 1, program.shared)
        wire = [wire_format(x) for x in self.launch.inputs if not isinstance(x, Meta)]
        self.addresses = len(self.launch.operands)
        packed, sizes = program.addresses(self.addresses)
        tail = [*program.tail, bytes(8)] if program.scratch else program.tail
        self.flat, self.scalar_kinds = "dd" not in wire, scalar_kinds(wire)
        self.scalars_at = sum(sizes)
        sizes += [8 * len(w) for w in wire]
        layout = _parameter_layout("<" + packed + "".join(wire), tuple(sizes), tuple([len(p) for p in tail]))
        self.params = layout.buffer()
        self.pack = partial(layout.packing.pack_into, self.params, 0)
        base = ctypes.addressof(self.params)
        self.offsets = offsets = layout.offsets
        parts = list(zip(offsets[len(sizes) :], tail, strict=True))
        for start, part in parts:
            ctypes.memmove(base + start, part, len(part))
        self.keep = layout.pointers(*[base + offset for offset in offsets])
        self.address = ctypes.addressof(self.keep)
        guards = guards_of(parts)
        if program.scratch or guards:
            self.late = Late(program.scratch, offsets[-1] if program.scratch else 0, guards)


class GenericKernel:
    """A compiled kernel with a reusable buffer of parameters, for which each shape provides the grid and the tail.

    Attributes:
        shared: Bytes of shared memory in addition to those that the source declares.
        numbers: Values that depend on the shape and may contain symbols: grid, bytes of scratch memory, tail.
        pack: Packs addresses, scalars and the tail.
        guards: Offsets in the buffer of the numbers of assertions, and these numbers.
        scratch_at: Offset in the buffer of the address of scratch memory; 0 if there is none.
        offsets: The byte of the buffer at which each parameter begins.
        addresses: Number of addresses, which are the first parameters.
        scalars_at: Offset in the buffer of the scalars.
        scalar_kinds: The letter of each scalar: see `scalar_kinds`.
        lock: Held from packing the parameters until a launch has read them.
    """

    __slots__ = (
        "address", "addresses", "block", "function", "guards", "keep", "lock", "numbers", "offsets", "pack", "params",
        "scalar_kinds", "scalars_at", "scratch_at", "shared",
    )  # fmt: skip

    def __init__(self, program: KernelProgram, function: Any, addresses: int, wire: Sequence[str]) -> None:
        self.addresses, self.scalar_kinds = addresses, scalar_kinds(wire)
        packed, sizes = program.addresses(addresses)
        tail = [*program.tail, bytes(8)] if program.scratch else program.tail
        self.lock, self.scalars_at = Lock(), sum(sizes)
        sizes += [8 * len(w) for w in wire]
        layout = _parameter_layout("<" + packed + "".join(wire), tuple(sizes), tuple([len(p) for p in tail]))
        self.function, self.block, self.shared = function, program.block, program.shared
        self.params = layout.buffer()
        base = ctypes.addressof(self.params)
        self.offsets = layout.offsets
        self.keep = layout.pointers(*[base + offset for offset in layout.offsets])
        self.address = ctypes.addressof(self.keep)
        self.scratch_at = layout.offsets[-1] if program.scratch else 0
        parts = list(zip(layout.offsets[len(sizes) :], tail, strict=True))
        self.guards = guards_of(parts)
        joined = _join(parts, sum(sizes))
        packing = struct.Struct(f"<{packed}{''.join(wire)}{len(joined)}s")
        self.pack = partial(packing.pack_into, self.params, 0)
        self.numbers = (program.grid, program.scratch, joined)


class KernelOfShape:
    """A `GenericKernel` with the tail of one shape, with the interface of executables for captures."""

    __slots__ = ("keep", "lock", "pack", "params", "scalars_at")

    def __init__(self, kernel: GenericKernel, tail: bytes) -> None:
        self.keep, self.lock, self.params, self.scalars_at = (
            kernel.keep,
            kernel.lock,
            kernel.params,
            kernel.scalars_at,
        )
        self.pack: Callable[..., None] = lambda *values: kernel.pack(*values, tail)


def _join(parts: Sequence[tuple[int, Any]], at: int) -> Any:
    """Return bytes from offset `at` on that contain each part at its offset."""
    layout = "<"
    values: list[Any] = []
    for start, part in parts:
        symbolic = isinstance(part, Packed)
        layout += f"{start - at}x{part.layout[1:] if symbolic else f'{len(part)}s'}"
        values += part.values if symbolic else (bytes(part),)
        at = start + len(part)
    return pack(layout, *values)


class _Layout(NamedTuple):
    """The positions of a kernel's parameters in their buffer.

    Attributes:
        packing: Packs the addresses and the scalars.
        offsets: The byte at which each parameter begins.
        buffer: The type of the buffer.
        pointers: The type of the array of the parameters' addresses.
    """

    packing: struct.Struct
    offsets: tuple[int, ...]
    buffer: Any
    pointers: Any


@lru_cache(maxsize=1024)
def _parameter_layout(packing: str, sizes: tuple[int, ...], tail: tuple[int, ...]) -> _Layout:
    """Return the layout of parameters packed by `packing`, of `sizes` bytes, and of a tail aligned to 16 bytes."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += size
    for size in tail:
        at = -(-at // 16) * 16
        offsets.append(at)
        at += size
    pointers = ctypes.c_void_p * max(len(offsets), 1)
    return _Layout(struct.Struct(packing), tuple(offsets), ctypes.c_char * max(at, 16), pointers)


def guards_of(parts: Sequence[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """Return the position and number of each assertion guard among the parameters."""
    return [(at + Guard.NUMBER_AT, part.number) for at, part in parts if isinstance(part, Guard)]


def mark(buffer: Any, guards: Sequence[tuple[int, int]], launch: int) -> None:
    """Add a launch's number to the numbers of its assertions. See Note [Call sites of failed assertions]."""
    for at, number in guards:
        ADDRESS.pack_into(buffer, at, launch | number)


def wire_format(x: dtype | type[object]) -> str:
    """Return the struct format of a scalar, which fills whole slots of eight bytes."""
    if not isinstance(x, dtype):
        raise NotSupportedError("a CUDA kernel takes no Python objects")
    if x.is_complex:
        return "dd"
    if x.category == FLOATING:
        return "d"
    return "Q" if x is uint64 else "q"


def scalar_kinds(wire: Sequence[str]) -> bytes:
    """Return one letter for each scalar of these formats: its format, or c for a complex number."""
    return "".join(["c" if kind == "dd" else kind for kind in wire]).encode()


def wire_type(x: dtype | type[object]) -> str:
    """Return the C++ type of a scalar parameter."""
    if isinstance(x, dtype) and x.category == BOOL:
        return "i64"
    return {"dd": "c128", "d": "double", "Q": "u64", "q": "i64"}[wire_format(x)]


def flatten_scalars(scalars: Sequence[Any]) -> list[Any]:
    """Return the scalars with each complex number as its two parts."""
    out: list[Any] = []
    for x in scalars:
        out += (x.real, x.imag) if isinstance(x, complex) else (x,)
    return out


def packed_constant(value: float) -> bytes:
    """Return a constant as a parameter: a double for a float, otherwise a long long."""
    return pack("<d", value) if isinstance(value, float) else pack("<q", value)


def constant_type(value: float) -> str:
    return "double" if isinstance(value, float) else "i64"


@dataclass(slots=True)
class Arguments:
    """A kernel's parameter list as text: `declared` in the kernel, `passed` on to a function."""

    declared: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str) -> None:
        self.declared.append(f"{kind} {name}")
        self.names.append(name)
