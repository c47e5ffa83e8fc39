"""torch.cuda.nccl: collectives over several GPUs of one process, or of several processes with communicators.

Each call enqueues one contribution per tensor, on the current stream of the tensor's device or on the stream in
`streams`, and returns. It is ordered after the earlier work of these streams; other streams need events, as usual. NCCL
runs it on real GPUs (`pip install 'flambeau[nccl]'`), the simulated links on virtual ones. Complex numbers are summed
as pairs; PyTorch refuses them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NoReturn
from warnings import warn

from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import is_contiguous
from flambeau.core.public_names import explain_absent_names
from flambeau.driver.driver_registry import nccl_version
from flambeau.driver.protocol import Collective
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices.communicators import communicators
from flambeau.tensor.tensor import Tensor

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]

SUM = 0
_OPS = ("sum", "prod", "max", "min", "avg")  # ncclRedOp_t
_FOLLOWED = (2, 28, 9)


# -- what there is ----------------------------------------------------------------------------------------------


def version() -> tuple[int, ...]:
    """Return (major, minor, patch) of NCCL. Virtual GPUs return the version whose rules they follow."""
    if system.is_virtual():
        return _FOLLOWED
    number = nccl_version()
    return (number // 10000, number // 100 % 100, number % 100)


def is_available(tensors: Sequence[Tensor]) -> bool:
    """Return True if collectives take these tensors: contiguous, each on its own GPU. Warns where there is no NCCL."""
    try:
        version()
    except NotSupportedError as error:
        warn(str(error), stacklevel=2)
        return False
    indices = [t.get_device() for t in tensors if t.is_cuda and t.is_contiguous()]  # type: ignore[attr-defined]
    return len(indices) == len(tensors) == len(set(indices))


def unique_id() -> bytes:
    """Return the 128 bytes by which members of a communicator find each other, for `init_rank`."""
    system.init()
    return current.context_at(current.local.device).driver.comm_id()


class Communicator:
    """A member of a communicator: rank `rank` of `size`, on the device of `context`. It leaves when it is dropped."""

    __slots__ = ("__weakref__", "context", "handle", "rank", "size")

    def __init__(self, context: Context, handle: int, rank: int, size: int) -> None:
        self.context = context
        self.handle = handle
        self.rank = rank
        self.size = size

    def __del__(self) -> None:
        if not self.context.closed:
            self.context.backing.comm_destroy(self.handle)


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """Join the current device to the communicator `uid` as one of `num_ranks` members. Returns when all have joined.

    Each other member joins in another thread or process.

    Raises:
        RuntimeError: If the rank is invalid or taken.
    """
    system.init()
    context = current.context_at(current.local.device)
    (handle,) = context.driver.comm_create(uid, num_ranks, [(rank, context.driver_index)])
    return Communicator(context, handle, rank, num_ranks)


# -- collectives ------------------------------------------------------------------------------------------------


def all_reduce(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor] | None = None,
    op: int = SUM,
    streams: Sequence[Any] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduce all inputs elementwise into every output: sum, product, maximum, minimum, mean are op 1, 2, 3, 4, ...

    Args:
        inputs: Contiguous tensors of one dtype and number of elements, each on its own GPU.
        outputs: As `inputs`, on the same GPUs in order; default: the inputs.
        streams: For each tensor a Stream of its device, or None for the current one.
        comms: For each tensor what `init_rank` gave, where other members are elsewhere; default: these tensors are all.

    Raises:
        RuntimeError: For tensors that do not fit each other.
    """
    outputs = inputs if outputs is None else outputs
    _check_sequences(inputs, outputs)
    _check_pairs(inputs, outputs)
    _queue("all_reduce", inputs, outputs, inputs[0].numel(), streams, comms, op=_operation_name(op))


def reduce(
    inputs: Sequence[Tensor],
    output: Tensor | Sequence[Tensor] | None = None,
    root: int = 0,
    op: int = SUM,
    streams: Sequence[Any] | None = None,
    comms: Sequence[Communicator] | None = None,
    *,
    outputs: Sequence[Tensor] | None = None,
) -> None:
    """Reduce like `all_reduce`, into one output on the GPU of `inputs[root]`; by default that input.

    Raises:
        ValueError: If both `output` and its deprecated name `outputs` (a list, with a FutureWarning) are present.
    """
    _check_sequences(inputs)
    if outputs is not None and output is not None:
        raise ValueError(
            "'output' and 'outputs' can not be both specified. 'outputs' is deprecated in favor of 'output', taking in "
            "a single output tensor. The signature of reduce is: reduce(inputs, output=None, root=0, op=SUM, "
            "streams=None, comms=None)."
        )
    listed = outputs if outputs is not None else output
    if listed is not None and not isinstance(listed, Tensor):
        warn(
            "nccl.reduce with an output tensor list is deprecated. Please specify a single output tensor.",
            FutureWarning,
            stacklevel=2,
        )
        listed = listed[root]
    _check(inputs)
    ranks = _ranks(inputs, root, comms)
    targets: list[Tensor | None] = [None] * len(inputs)
    if root in ranks:
        here = ranks.index(root)
        target = targets[here] = inputs[here] if listed is None else listed
        _check_pairs(inputs[here : here + 1], [target])
    _queue("reduce", inputs, targets, inputs[0].numel(), streams, comms, op=_operation_name(op), peer=root)


def broadcast(
    inputs: Sequence[Tensor],
    root: int = 0,
    streams: Sequence[Any] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Copy the tensor at `root` to all others. Arguments and errors are those of `all_reduce`."""
    _check_sequences(inputs)
    _check(inputs)
    _ranks(inputs, root, comms)
    _queue("broadcast", inputs, inputs, inputs[0].numel(), streams, comms, peer=root)


def all_gather(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    streams: Sequence[Any] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Copy all inputs, one after the other, to every output. Arguments and errors are those of `all_reduce`."""
    _check_sequences(inputs, outputs)
    _check_pairs(inputs, outputs, gathered=_size(inputs, comms))
    _queue("all_gather", inputs, outputs, inputs[0].numel(), streams, comms)


def reduce_scatter(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int = SUM,
    streams: Sequence[Any] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Write the i-th part of the result of `all_reduce` to output i. All outputs together have as many elements as an
    input.

    Arguments and errors are those of `all_reduce`.
    """
    _check_sequences(inputs, outputs)
    _check_pairs(inputs, outputs, scattered=_size(inputs, comms))
    _queue("reduce_scatter", inputs, outputs, outputs[0].numel(), streams, comms, op=_operation_name(op))


def _queue(
    kind: str,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor | None],
    count: int,
    streams: Sequence[Any] | None,
    comms: Sequence[Communicator] | None,
    **named: Any,
) -> None:
    """Enqueue one part for each source, as one group."""
    contexts = [current.context_at(t.get_device()) for t in sources]  # type: ignore[attr-defined]
    for given, what in ((streams, "streams"), (comms, "communicators")):
        if given is not None and len(given) != len(contexts):
            raise RuntimeError(f"number of {what} is not equal to number of inputs")
    chosen = [
        current.stream_at(context.index) if stream is None else stream
        for context, stream in zip(contexts, streams or [None] * len(contexts), strict=True)
    ]
    for context, stream in zip(contexts, chosen, strict=True):
        if stream.device_index != context.index:
            raise RuntimeError(f"Expected a stream of {context.device}, but got one of {stream.device}")
    handles = communicators(contexts) if comms is None else [comm.handle for comm in comms]
    parts = []
    for handle, source, target, stream in zip(handles, sources, targets, chosen, strict=True):
        at = 0 if target is None else target.data_ptr()  # type: ignore[attr-defined]
        part = Collective(kind, at, source.data_ptr(), count, source.dtype, **named)  # type: ignore[attr-defined]
        parts.append((handle, part, stream.handle))
    contexts[0].driver.collective(parts)
    for source, target, stream in zip(sources, targets, chosen, strict=True):
        stream.queue.busy = True
        source.memory.used_on(stream.handle)
        if target is not None:
            target.memory.used_on(stream.handle)
            target.counter.version += 1


# -- checks -----------------------------------------------------------------------------------------------------


def _check_sequences(*given: Any) -> None:
    for tensors in given:
        if not isinstance(tensors, Container) or isinstance(tensors, Tensor):
            raise TypeError("Inputs should be a collection of tensors")


def _check(inputs: Sequence[Tensor]) -> None:
    """Raise RuntimeError unless the inputs of a collective match."""
    if not inputs:
        _wrong("input sequence can't be empty")
    first = inputs[0]
    seen = set()
    for t in inputs:
        _check_like(t, first)
        if t.numel() != first.numel():  # type: ignore[attr-defined]
            _wrong("all inputs must have the same number of elements")
        if t.device in seen:
            _wrong("inputs must be on unique devices")
        seen.add(t.device)


def _check_like(t: Tensor, first: Tensor) -> None:
    if not t.is_cuda:  # type: ignore[attr-defined]
        _wrong("input and output elements have to be cuda dense Tensors")
    if t.dtype is not first.dtype:
        _wrong("all inputs and outputs must be of the same Tensor dtype")
    if not is_contiguous(t.meta.shape, t.meta.strides):
        _wrong("all inputs and outputs must be contiguous")


def _check_pairs(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gathered: int = 1, scattered: int = 1
) -> None:
    """Check that each output has `gathered` times the elements of its input, or one of `scattered` parts of them."""
    if inputs and len(inputs) != len(outputs):
        _wrong("inputs and outputs sequences have to be of the same length")
    _check(inputs)
    for source, target in zip(inputs, outputs, strict=True):
        _check_like(target, inputs[0])
        if source.device is not target.device:
            _wrong("input and output must be on the same device")
        if target.numel() * scattered != source.numel() * gathered:  # type: ignore[attr-defined]
            _wrong("output must be of size input_size * size_multiplier")


def _ranks(inputs: Sequence[Tensor], root: int, comms: Sequence[Communicator] | None) -> list[int]:
    """Return the ranks of the inputs; there must be one of number `root` in all."""
    if not 0 <= root < _size(inputs, comms):
        _wrong("invalid root")
    return list(range(len(inputs))) if comms is None else [comm.rank for comm in comms]


def _size(inputs: Sequence[Tensor], comms: Sequence[Communicator] | None) -> int:
    return comms[0].size if comms else len(inputs)


def _operation_name(op: int) -> str:
    if op not in range(len(_OPS)):
        _wrong(f"NCCL Error 4: invalid argument: there is no op {op}")
    return _OPS[op]


def _wrong(text: str) -> NoReturn:
    raise RuntimeError(text)


explain_absent_names(globals(), "torch.cuda.nccl")
