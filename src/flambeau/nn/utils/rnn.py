"""torch.nn.utils.rnn: sequences of different lengths, padded to one length or packed time step by time step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flambeau.core.dtype import (
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.exchange.interop import as_tensor
from flambeau.tensor.exchange.transfer import to_arguments
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class PackedSequence_(NamedTuple):
    """The fields of a PackedSequence."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(PackedSequence_):
    """Packed sequences in order of decreasing length: the first elements of all sequences, then all second elements,
    ...

    `pack_sequence` and `pack_padded_sequence` create it.

    Attributes:
        data: (N, ...).
        batch_sizes: Number of sequences at each time step, int64 on the CPU.
        sorted_indices: Position of each sequence in the original batch; None if it was sorted.
        unsorted_indices: The inverse of `sorted_indices`.

    Raises:
        ValueError: If batch_sizes is on a GPU.
    """

    def __new__(
        cls, data: Any, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            if not (isinstance(data, list | tuple) and len(data) == 2):
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        elif batch_sizes.device.type != "cpu":
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be created manually. "
                "They should be instantiated by functions like pack_sequence and pack_padded_sequences in "
                "nn.utils.rnn. https://pytorch.org/docs/stable/nn.html#torch.nn.utils.rnn.pack_sequence"
            )
        assert batch_sizes is not None
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def _each(self, data: Tensor, convert: Callable[[Tensor], Tensor]) -> PackedSequence:
        places = [None if x is None else convert(x) for x in (self.sorted_indices, self.unsorted_indices)]
        return type(self)(data, self.batch_sizes, *places)

    def pin_memory(self) -> PackedSequence:
        """Return a copy in pinned memory."""
        return self._each(self.data.pin_memory(), lambda x: x.pin_memory())

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Convert the data like `Tensor.to`. Returns itself if nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        _, _, non_blocking, _, _ = to_arguments(args, kwargs)
        return self._each(data, lambda x: x.to(data.device, non_blocking=non_blocking))

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Return the sequence on a CUDA device, by default on the current one."""
        return (
            self.to(*args, **kwargs)
            if _names(args, kwargs, "cuda")
            else self.to(*args, **{**kwargs, "device": "cuda"})
        )

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Return the sequence on the CPU."""
        return self.to(*args, **{**kwargs, "device": "cpu"})

    def double(self) -> PackedSequence:
        """Return the sequence as float64."""
        return self.to(dtype=float64)

    def float(self) -> PackedSequence:
        """Return the sequence as float32."""
        return self.to(dtype=float32)

    def half(self) -> PackedSequence:
        """Return the sequence as float16."""
        return self.to(dtype=float16)

    def long(self) -> PackedSequence:
        """Return the sequence as int64."""
        return self.to(dtype=int64)

    def int(self) -> PackedSequence:
        """Return the sequence as int32."""
        return self.to(dtype=int32)

    def short(self) -> PackedSequence:
        """Return the sequence as int16."""
        return self.to(dtype=int16)

    def char(self) -> PackedSequence:
        """Return the sequence as int8."""
        return self.to(dtype=int8)

    def byte(self) -> PackedSequence:
        """Return the sequence as uint8."""
        return self.to(dtype=uint8)

    @property
    def is_cuda(self) -> bool:
        """Return True if the data is on a CUDA device."""
        return bool(self.data.is_cuda)

    def is_pinned(self) -> bool:
        """Return True if the data is in pinned memory."""
        return bool(self.data.is_pinned())


def _names(args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> bool:
    """Return True if arguments of `Tensor.to` name a device of this type."""
    where = to_arguments(args, kwargs)[0] if args or kwargs else None
    return where is not None and where.type == kind


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the inverse permutation."""
    if permutation is None:
        return None
    places = creation.arange(permutation.numel(), device=permutation.device)
    # not `empty`, because a scatter reads the elements that it keeps
    inverse = creation.zeros_like(permutation)
    return inverse.scatter_(0, permutation, places)


# -- packing ----------------------------------------------------------------------------------------------


def _rows(longest: int, sizes: Sequence[int]) -> list[int]:
    """Return, for each packed row, its index among the rows (sequence, time) of a padded batch."""
    return [b * longest + t for t, size in enumerate(sizes) for b in range(size)]


def _sizes(lengths: Sequence[int]) -> list[int]:
    """Return the number of sequences that reach each time step. The lengths must not increase."""
    sizes, running = [], len(lengths)
    for t in range(lengths[0]):
        while lengths[running - 1] <= t:
            running -= 1
        sizes.append(running)
    return sizes


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch (T, B, ...), or (B, T, ...) with `batch_first`.

    Args:
        lengths: Length of each sequence, a list or an int64 tensor on the CPU; decreasing unless `enforce_sorted` is
            False.

    Raises:
        RuntimeError: If lengths are not sorted, not positive, or not one for each sequence.
    """
    if isinstance(lengths, Tensor):
        lengths = lengths.to(dtype=int64)
    else:
        lengths = as_tensor(lengths, dtype=int64, device="cpu")
    places = None
    if not enforce_sorted:
        lengths, places = lengths.sort(descending=True)
        places = places.to(input.device)
        input = input.index_select(0 if batch_first else 1, places)
    x = input if batch_first else input.transpose(0, 1)
    counts = _check_lengths(x, lengths)
    sizes = _sizes(counts)
    rows = as_tensor(_rows(x.shape[1], sizes), device=x.device)
    data = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]).index_select(0, rows)
    return PackedSequence(data, as_tensor(sizes, device="cpu"), places, None)


def _check_lengths(x: Tensor, lengths: Tensor) -> list[int]:
    """Return the lengths of the sequences of a batch (B, T, ...)."""
    if lengths.dim() != 1 or lengths.device.type != "cpu":
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {lengths.device} Long tensor"
        )
    if x.numel() <= 0:
        raise RuntimeError("Cannot pack empty tensors.")
    counts: list[int] = lengths.tolist()
    if len(counts) != x.shape[0]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(counts)} (batch_size={x.shape[0]})"
        )
    if counts[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if any(a < b for a, b in pairwise(counts)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you "
            "do not need ONNX exportability."
        )
    if counts[0] > x.shape[1]:
        raise RuntimeError(f"start (0) + length ({counts[0]}) exceeds dimension size ({x.shape[1]}).")
    return counts


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (padded batch (T, B, ...), or (B, T, ...) with `batch_first`; lengths), in the order before packing.

    Args:
        total_length: T, at least the longest length, which is the default.

    Raises:
        ValueError: If `total_length` is too small.
    """
    sizes: list[int] = sequence.batch_sizes.tolist()
    longest = len(sizes) if total_length is None else total_length
    if longest < len(sizes):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    counts = [sum(size > b for size in sizes) for b in range(sizes[0])]
    data = sequence.data
    rows = as_tensor(_rows(longest, sizes), device=data.device)
    padded = _place_rows(data, rows, (sizes[0], longest), padding_value)
    lengths = as_tensor(counts, device="cpu")
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(0, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]
    return padded if batch_first else padded.transpose(0, 1), lengths


def _place_rows(data: Tensor, rows: Tensor, shape: tuple[int, int], padding: float) -> Tensor:
    """Return (B, T, ...) of the padding, with the data's rows in their places."""
    rest = data.shape[1:]
    padded = data.new_full((shape[0] * shape[1], *rest), padding).index_copy(0, rows, data)
    return padded.reshape(*shape, *rest)


# -- padding ----------------------------------------------------------------------------------------------


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Pad sequences (L, ...) to one batch (T, B, ...), or (B, T, ...) with `batch_first`.

    Raises:
        RuntimeError: If `sequences` has the wrong type, trailing dimensions differ, or the side is not "right" or
            "left".
    """
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}"
        )
    listed = tuple(sequences)
    if not listed:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    lengths = [x.shape[0] for x in listed]
    longest = max(lengths)
    skipped = [longest - n if padding_side == "left" else 0 for n in lengths]
    places = [b * longest + skipped[b] + t for b, n in enumerate(lengths) for t in range(n)]
    data = functions["cat"](listed)
    rows = as_tensor(places, dtype=int64, device=data.device)
    padded = _place_rows(data, rows, (len(listed), longest), padding_value)
    return padded if batch_first else padded.transpose(0, 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Return the sequences of a padded batch, cut to `lengths`."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [row[:count] for row, count in zip(x.unbind(0), counts, strict=True)]


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences (L, ...), longest first unless `enforce_sorted` is False."""
    lengths = as_tensor([x.shape[0] for x in sequences], device="cpu")
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences that were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
