"""The kernel of `cuda._sleep`: it occupies its stream for a number of clock cycles and touches no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.driver.protocol import Body, Kernel, Launch, Source


def _host(launch: Launch) -> Body:
    def body(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Do nothing: the kernel only takes time on the device."""

    return body


_SPIN = """
extern "C" __global__ void run(i64 cycles) {
  const i64 start = clock64();
  while (clock64() - start < cycles) {}
}
"""

SLEEP = Kernel(
    "_sleep",
    _host,
    cycles=lambda scalars: int(scalars[0]),
    cuda=Source(lambda launch: _SPIN, lambda launch: 1, block=1),
)
