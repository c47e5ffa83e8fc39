"""torch.cuda.comm: copies and sums of tensors over several GPUs, from one process.

Each copy is enqueued like `Tensor.copy_`: on the current stream of the source's device, ordered with both devices'
current streams, so the host does not wait. Copies between devices without peer access go through the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from warnings import warn

from flambeau.core.device import CPU, device
from flambeau.nn.parallel.flat_buckets import buckets, flatten_bucket, in_order, unflatten_bucket
from flambeau.runtime import current, system
from flambeau.runtime.streams.guards import StreamContext
from flambeau.tensor.arguments.typing import contiguous_format, memory_format, suggested_format
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]

BUFFER = 10 << 20


# -- one to all -------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, devices: Any = None, *, out: Any = None) -> tuple[Tensor, ...]:
    """Copy `tensor`, of the CPU or a GPU, to several GPUs. As in PyTorch, the tensor's device gets the tensor itself.

    Args:
        devices: Iterable of torch.device, str or int. Exactly one of `devices` and `out` must be present.
        out: GPU tensors of its shape, which receive the copies and are returned.

    Raises:
        RuntimeError: If both or neither are present, or `out` is on another device or has another shape.
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if devices is not None:
        return tuple([_at(tensor, i) for i in _indices(devices)])
    out = tuple(out)
    for i, target in enumerate(out):
        _check_on_gpu("output", i, target)
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {_shape_list(tensor)}, but "
                f"output tensor at index {i} has shape {_shape_list(target)}"
            )
    for target in out:
        _copy(target, tensor)
    return out


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Any, buffer_size: int = BUFFER
) -> tuple[tuple[Tensor, ...], ...]:
    """Copy all `tensors` to several GPUs. Returns a tuple for each device.

    Tensors of one dtype are copied in buffers of at most `buffer_size` bytes (a larger one alone), and the copies are
    parts of these. The tensors must be on one device, the CPU or a GPU; if it is among `devices`, it gets the tensors
    themselves.

    Raises:
        RuntimeError: If there is no device, or the tensors are on several devices.
        ValueError: If buffer_size <= 0.
    """
    tensors, indices = tuple(tensors), _indices(devices)
    if not indices:
        raise RuntimeError("Expected at least one device to broadcast to")
    homes = {t.device for t in tensors}
    if len(homes) > 1:
        raise RuntimeError(
            f"All tensors must be on one device, but got tensors on {', '.join(sorted(map(str, homes)))}"
        )
    copies: list[list[Tensor]] = [[] for _ in indices]
    order: list[Tensor] = []
    for bucket in buckets(tensors, buffer_size):
        order += bucket
        flat = flatten_bucket(bucket) if homes != {device("cuda", i) for i in indices} else None
        for found, index in zip(copies, indices, strict=True):
            found += _parts(flat, bucket, index)
    return tuple([tuple(in_order(found, order, tensors)) for found in copies])


def _parts(flat: Tensor | None, bucket: Sequence[Tensor], index: int) -> Sequence[Tensor]:
    """Return the tensors of a bucket on a device. Each has a separate version count, although they share a buffer."""
    if flat is None or bucket[0].device == device("cuda", index):
        return bucket
    return [part.data for part in unflatten_bucket(_at(flat, index), bucket)]


# -- all to one -------------------------------------------------------------------------------------------------


def reduce_add(inputs: Sequence[Tensor], destination: Any = None) -> Tensor:
    """Return the sum of tensors of several GPUs, on one of these GPUs.

    Args:
        inputs: Tensors of one shape and dtype.
        destination: The device, int or torch.device, that one of them is on; default: the current one.

    Added in the order of `inputs`, after the destination's own. A single tensor is its own sum.

    Raises:
        ValueError: If shapes differ.
        AssertionError: For a tensor on the CPU.
        RuntimeError: If dtypes differ, or none is at the destination.
    """
    inputs = tuple(inputs)
    index = _index(destination)
    homes = [t.get_device() for t in inputs]
    for i, t in enumerate(inputs):
        if t.device.type == "cpu":
            raise AssertionError(f"reduce_add expects all inputs to be on GPUs, but input {i} is on CPU")
        if t.shape != inputs[0].shape:
            got, expected = ("x".join(map(str, x.shape)) for x in (t, inputs[0]))
            raise ValueError(f"input {i} has invalid size: got {got}, but expected {expected}")
        if t.dtype is not inputs[0].dtype:
            raise RuntimeError(
                f"reduce_add expects one dtype: input {i} has {t.dtype}, but expected {inputs[0].dtype}"
            )
    if index not in homes:
        raise RuntimeError("reduce_add expects destination to be on the same GPU with one of the tensors")
    root = len(homes) - 1 - homes[::-1].index(index)
    if len(inputs) == 1:
        return inputs[0]
    others = [t for i, t in enumerate(inputs) if i != root]
    total = inputs[root] + _at(others[0], index)
    for other in others[1:]:
        total = total.add_(_at(other, index))
    return total


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Tensor]], destination: Any = None, buffer_size: int = BUFFER
) -> tuple[Tensor, ...]:
    """Sum lists of tensors, one list for each GPU, elementwise: the first tensors, the second tensors, ...

    Tensors of one dtype are copied in buffers of at most `buffer_size` bytes. Raises like `reduce_add`.

    Raises:
        ValueError: If lists have different lengths, or buffer_size <= 0.
    """
    lists = [tuple(tensors) for tensors in inputs]
    if len({len(tensors) for tensors in lists}) > 1:
        raise ValueError(f"reduce_add_coalesced expects lists of one length, got {[len(x) for x in lists]}")
    sums: list[Tensor] = []
    order: list[Tensor] = []
    for chunks in zip(*[buckets(tensors, buffer_size) for tensors in lists], strict=True):
        order += chunks[0]
        if any(
            [t.shape for t in chunk] != [t.shape for t in chunks[0]] for chunk in chunks
        ):  # else sums of other pairs
            raise ValueError("reduce_add_coalesced expects lists of tensors of the same shapes and dtypes")
        total = reduce_add([flatten_bucket(chunk) for chunk in chunks], destination)
        sums += [part.data for part in unflatten_bucket(total, chunks[0])]
    return tuple(in_order(sums, order, lists[0] if lists else ()))


def gather(tensors: Iterable[Tensor], dim: int = 0, destination: Any = None, *, out: Any = None) -> Tensor:
    """Concatenate tensors of several GPUs along `dim`.

    The result has the tensors' memory format if it is common to all.

    Args:
        tensors: GPU tensors whose sizes are equal except in `dim`.
        destination: torch.device, str or int; default: the current CUDA device; may be the CPU.
        out: The tensor that receives the result, on the CPU or a GPU, instead of `destination`.

    Raises:
        RuntimeError: If an input is not a tensor or is on the CPU, sizes do not match, or both `destination` and `out`
            are present.
    """
    tensors = tuple(tensors)
    if out is not None and destination is not None:
        raise RuntimeError(
            f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
        )
    shape, dim = _gathered_shape(tensors, dim)
    if out is None:
        where = _place(destination)
        out = creation.empty(
            shape, dtype=tensors[0].dtype, device=where, memory_format=_common_format(tensors)
        )
    elif tuple(out.shape) != shape:
        raise RuntimeError(f"Expected out tensor to have shape {list(shape)}, but got {_shape_list(out)}")
    for part, source in zip(out.split([t.shape[dim] for t in tensors], dim), tensors, strict=True):
        _copy(part, source)
    return out  # type: ignore[no-any-return]


def _common_format(tensors: Sequence[Tensor]) -> memory_format:
    if not all(t.meta.channels_last for t in tensors):
        return contiguous_format
    return suggested_format(tensors[0].meta)


def _gathered_shape(tensors: Sequence[Tensor], dim: int) -> tuple[tuple[int, ...], int]:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    for i, t in enumerate(tensors):
        _check_on_gpu("input", i, t)
        if not t.ndim:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
        if t.ndim != first.ndim:
            raise RuntimeError(
                f"Expected all input tensors to have the same number of dimensions, but tensor at index {i} has "
                f"{t.ndim} dimensions, (expected {first.ndim})"
            )
    dim = _wrap_dim(dim, first)
    shape = list(first.shape)
    for i, t in enumerate(tensors[1:], 1):
        expected = [t.shape[d] if d == dim else size for d, size in enumerate(first.shape)]
        if list(t.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {_shape_list(t)}, but expected {expected}"
            )
        shape[dim] += t.shape[dim]
    return tuple(shape), dim


# -- one among all ----------------------------------------------------------------------------------------------


def scatter(
    tensor: Tensor,
    devices: Any = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Any = None,
) -> tuple[Tensor, ...]:
    """Split `tensor`, of the CPU or a GPU, along `dim` into a chunk for each GPU. A chunk on the tensor's device is a
    view.

    Args:
        devices: Iterable of torch.device, str or int. Exactly one of `devices` and `out` must be present.
        chunk_sizes: Size of each chunk, `tensor.size(dim)` in total; default: equal chunks, like `chunk`.
        streams: For each device the Stream that orders the copy, or None for the current one.
        out: GPU tensors that receive the chunks, instead of `chunk_sizes`.

    Raises:
        RuntimeError: If arguments contradict each other.
    """
    if out is not None:
        return _scatter_into(tensor, tuple(out), devices, chunk_sizes, dim, _list(streams))
    if devices is None:
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, but got devices=None and out=None"
        )
    indices, streams = _indices(devices), _list(streams)
    if not indices:
        raise RuntimeError("Expected at least one device to scatter to")
    dim = _wrap_dim(dim, tensor)
    if chunk_sizes is None:
        chunks = tensor.chunk(len(indices), dim)
    else:
        sizes = list(chunk_sizes)
        if len(sizes) != len(indices):
            raise RuntimeError(
                f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(indices)} and "
                f"len(chunk_sizes) = {len(sizes)}"
            )
        chunks = tensor.split_with_sizes(sizes, dim)
    _check_streams(streams, indices)
    scattered = []
    for chunk, index, stream in zip(chunks, indices, _or_none(streams), strict=False):
        with _select_stream(stream):
            scattered.append(_at(chunk, index))
    return tuple(scattered)


def _scatter_into(
    tensor: Tensor, out: tuple[Tensor, ...], devices: Any, chunk_sizes: Any, dim: int, streams: list[Any]
) -> tuple[Tensor, ...]:
    for name, given in (("devices", devices), ("chunk_sizes", chunk_sizes)):
        if given is not None:
            raise RuntimeError(
                f"'{name}' must not be specified when 'out' is specified, but got {name}={given}"
            )
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = _wrap_dim(dim, tensor)
    for i, target in enumerate(out):
        _check_on_gpu("output", i, target)
        if target.ndim != tensor.ndim:
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect number of dimensions: expected {tensor.ndim}, but got "
                f"{target.ndim}"
            )
        expected = [target.shape[d] if d == dim else size for d, size in enumerate(tensor.shape)]
        if list(target.shape) != expected:
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: expected {expected}, but got {_shape_list(target)}"
            )
    sizes = [target.shape[dim] for target in out]
    if sum(sizes) != tensor.shape[dim]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match: expected {tensor.shape[dim]}, but "
            f"got {sum(sizes)}"
        )
    _check_streams(streams, [target.get_device() for target in out])
    for target, chunk, stream in zip(
        out, tensor.split_with_sizes(sizes, dim), _or_none(streams), strict=False
    ):
        with _select_stream(stream):
            _copy(target, chunk)
    return out


def _check_streams(streams: Sequence[Any], indices: Sequence[int]) -> None:
    for i, (stream, index) in enumerate(zip(streams, indices, strict=False)):
        if stream is not None and stream.device_index != index:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {i} (was {stream.device_index}) to match "
                f"the device supplied at that index (expected {index})"
            )


def _or_none(streams: Sequence[Any]) -> Iterator[Any]:
    yield from streams
    while True:
        yield None


def _select_stream(stream: Any) -> Any:
    """Return a context manager in which `stream` orders copies of its device. The current device stays."""
    return nullcontext() if stream is None else StreamContext(stream)


# -- arguments --------------------------------------------------------------------------------------------------


def _list(values: Iterable[Any] | None) -> list[Any]:
    return [] if values is None else list(values)


def _index(where: Any) -> int:
    system.init()
    return current.index_of(where, optional=True)


def _indices(devices: Iterable[Any]) -> list[int]:
    system.init()
    found = [current.index_of(where) for where in devices]
    for index in found:
        current.context_at(index)
    return found


def _place(destination: Any) -> device:
    if destination == -1:
        warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a device object or string instead, "
            'e.g., "cpu".',
            FutureWarning,
            stacklevel=3,
        )
        return CPU
    if isinstance(destination, str | device) and device(destination) is CPU:
        return CPU
    return device("cuda", _index(destination))


def _at(tensor: Tensor, index: int) -> Tensor:
    return tensor.to(device("cuda", index), non_blocking=True)  # type: ignore[attr-defined, no-any-return]


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=target.is_cuda)  # type: ignore[attr-defined]


def _wrap_dim(dim: int, tensor: Tensor) -> int:
    ndim = max(tensor.ndim, 1)
    if not -ndim <= dim < ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})"
        )
    return dim % ndim


def _check_on_gpu(what: str, i: int, tensor: Tensor) -> None:
    if tensor.device.type != "cuda":
        name = "output tensor" if what == "output" else "tensor"
        raise RuntimeError(
            f"Expected all {what} tensors to be CUDA tensors, but {name} at index {i} has device '{tensor.device}'"
        )


def _shape_list(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
