"""`emulated`: a launch's CUDA form run on the CPU, from the very source that NVRTC compiles. Needs g++, and no GPU.

g++ compiles the source behind `emulated.h`; a thread is a fiber, so barriers, shuffles and shared memory mean what they
mean on a GPU, though not how fast, nor what happens between two barriers. Operands end where a page begins
that nobody may touch, or begin where vectors are aligned and end before a fence.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import mmap
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.core.dtype import from_numpy
from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.driver.cuda.device.program import KernelProgram, flatten_scalars, wire_format
from flambeau.driver.protocol import Launch

HERE = Path(__file__).parent
HEADERS = HERE / "emulated_headers"
SOURCES = HERE.parents[1] / "src" / "flambeau" / "driver" / "cuda" / "include"
_FLAGS = (
    "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-mf16c", "-ffp-contract=off", "-fcf-protection=none",
    "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
_FENCE = 0xA5
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    return shutil.which("g++") is not None


# -- sources ------------------------------------------------------------------------------------------------


@cache
def _folder() -> Path:
    """With the header and the prelude, compiled once: that takes longer than most sources do."""
    folder = Path(tempfile.mkdtemp(prefix="emulated"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = folder / "emulated.h"
    header.write_text(
        (HEADERS / "emulated.h").read_text() + _translated((SOURCES / "prelude.cuh").read_text())
    )
    _compile("-x", "c++-header", str(header), "-o", f"{header}.gch")
    return folder


def _compile(*arguments: str) -> None:
    # gcc: as g++ does, without the C++ library, which takes a quarter of the time to link.
    done = subprocess.run(["gcc", *_FLAGS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{arguments}\n{done.stderr[:3000]}")


@cache
def library(source: str) -> ctypes.CDLL:
    """The source compiled for this CPU."""
    text = "\n".join(
        [
            '#include "emulated.h"',
            _translated(source),
            (HEADERS / "emulated_end.h").read_text(),
        ]
    )
    name = _folder() / hashlib.sha256(text.encode()).hexdigest()[:16]
    name.with_suffix(".cpp").write_text(text)
    _compile(str(name.with_suffix(".cpp")), "-o", str(name.with_suffix(".so")))
    return ctypes.CDLL(str(name.with_suffix(".so")))


def _translated(text: str) -> str:
    """PTX of the prelude as intrinsics; instructions of tensor cores as functions that do the same."""
    text = re.sub(r'float r; asm\("cvt\.f32\.f16[^;]*;[^;]*;', "float r = _cvtsh_ss(x.bits);", text)
    text = re.sub(r'u16 r; asm\("cvt\.rn\.f16\.f32[^;]*;[^;]*;', "u16 r = _cvtss_sh(x, 0);", text)
    for name in ("tensor_cores", "warpgroups"):
        text = text.replace(
            (SOURCES / f"{name}.cuh").read_text(), (HEADERS / f"emulated_{name}.h").read_text()
        )
    return text


# -- memory -------------------------------------------------------------------------------------------------


class Memory:
    """Bytes with a forbidden page behind them: `tight` ones end there, others begin aligned to 256 bytes."""

    def __init__(self, nbytes: int, tight: bool, fill: int = _FENCE) -> None:
        self.nbytes = nbytes
        room = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, room + _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if _libc.mprotect(ctypes.c_void_p(start + room), _PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self._all = (start, room)
        ctypes.memset(start, fill, room)
        self.ptr = start + room - nbytes if tight else start

    def is_whole(self) -> bool:
        """Whether nothing was written around the bytes."""
        start, room = self._all
        around = ctypes.string_at(start, self.ptr - start) + ctypes.string_at(
            self.ptr + self.nbytes, start + room - self.ptr - self.nbytes
        )
        return around == bytes([_FENCE]) * len(around)


def _filled(array: np.ndarray[Any, Any], meta: Meta, tight: bool) -> Memory:
    memory = Memory(_span(meta), tight)
    array_at(memory.ptr, meta.shape, meta.dtype.numpy, meta.byte_strides)[...] = array
    return memory


def _span(meta: Meta) -> int:
    if not meta.numel:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.strides, strict=True))) * meta.itemsize


# -- devices and launches -----------------------------------------------------------------------------------


class Assertions:
    """Stands in for a device's: `failed` says what a kernel's guard reported."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * 4)()
        self.texts: list[tuple[str, str]] = []

    def guard(self, name: str, text: str = "index {index} of {size}") -> bytes:
        self.texts.append((name, text))
        return struct.pack("<QQ", ctypes.addressof(self.words), len(self.texts))

    @property
    def failed(self) -> str:
        code, index, size, dim = self.words
        return self.texts[code - 1][1].format(index=index, size=size, dim=dim) if code else ""


class _Properties:
    multi_processor_count = 4
    max_threads_per_multi_processor = 2048


class Device:
    """What builders ask of a device."""

    index = 0
    properties = _Properties()

    def __init__(self) -> None:
        self.assertions = Assertions()


def built(launch: Launch, device: Any) -> Any:
    """The program or plan of a launch."""
    from flambeau.driver.cuda.kernel_builder import build_kernels

    program = build_kernels(launch, device)
    assert program is not None, f"{launch.kernel.name} has no CUDA form"
    return program


def execute(
    program: KernelProgram, addresses: Sequence[int], wire: Sequence[str], scalars: Sequence[Any], order: int
) -> None:
    found = library(program.source)
    packed = [struct.pack("<Q", at) for at in addresses]
    if program.slots:  # a table of addresses is one parameter
        packed = [b"".join(packed).ljust(8 * program.slots, b"\0")]
    values = iter(flatten_scalars(scalars))
    packed += [struct.pack("<" + w, *[next(values) for _ in w]) for w in wire]
    packed += list(program.tail)
    scratch = Memory(program.scratch, False, 0) if program.scratch else None
    if scratch:
        packed.append(struct.pack("<Q", scratch.ptr))
    sizes = (ctypes.c_long * 64)()
    count = found.parameter_sizes(sizes)
    assert list(sizes)[:count] == [len(p) for p in packed], (
        f"parameters {list(sizes)[:count]}, packed {[len(p) for p in packed]}"
    )
    kept = [ctypes.create_string_buffer(len(p) + 16) for p in packed]
    places = [-(-ctypes.addressof(b) // 16) * 16 for b in kept]
    for at, p in zip(places, packed, strict=True):
        ctypes.memmove(at, p, len(p))
    pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
    x, y, z = program.grid
    if found.emulate(x, y, z, program.block, pointers, order):
        raise AssertionError("threads wait for ever")


def emulated(
    launch: Launch,
    inputs: Sequence[Any],
    tight: bool = False,
    order: int = 0,
    device: Device | None = None,
    into: Mapping[int, int] = {},
) -> list[np.ndarray[Any, Any]]:
    """The outputs of a launch. `inputs`: arrays of the launch's shapes, and scalars. order: how threads take turns.
    into: the output that is written into the memory of the array.

    Raises AssertionError: memory around the operands was written, threads that wait for ever, a kernel's assertion.
    """
    device = device or Device()
    metas = [x for x in launch.inputs if isinstance(x, Meta)]
    arrays = [x for x in inputs if isinstance(x, np.ndarray)]
    scalars = [x for x in inputs if not isinstance(x, np.ndarray)]
    sources = [_filled(a, meta, tight) for a, meta in zip(arrays, metas, strict=True)]
    outputs = [
        sources[into[k]] if k in into else Memory(_span(meta), tight) for k, meta in enumerate(launch.outputs)
    ]
    memories = [*outputs, *sources]
    kept = [m for at, m in enumerate(sources) if at not in into.values()]
    before = [ctypes.string_at(m.ptr, m.nbytes) for m in kept]
    wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)]
    if launch.outputs and not any(meta.numel for meta in launch.outputs):
        return [np.zeros(meta.shape, meta.dtype.numpy) for meta in launch.outputs]
    plan = built(launch, device)
    if isinstance(plan, KernelProgram):
        execute(plan, [m.ptr for m in memories], wire, scalars, order)
    else:
        work = Memory(plan.workspace, False)
        ctypes.memset(work.ptr, 0, plan.zeroed)
        for step in plan.passes:
            at = [(work.ptr if which < 0 else memories[which].ptr) + offset for which, offset in step.places]
            execute(step.program, at, wire if step.scalars else (), scalars if step.scalars else (), order)
        assert work.is_whole(), "memory around the workspace was written"
    assert all(m.is_whole() for m in memories), "memory around an operand was written"
    assert before == [ctypes.string_at(m.ptr, m.nbytes) for m in kept], "an input was written"
    assert not device.assertions.failed, device.assertions.failed
    return [
        np.array(array_at(m.ptr, meta.shape, meta.dtype.numpy, meta.byte_strides))
        for m, meta in zip(outputs, launch.outputs, strict=True)
    ]


def of_host(launch: Launch, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The same by the host body, from which an emulated result must not differ by more than rounding."""
    outputs = [np.zeros(meta.shape, meta.dtype.numpy) for meta in launch.outputs]
    with np.errstate(all="ignore"):
        launch.kernel.host(launch)(outputs, list(inputs))
    return outputs


def meta_of(array: np.ndarray[Any, Any], where: Any) -> Meta:
    kind = from_numpy(array.dtype)
    return Meta.of(array.shape, tuple([s // kind.itemsize for s in array.strides]), kind, where)
