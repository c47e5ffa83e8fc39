"""The work of kernels that read or write the elements that indices select; the other elements cost nothing."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, Work, distinct_bytes
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND


def _indices(launch: Launch) -> list[Meta]:
    return [
        x for x in launch.inputs[1:] if isinstance(x, Meta) and x.dtype.name in ("int64", "int32", "bool")
    ]


def _work(
    launch: Launch, count: int, passes: int, itemsize: int, instructions: float, microseconds: float
) -> Work:
    """Return the work of `count` selected elements that move `passes` times, in addition to the indices."""
    nbytes = float(passes * count * itemsize + sum([distinct_bytes(x) for x in _indices(launch)]))
    cycles = microseconds * CYCLES_OF_A_MICROSECOND
    return Work(nbytes, nbytes, max(count, 1), instructions * count, cycles)


def read_rows(launch: Launch) -> Work:
    """Return the work of `index_select`, `embedding`, `take` and indexing: each selected element is copied."""
    out = launch.outputs[0]
    return _work(launch, out.numel, 2, out.itemsize, 74.0, 0.5)


def gather(launch: Launch) -> Work:
    """Return the work of `gather`, which reads an index for each element."""
    out = launch.outputs[0]
    return _work(launch, out.numel, 2, out.itemsize, 60.0, 3.5)


def _operand_with_values(launch: Launch) -> Meta:
    """Return the operand with the values to write, or the first output if the launch writes a scalar."""
    out = launch.outputs[0]
    values = [x for x in launch.inputs[1:] if isinstance(x, Meta) and x.dtype == out.dtype]
    return max(values, key=lambda x: x.numel, default=out)


def write_rows(launch: Launch) -> Work:
    """Return the work of `index_put`, `index_copy` and `index_fill`."""
    return _work(launch, _operand_with_values(launch).numel, 3, launch.outputs[0].itemsize, 100.0, 1.5)


def add_rows(launch: Launch) -> Work:
    """Return the work of `index_add` and `index_reduce`, whose sums use atomic operations."""
    return _work(launch, _operand_with_values(launch).numel, 3, launch.outputs[0].itemsize, 90.0, 1.2)


def scatter(launch: Launch) -> Work:
    """Return the work of `scatter` in all its forms."""
    indices = _indices(launch)
    count = indices[0].numel if indices else launch.outputs[0].numel
    return _work(launch, count, 3, launch.outputs[0].itemsize, 90.0, 4.0)
