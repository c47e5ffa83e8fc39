"""Tests of `KernelLauncher`, the launch function in C of the compiled wheel, over a recording `cuLaunchKernel`.

Parameters are compared with what `struct` packs. Needs a C compiler and Python's headers, and neither CUDA nor a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import shutil
import struct
import subprocess
import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import flambeau

SOURCE = Path(flambeau.__file__).parent / "driver" / "cuda" / "device" / "native_launch.c"
HEADERS = sysconfig.get_paths()["include"]
UNSIGNED = [ctypes.c_uint] * 7
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *UNSIGNED,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or not Path(HEADERS, "Python.h").exists() or not SOURCE.exists(),
    reason="needs gcc and Python's headers",
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = tmp_path_factory.mktemp("native") / "native_launch.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", f"-I{HEADERS}"]
    if sys.platform == "darwin":
        options += ["-undefined", "dynamic_lookup"]
    subprocess.run(["gcc", *options, SOURCE, "-o", library], check=True)
    spec = importlib.util.spec_from_file_location("native_launch", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorder:
    """A `cuLaunchKernel` that records its arguments, with `sizes` bytes of each parameter, and returns `code`."""

    def __init__(self, sizes: list[int], code: int = 0) -> None:
        self.sizes, self.code, self.calls = sizes, code, []  # type: ignore[var-annotated]
        self.function = LAUNCH(self.note)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def note(self, function: int, *rest: Any) -> int:
        *numbers, stream, params, extra = rest
        parts = [ctypes.string_at(params[i], size) for i, size in enumerate(self.sizes)]
        self.calls.append((function, tuple(numbers), stream, parts, extra))
        return self.code


class Host:
    """The parts of the driver that a launcher uses."""

    def __init__(self, entered: bool = True) -> None:
        self.thread = types.SimpleNamespace(entered=entered)
        self.stream = types.SimpleNamespace(native_address=0xABC0, device="device")
        self.streams, self.entered = {7: self.stream}, []  # type: ignore[var-annotated]

    def find(self, handle: int) -> Any:
        raise LookupError(f"no stream {handle}")

    def launcher(self, native: Any, recorder: Recorder, **changes: Any) -> Any:
        given = {
            "launch": recorder.address, "function": 0xF00, "grid": (3, 2, 1), "block": 128, "shared": 64,
            "several": False, "streams": self.streams, "find": self.find, "thread": self.thread,
            "enter": self.entered.append, "error": lambda code: ValueError(f"code {code}"), "late": None,
            "params": b"", "offsets": (), "addresses": 0, "scalars_at": 0, "scalars": b"",
        }  # fmt: skip
        return native.KernelLauncher(**given | changes)


def draw_scalar(draw: random.Random, kind: str) -> Any:
    if kind == "q":
        return draw.choice([0, -1, True, -(1 << 63), (1 << 63) - 1, draw.randrange(1 << 40)])
    if kind == "Q":
        return draw.choice([0, (1 << 64) - 1, draw.randrange(1 << 63)])
    number = draw.choice([0.0, -0.0, 1.5, float("inf"), -1.0, draw.gauss(0, 1e300), 3])
    return complex(number, draw.random()) if kind == "c" else number


@pytest.mark.parametrize("seed", range(20))
def test_native_launch_passes_packed_parameters(native: Any, seed: int) -> None:
    draw = random.Random(seed)
    count, kinds = draw.randrange(9), draw.choices("dqQc", k=draw.randrange(5))
    slots = count + draw.randrange(3)
    tail = draw.randbytes(draw.randrange(1, 200))
    scalar_sizes = [16 if kind == "c" else 8 for kind in kinds]
    table = draw.random() < 0.3  # one parameter for all addresses
    sizes = [*([8 * slots] if table and slots else [8] * count), *scalar_sizes, len(tail)]
    at = 8 * (slots if table else count)
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    params = bytes(at + sum(scalar_sizes)) + tail
    recorder, host = Recorder(sizes), Host()
    launch = host.launcher(
        native, recorder, params=params, offsets=tuple(offsets), addresses=count, scalars_at=at,
        scalars="".join(kinds).encode(),
    )  # fmt: skip
    for _ in range(2):
        ptrs = [draw.randrange(1 << 64) for _ in range(count)]
        scalars = [draw_scalar(draw, kind) for kind in kinds]
        launch(draw.choice([tuple, list])(ptrs), scalars, 7)
        values = [part for x in scalars for part in ((x.real, x.imag) if isinstance(x, complex) else (x,))]
        wire = "".join("dd" if kind == "c" else kind for kind in kinds)
        packed = struct.pack(f"<{count}Q{at - 8 * count}x{wire}", *ptrs, *values) + tail
        expected = [packed[start : start + size] for start, size in zip(offsets, sizes, strict=True)]
        assert recorder.calls.pop() == (0xF00, (3, 2, 1, 128, 1, 1, 64), 0xABC0, expected, None)
    assert not host.entered


def test_native_launch_of_another_shape_leaves_the_first_unchanged(native: Any) -> None:
    recorder, host = Recorder([8, 8, 4]), Host()
    first = host.launcher(
        native,
        recorder,
        params=bytes(16) + b"tail",
        offsets=(0, 8, 16),
        addresses=1,
        scalars_at=8,
        scalars=b"d",
    )
    late = [(16, 5)]
    with pytest.raises(ValueError, match="late parameter"):
        first.of_shape((9, 1, 1), b"TAIL", lambda stream, handle: late)([1], [2.0], 7)
    second = first.of_shape((9, 1, 1), b"TAIL", None)
    first([1], [2.0], 7), second([3], [4.0], 7)
    grids = [(call[1][:3], call[3]) for call in recorder.calls]
    assert grids == [
        ((3, 2, 1), [struct.pack("<Q", 1), struct.pack("<d", 2), b"tail"]),
        ((9, 1, 1), [struct.pack("<Q", 3), struct.pack("<d", 4), b"TAIL"]),
    ]
    with pytest.raises(ValueError, match="tail"):
        first.of_shape((1, 1, 1), b"longer than the parameters", None)


def test_native_launch_sets_late_parameters_of_its_stream(native: Any) -> None:
    recorder, host = Recorder([8, 16]), Host(entered=False)
    asked = []

    def late(stream: Any, handle: int) -> list[tuple[int, int]]:
        asked.append((stream, handle))
        return [(8, 1 << 63), (16, 6)]

    host.launcher(native, recorder, params=bytes(24), offsets=(0, 8), addresses=1, scalars_at=8, late=late)(
        [1], (), 7
    )
    assert recorder.calls[0][3] == [struct.pack("<Q", 1), struct.pack("<QQ", 1 << 63, 6)]
    assert asked == [(host.stream, 7)] and host.entered == ["device"]


def test_native_launch_refuses_what_does_not_fit(native: Any) -> None:
    recorder, host = Recorder([8, 8], code=700), Host()
    layout = {"params": bytes(16), "offsets": (0, 8), "addresses": 1, "scalars_at": 8, "scalars": b"q"}
    launch = host.launcher(native, recorder, **layout)
    for ptrs, scalars, error in [
        ((), (1,), ValueError), ((1,), (), ValueError), ((-1,), (1,), OverflowError), (("1",), (1,), TypeError),
        ((1,), (1.5,), TypeError), ((1,), (1 << 63,), OverflowError), (1, (1,), TypeError),
    ]:  # fmt: skip
        with pytest.raises(error):
            launch(ptrs, scalars, 7)
    assert not recorder.calls
    with pytest.raises(LookupError, match="no stream 8"):
        launch((1,), (1,), 8)
    with pytest.raises(ValueError, match="code 700"):
        launch((1,), (1,), 7)
    with pytest.raises(TypeError):
        launch((1,), (1,))
    for change in ({"scalars": b"x"}, {"params": bytes(8)}, {"offsets": (0, 99)}, {"addresses": 3}):
        with pytest.raises(ValueError):
            host.launcher(native, recorder, **layout | change)


def test_native_launches_of_threads_share_no_parameters(native: Any) -> None:
    """Launch without the GIL: another thread's launch of the same kernel may begin meanwhile."""
    recorder, host = Recorder([8]), Host()
    launch = host.launcher(native, recorder, params=bytes(8), offsets=(0,), addresses=1, scalars_at=8)
    launches = [
        threading.Thread(target=lambda n=n: [launch((n,), (), 7) for _ in range(50)]) for n in range(4)
    ]
    for each in launches:
        each.start()
    for each in launches:
        each.join()
    addresses = sorted(struct.unpack("<Q", parts[0])[0] for _, _, _, parts, _ in recorder.calls)
    assert addresses == sorted(list(range(4)) * 50)
