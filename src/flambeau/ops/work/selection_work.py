"""The work of kernels that read or write the elements that indices select; the other elements cost nothing."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, Work, distinct_bytes
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, source_of


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


_VECTOR = 16  # bytes of the widest load
_SECTOR = 32  # bytes that an element alone moves
_FEW = 16  # indices, up to which a kernel goes over the elements of a row for all of them


def read_rows(launch: Launch) -> Work:
    """Return the work of indexing and `take`: each selected element is copied, aligned rows in wide loads."""
    out = launch.outputs[0]
    if _are_rows_wide(out):
        return _work(launch, out.numel, 2, out.itemsize, 8.0, 0.3)
    return _work(launch, out.numel, 2, out.itemsize, 106.0, 0.4 if out.ndim < 2 or out.numel < 256 else 1.4)


def select_rows(launch: Launch) -> Work:
    """Return the work of `index_select` and `embedding`: like that of indexing, with other figures for few rows."""
    out = launch.outputs[0]
    if _are_rows_wide(out):
        return _work(launch, out.numel, 2, out.itemsize, 8.0, 1.4)
    return _work(launch, out.numel, 2, out.itemsize, 74.0, 0.6 if out.shape[:1] <= (_FEW,) else 2.5)


def _are_rows_wide(out: Meta) -> bool:
    return out.ndim > 1 and out.shape[-1] * out.itemsize % _VECTOR == 0


def gather(launch: Launch) -> Work:
    """Return the work of `gather`, which reads an index for each element."""
    out, source = launch.outputs[0], source_of(launch)
    alone = source.ndim > 0 and source.shape[0] > 1  # neighbours of the result are apart in the source
    found = _work(launch, out.numel, 2, out.itemsize, 60.0, 3.5)
    return found.with_(nbytes=found.nbytes + (_SECTOR - out.itemsize) * out.numel) if alone else found


def _operand_with_values(launch: Launch) -> Meta:
    """Return the operand with the values to write, or the first output if the launch writes a scalar."""
    out = launch.outputs[0]
    values = [x for x in launch.inputs[1:] if isinstance(x, Meta) and x.dtype == out.dtype]
    return max(values, key=lambda x: x.numel, default=out)


def write_rows(launch: Launch) -> Work:
    """Return the work of `index_put`, `index_copy` and `index_fill`."""
    return _work(launch, _operand_with_values(launch).numel, 3, launch.outputs[0].itemsize, 100.0, 1.5)


def fill_rows(launch: Launch) -> Work:
    """Return the work of `index_fill`, which writes a number at each selected place."""
    out, index = launch.outputs[0], _indices(launch)[0]
    along = out.shape[launch.params[0]] if out.ndim else 1
    return _work(launch, index.numel * out.numel // max(along, 1), 1, out.itemsize, 78.0, 1.5)


def add_rows(launch: Launch) -> Work:
    """Return the work of `index_add` and `index_reduce`, whose sums use atomic operations."""
    return _work(
        launch, _operand_with_values(launch).numel, 3, launch.outputs[0].itemsize,
        125.0 if launch.outputs[0].itemsize > 2 else 200.0, 1.2,
    )  # fmt: skip


def scatter(launch: Launch) -> Work:
    """Return the work of `scatter` in all its forms."""
    indices = _indices(launch)
    count = indices[0].numel if indices else launch.outputs[0].numel
    return _work(launch, count, 3, launch.outputs[0].itemsize, 90.0, 4.0)
