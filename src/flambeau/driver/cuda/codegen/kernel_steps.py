"""`KernelSteps`: a launch that is several kernels and library calls, over its operands and temporary memory.

Its construction loads the kernels and computes the size of the temporary memory. A launch allocates that memory from
the device's pool, runs the steps in order on the stream, and frees the memory in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.protocol import Body, Expression, Kernel, Launch

Places = Sequence[int]
"""Addresses of a launch: of its operands, then of its temporary memory."""

Step = Callable[[Places, Any, int], None]
"""`step(places, native stream, stream handle)`."""


@dataclass(frozen=True, slots=True)
class Array:
    """An operand or temporary memory: its index in the list of addresses, its layout, and its offset in bytes."""

    place: int
    meta: Meta
    offset: int = 0


def device_only(launch: Launch) -> Body:
    raise NotSupportedError("a step of a CUDA launch has no host body")


COPY = Kernel("copy", device_only, cuda=Expression("a"))


class KernelSteps:
    """A sequence of kernels and library calls that implements one launch."""

    def __init__(self, launch: Launch, device: CudaDevice, driver: Any) -> None:
        self.launch, self.device, self.driver = launch, device, driver
        self.arrays = [Array(at, meta) for at, meta in enumerate(launch.operands)]
        self.outputs = self.arrays[: len(launch.outputs)]
        self.inputs = self.arrays[len(launch.outputs) :]
        self._steps: list[Step] = []
        self._temps: list[int] = []
        self._closers: list[Callable[[], None]] = []

    # -- building -------------------------------------------------------------------------------------
    def temp(self, meta: Meta) -> Array:
        """Return temporary memory for a tensor of this layout."""
        return Array(self.memory(meta.span), meta)

    def memory(self, nbytes: int) -> int:
        """Reserve temporary memory. Returns its index in the list of arrays."""
        self._temps.append(max(nbytes, 1))
        return len(self.arrays) + len(self._temps) - 1

    def dense(self, shape: tuple[int, ...], kind: dtype) -> Array:
        """Return temporary memory for a contiguous tensor."""
        return self.temp(Meta.contiguous_of(shape, kind, self.launch.outputs[0].device))

    def run(self, kernel: Kernel, out: Array, *inputs: Array, params: tuple[Any, ...] = ()) -> None:
        """Add a launch of a kernel of this package with one output."""
        self.run_all(kernel, (out,), inputs, params)

    def run_all(
        self,
        kernel: Kernel,
        outputs: Sequence[Array],
        inputs: Sequence[Array],
        params: tuple[Any, ...] = (),
        scalars: Sequence[tuple[dtype, Any]] = (),
    ) -> None:
        """Add a launch of `kernel`. `scalars` holds dtype and value of each scalar; they are the last kernel
        arguments.
        """
        if not outputs[0].meta.numel:
            return
        kinds: list[Meta | dtype] = [*[x.meta for x in inputs], *[kind for kind, _ in scalars]]
        launched = Launch(kernel, tuple([x.meta for x in outputs]), tuple(kinds), params)
        exe = self.driver.load(launched, self.device.index)
        at = [(x.place, x.offset) for x in (*outputs, *inputs)]
        launch, values = self.driver.launch, tuple([value for _, value in scalars])
        self.call(lambda places, native, stream: launch(exe, [places[i] + n for i, n in at], values, stream))

    def copy(self, out: Array, x: Array) -> None:
        """Add a copy with conversion to the output's dtype."""
        self.run(COPY, out, x)

    def call(self, step: Step) -> None:
        """Add a library call."""
        self._steps.append(step)

    def on_close(self, closer: Callable[[], None]) -> None:
        self._closers.append(closer)

    # -- running --------------------------------------------------------------------------------------
    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        if not self._temps:
            for step in self._steps:
                step(ptrs, native, stream)
            return
        places = list(ptrs)
        try:
            for nbytes in self._temps:
                places.append(self.device.take(nbytes, native))  # noqa: PERF401 (it holds what was taken)
            for step in self._steps:
                step(places, native, stream)
        finally:
            # reversed, so that the next launch gets them in the order of this one
            for ptr in places[: len(ptrs) - 1 : -1]:
                self.device.give(ptr, native)

    def close(self) -> None:
        """Release the plans and handles that the steps use in CUDA's libraries."""
        for closer in self._closers:
            closer()
        self._closers.clear()
