"""The functions of `Kernel.workspace`: memory that PyTorch's kernel of an operator takes while it runs.

bench/accuracy compares peaks with those of PyTorch 2.11 on an H100.
"""

from __future__ import annotations

import math

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.work.convolution_work import copied_operands
from flambeau.ops.work.element_work import source_of
from flambeau.ops.work.product_work import first_operands
from flambeau.ops.work.reduction_plan import plan_reduction, reduced_dims

Sizes = tuple[int, ...]
"""Bytes of each block."""


def nothing(launch: Launch) -> Sizes:
    """Return no blocks."""
    return ()


def one_number(launch: Launch) -> Sizes:
    """Return the bytes of one number, such as the sum of the weights of a mean."""
    return (4,)


def moments_of_rows(launch: Launch) -> Sizes:
    """Return the bytes of each row's mean and deviation, for norms with the params (number of dimensions, ...)."""
    shape = launch.outputs[0].shape
    return (4 * math.prod(shape[: len(shape) - launch.params[0]]),) * 2


def moment_of_odd_rows(launch: Launch) -> Sizes:
    """Return the bytes of each row's root mean square if rows are no multiple of four elements."""
    shape = launch.outputs[0].shape
    kept = len(shape) - launch.params[0]
    return (4 * math.prod(shape[:kept]),) if math.prod(shape[kept:]) % 4 else ()


def sums_of_channels(launch: Launch) -> Sizes:
    """Return the bytes of two sums of each channel, of batch normalization's gradient."""
    return (4 * launch.outputs[0].shape[1],) * 2


def one_result(launch: Launch) -> Sizes:
    """Return the bytes of one more tensor like the first output."""
    return (launch.outputs[0].nbytes,)


def moments_of_groups(launch: Launch) -> Sizes:
    """Return the bytes of each group's mean and deviation, and of each channel's factors if there are weights."""
    meta = launch.outputs[0]
    samples, channels = meta.shape[:2]
    moments = (meta.itemsize * samples * launch.params[0],) * 2
    return (*moments, *(4 * samples * channels,) * 2) if len(launch.inputs) > 1 else moments


def copies_of_input(launch: Launch) -> Sizes:
    """Return the bytes of a copy of the input, and of another one that makes it contiguous."""
    source = source_of(launch)
    nbytes = source.numel * source.itemsize
    return (nbytes,) if source.contiguous else (nbytes, nbytes)


def rest_of_columns(launch: Launch) -> Sizes:
    """Return the bytes by which the columns exceed the result: `fold` allocates it as large as them."""
    source, out = source_of(launch), launch.outputs[0]
    return (max(source.numel * source.itemsize - out.nbytes, 0),)


def one_list(launch: Launch) -> Sizes:
    """Return the bytes of temporary tensors, one for each tensor of a list; the first param is their number."""
    return tuple([meta.nbytes for meta in launch.outputs[: launch.params[0]]])


def _partial(launch: Launch, nbytes: int) -> Sizes:
    source = source_of(launch)
    return plan_reduction(source, reduced_dims(launch)).buffers(nbytes) if source.numel else ()


def _source_itemsize(launch: Launch) -> int:
    source = source_of(launch)
    return source.itemsize


def mask_and_counts(launch: Launch) -> Sizes:
    """Return the bytes of `count_nonzero`'s comparisons with zero, as truth values and as integers."""
    source = source_of(launch)
    return (source.numel, 8 * source.numel)


def indices_of_a_row(launch: Launch) -> Sizes:
    """Return the bytes of the indices of a row, which `sort` copies to all short rows."""
    source = source_of(launch)
    columns = source.shape[launch.params[0]] if source.ndim else 1
    return (8 * columns,) if columns <= 4096 else ()


def partial_sums(launch: Launch) -> Sizes:
    """Return the bytes of a reduction's partial results, of at least single precision, and of its counters."""
    return _partial(launch, max(4, _source_itemsize(launch)))


def partial_elements(launch: Launch) -> Sizes:
    """Return the bytes of a reduction's partial results, of the input's dtype, and of its counters."""
    return _partial(launch, _source_itemsize(launch))


def partial_pairs(launch: Launch) -> Sizes:
    """Return the bytes of a reduction's partial results, each a pair or a mean with its moment, and of its counters."""
    return _partial(launch, 16)


def exponentials(launch: Launch) -> Sizes:
    """Return the bytes of `logsumexp`'s maxima, exponentials and the partial results of their sum."""
    source = source_of(launch)
    nbytes = source.numel * source.itemsize
    return (launch.outputs[0].nbytes, nbytes, *partial_sums(launch))


# -- attention --------------------------------------------------------------------------------------------------------

_FLAG = 256  # bytes of a counter or of padding
_RANDOM = (8, 8)  # bytes of a seed and an offset, which dropout would use


def attention(launch: Launch) -> Sizes:
    """Return the bytes of cuDNN's kernel for half precision. PyTorch's kernel for float32 takes none."""
    return () if launch.outputs[0].itemsize > 2 else (*_RANDOM, _FLAG)


def attention_gradient(launch: Launch) -> Sizes:
    """Return the bytes of the query's gradient in float32, and of a sum of each query's row."""
    q = launch.outputs[0]
    if not q.numel:
        return ()
    length, depth = q.shape[-2:]
    heads = q.numel // (length * depth)
    sums = 4 * heads * length
    if q.itemsize <= 2:
        return (4 * q.numel + sums + _FLAG,)
    side, wide = 128 if depth > 64 else 64, -(-depth // 64) * 64
    high = -(-length // side) * side
    partial = 4 * heads * (high * wide + 4 * (high // 64))
    product = q.nbytes  # of the gradient and the output, of which the sums are taken
    return (sums, partial) if partial >= product + sums else (product, sums, sums)


# -- convolutions -----------------------------------------------------------------------------------------------------

_PADDING = 16  # bytes of a convolution's workspace beyond its copies


def _copies(launch: Launch, broad: Meta, weight: Meta, narrow: Meta) -> Sizes:
    if launch.params[0].transposed or not (broad.numel and weight.numel and narrow.numel):
        return ()
    copies = copied_operands(broad, weight, narrow)
    return (sum(copies) + _PADDING,) if copies else ()


def convolution(launch: Launch) -> Sizes:
    """Return the bytes of the operands' copies in the layout that cuDNN's kernel needs."""
    x, weight = first_operands(launch)
    return _copies(launch, x, weight, launch.outputs[0])


def convolution_of_input(launch: Launch) -> Sizes:
    """Return the bytes of such copies in a convolution's gradient with respect to its input."""
    grad, weight = first_operands(launch)
    return _copies(launch, launch.outputs[0], weight, grad)


def convolution_of_weight(launch: Launch) -> Sizes:
    """Return the bytes of such copies in a convolution's gradient with respect to its weight."""
    grad, x = first_operands(launch)
    return _copies(launch, x, launch.outputs[0], grad)
