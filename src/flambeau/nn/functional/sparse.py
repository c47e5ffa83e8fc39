"""Functions of indices: embedding, embedding_bag, one_hot."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.dtype import FLOATING, float32, float64, int32, int64
from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.ops.index.embedding import embedding as embedding_op
from flambeau.ops.index.one_hot import one_hot as one_hot_op
from flambeau.tape.mode import mode as recording_mode
from flambeau.tape.mode import recording
from flambeau.tensor import dispatch, interception, layout_functions
from flambeau.tensor.arguments.options import integer, number
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.call import call
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.arithmetic import where
from flambeau.tensor.functions.reduction import norm
from flambeau.tensor.functions.sorting import searchsorted
from flambeau.tensor.signatures import by_parser, compares
from flambeau.tensor.tensor import Tensor

_MODES = ("sum", "mean", "max")  # of torch.embedding_bag, by their numbers


@compares("norm_type")
def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Return the rows of `weight` (count, size) that `input` selects, (..., size).

    Args:
        padding_idx: A row that gets no gradient.
        max_norm: First rescale longer selected rows in place to this norm.
        scale_grad_by_freq: Divide each row's gradient by the number of its occurrences.
        sparse: Return the gradient of `weight` as a sparse tensor of the selected rows.

    Raises:
        IndexError: If an index is out of range.
        RuntimeError: If `input` is not an integer tensor.
    """
    if require_tensor(weight, "embedding", "weight").dim() != 2:
        raise RuntimeError("'weight' must be 2-D")
    if padding_idx is not None:
        padding_idx = _padding_row(integer(padding_idx, "embedding", "padding_idx", 3), weight.shape[0])
    require_tensor(input, "embedding", "indices", 2)
    if max_norm is not None:
        _check_indices(input, "embedding_renorm_", 2)
        _shrink(weight, input, max_norm, norm_type)
    _check_indices(input, "embedding")
    if interception.count and not sparse and dispatch.is_shown((input, weight)):
        return dispatch.compose("embedding", weight, input, padding_idx, scale_grad_by_freq)  # type: ignore[no-any-return]
    flat = input if input.meta.ndim == 1 else input.reshape(-1)
    op: Any = layout_functions.find("sparse_embedding") if sparse else embedding_op
    rows: Tensor = call(op, (weight, flat), (padding_idx, scale_grad_by_freq))
    return rows if flat is input else rows.view(*input.meta.shape, weight.meta.shape[1])


def _padding_row(index: int, count: int) -> int:
    """Return the index of the padding's row, counted from the first row."""
    if not -count <= index < count:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return index % count


def _padding_of_bags(index: int, count: int) -> int:
    if not -count <= index < count:
        raise RuntimeError(
            f"padding_idx must be within the number of embeddings, {-count} through {count - 1}, but got {index}"
        )
    return index % count


def _check_indices(x: Tensor, name: str, position: int = 1) -> None:
    if x.dtype not in (int32, int64):
        raise RuntimeError(
            f"Expected tensor for argument #{position} 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {_type_of(x)} instead (while checking arguments for {name})"
        )


def _type_of(x: Tensor) -> str:
    """Return PyTorch's name of a tensor's type in errors: dtypes of its first versions have a legacy type."""
    name = x.dtype.torch_name
    if name in ("Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte"):
        return str(x.type())
    return f"{x.device.type.upper()}{name}Type"


def _shrink(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    max_norm = float(number(max_norm, "embedding_renorm_", "max_norm", 3))
    weight, places = weight.detach(), input.reshape(-1)
    rows = weight.index_select(0, places)
    length = norm(rows, float(number(norm_type, "embedding_renorm_", "norm_type", 4)), 1, True)
    factor = where(length > max_norm, max_norm / (length + 1e-7), creation.ones_like(length))
    weight.index_copy_(0, places, rows * factor)  # a repeated row is written with an equal value


@compares("include_last_offset", "norm_type")
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Reduce the selected rows of `weight` bag by bag: by "sum", "mean" or "max". An empty bag gives zeros.

    Args:
        input: (bags, length), or all indices in one dimension.
        offsets: Start of each bag, for one-dimensional `input`; with `include_last_offset` followed by the end.
        per_sample_weights: Factors of the rows, only for "sum".
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if per_sample_weights is not None:
        if per_sample_weights.shape != input.shape:
            raise ValueError(
                f"embedding_bag: If per_sample_weights ({tuple(per_sample_weights.shape)}) is not None, then it must "
                f"have the same shape as the input ({tuple(input.shape)})"
            )
        if mode != "sum":
            raise NotImplementedError(
                "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
                f"(got mode='{mode}'). Please open a feature request on GitHub."
            )
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    even = input.dim() == 2 and offsets is None and padding_idx is None and bool(input.numel())
    places, bags, count = _bags(input, offsets, include_last_offset, mode, even)
    _check_indices(places, "embedding_bag")
    if not weight.dtype.is_floating_point:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have one of the following scalar types: Half, BFloat16, "
            f"Float, Double; but got {_type_of(weight)} instead (while checking arguments for embedding_bag)"
        )
    if max_norm is not None:
        _shrink(weight, places, max_norm, norm_type)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if padding_idx is not None:
        padding = _padding_of_bags(integer(padding_idx, "embedding_bag", "padding_idx", 9), weight.shape[0])
        kept = (places != padding).nonzero().reshape(-1)
        places, bags = places.index_select(0, kept), bags.index_select(0, kept)
        weights = None if weights is None else weights.index_select(0, kept)
    op: Any = layout_functions.find("sparse_embedding") if sparse else embedding_op
    rows = _select_rows(op, weight, places, scale_grad_by_freq)
    if rows.dtype.category == FLOATING and rows.dtype.itemsize < 4 and mode != "max":
        rows = rows.to(float32)
    if weights is not None:
        rows = rows * weights.to(rows.dtype).unsqueeze(1)
    if bags is None:
        return _joined_evenly(rows.view(*input.shape, rows.shape[1]), mode).to(weight.dtype)
    return _reduce_bags(rows, bags, count, mode).to(weight.dtype)


def _select_rows(op: Any, weight: Tensor, places: Tensor, scale_grad_by_freq: bool) -> Any:
    """Return the rows of `weight` at `places`. On the CPU it raises RuntimeError for an index out of range."""
    try:
        return call(op, (weight, places), (None, scale_grad_by_freq))
    except IndexError:
        count = weight.shape[0]
        at, place = next((at, n) for at, n in enumerate(places.tolist()) if not 0 <= n < count)
        raise RuntimeError(
            f"Index {at} of input takes value {place} which is not in the valid range [0, {count})"
        ) from None


def _bags(
    input: Tensor, offsets: Tensor | None, last: bool, mode: str, even: bool
) -> tuple[Tensor, Any, int]:
    """Return all indices in one dimension, the bag of each index (None if `even`), and the number of bags."""
    if even:
        return input.reshape(-1), None, 0
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
                f"sequences. However, found offsets of type {type(offsets)}"
            )
        rows = creation.arange(input.shape[0], device=input.device)
        return input.reshape(-1), rows.repeat_interleave(input.shape[1]), input.shape[0]
    if input.dim() != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if not isinstance(offsets, Tensor):
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if offsets.dim() != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    if not isinstance(last, bool):
        raise TypeError(argument_type("embedding_bag", "include_last_offset", 8, "bool", last))
    _check_indices(offsets, "embedding_bag")
    _check_offsets(offsets, input.shape[0], RuntimeError if mode == "sum" else IndexError)
    at = creation.arange(input.shape[0], dtype=offsets.dtype, device=input.device)
    starts = offsets[:-1] if last else offsets
    return input, searchsorted(starts.contiguous(), at, right=True) - 1, starts.shape[0]


def _check_offsets(offsets: Tensor, count: int, negative: type[Exception]) -> None:
    """Raise RuntimeError if bags do not begin at 0, or begin behind the input, and `negative` for a negative offset.
    On a GPU the host does not look.
    """
    if offsets.device.type != "cpu" or not offsets.numel():
        return
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {first}"
        )
    if last > count:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length({count}) but got offsets[-1] of {last}"
        )
    least = int(offsets.min())
    if least < 0:
        raise negative(f"index out of range in self: an offset is {least}, before the input's first index")


def _joined_evenly(rows: Tensor, mode: str) -> Tensor:
    """Join bags of equal length: rows (bags, length, size)."""
    if mode == "max":
        later = creation.arange(rows.shape[1], device=rows.device).unsqueeze(1) > 0
        return _without_nans(rows, later).max(1)[0]
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def _reduce_bags(rows: Tensor, bags: Tensor, count: int, mode: str) -> Tensor:
    if mode == "max":
        return _largest(rows, bags, count)
    out = creation.zeros(count, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add_(0, bags, rows)
    if mode == "sum":
        return out
    ones = creation.ones(bags.shape[0], dtype=rows.dtype, device=rows.device)
    share = creation.zeros(count, dtype=rows.dtype, device=rows.device).index_add_(0, bags, ones)
    return out / share.clamp_min(1).unsqueeze(1)


def _without_nans(rows: Tensor, later: Tensor) -> Tensor:
    """Return rows with NaNs replaced, except in a bag's first row: like PyTorch, the maximum ignores later NaNs."""
    return where(later & rows.isnan(), -math.inf, rows)


def _largest(rows: Tensor, bags: Tensor, count: int) -> Tensor:
    """Return the first of the largest rows of each bag, which receives the gradient."""
    total, size = rows.shape
    if total:
        later = bags == bags.roll(1, 0)
        later[0] = False
        rows = _without_nans(rows, later.unsqueeze(1))
    nothing, at = rows.new_zeros((count, size)), bags.unsqueeze(1).expand(total, size)
    if not total:
        return nothing.index_add_(0, bags, rows)
    with recording(False):
        top = nothing.scatter_reduce(0, at, rows, "amax", include_self=False)
    if not (recording_mode.recording and requires_grad(rows)):
        return top
    with recording(False):
        is_top = (rows == top.index_select(0, bags)) | (rows != rows)
        places = where(is_top, creation.arange(total, device=rows.device).unsqueeze(1), total)
        first = places.new_full((count, size), total).scatter_reduce(0, at, places, "amin")
    return rows.gather(0, first.clamp_max(total - 1)).masked_fill(first == total, 0)  # which is an empty bag


def bags_with_places(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, include_last_offset: bool, padding_idx: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the four results of `torch.embedding_bag`.

    Raises:
        ValueError: If maxima shall have sparse gradients, which they have not.
        RuntimeError: If `mode` is not 0, 1 or 2, `offsets` has not one dimension, or the weights of samples do not
            fit the indices or the mode.
    """
    if mode not in (0, 1, 2):
        raise RuntimeError(f"`mode` must be sum, mean, or max: 0, 1 or 2, but got {mode}")
    if offsets.dim() != 1:
        raise RuntimeError(f"offsets has to be a 1D Tensor, but got Tensor of dimension {offsets.dim()}")
    flat = indices.reshape(-1)
    weights = per_sample_weights
    if weights is not None:
        if mode != 0:
            raise RuntimeError("embedding_bag: per_sample_weights only supported with mode='sum'")
        if weights.numel() != flat.numel():
            raise RuntimeError(
                f"embedding_bag: Expected per_sample_weights to have one number for each of the {flat.numel()} "
                f"indices, but got {weights.numel()}"
            )
        weights = weights.reshape(-1)
    bags = embedding_bag(
        flat, weight, offsets, None, 2.0, scale_grad_by_freq and mode != 2, _MODES[mode], sparse,
        weights, include_last_offset, padding_idx,
    )  # fmt: skip
    with recording(False):
        return bags, *_places(weight.detach(), flat, offsets, bags, mode, padding_idx, include_last_offset)


def _places(
    weight: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, mode: int, padding: Any, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bag of each index, the number of rows of each bag that are not padding, and the first maxima."""
    count, width = bags.shape
    none = indices.new_zeros(count)
    is_direct = mode == 0 and padding is None and weight.stride(1) == 1 and weight.dtype is not float64
    if is_direct or not indices.shape[0]:  # PyTorch adds rows to the bags without a table
        return indices.new_zeros(0), none, none if mode != 2 else indices.new_zeros(count, width)
    starts = (offsets[:-1] if last else offsets).contiguous()
    at = creation.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device)
    bag: Any = (searchsorted(starts, at, right=True) - 1).to(indices.dtype)
    if mode == 0:
        return bag, none, none
    kept = indices == indices if padding is None else indices != padding % weight.shape[0]
    sizes = none.index_add_(0, bag, kept.to(indices.dtype))
    if mode == 1:
        return bag, sizes, sizes.clone()
    return bag, sizes, _first_maxima(weight, indices, bag, kept, bags)


def _first_maxima(weight: Tensor, indices: Tensor, bag: Any, kept: Any, bags: Tensor) -> Tensor:
    """Return for each element of `bags` the first index of its bag whose row has the element; 0 in an empty bag."""
    total = indices.shape[0]
    rows: Any = weight.index_select(0, indices)
    is_top = kept.unsqueeze(1) & ((rows == bags.index_select(0, bag)) | rows.isnan())
    order: Any = creation.arange(total, device=indices.device).unsqueeze(1)
    order = order.where(is_top, total)
    first: Any = order.new_full(bags.shape, total).scatter_reduce(
        0, bag.long().unsqueeze(1).expand_as(order), order, "amin"
    )
    found: Any = indices.index_select(0, first.clamp_max(total - 1).reshape(-1)).view(bags.shape)
    return found.masked_fill(first == total, 0)  # type: ignore[no-any-return]


@by_parser
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return each class index as a row of zeros with a 1 at the index.

    On CUDA the host waits for the device only to find the largest index; with `num_classes` the kernel checks the
    indices.

    Args:
        num_classes: Length of a row; -1 for the largest index plus 1.

    Raises:
        RuntimeError: If an index is out of range.
    """
    if require_tensor(tensor, "one_hot").dtype is not int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if not tensor.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return creation.zeros(*tensor.shape, num_classes, dtype=int64, device=tensor.device)
    is_read = tensor.device.type == "cpu" or num_classes == -1
    low, high = (int(tensor.min()), int(tensor.max())) if is_read else (0, 0)
    if low < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes != -1 and num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    if num_classes != -1 and high >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    count = high + 1 if num_classes == -1 else num_classes
    if not interception.count:
        rows: Tensor = call(one_hot_op, (tensor,), (count,))
        return rows
    made: Any = creation.zeros(*tensor.shape, count, dtype=int64, device=tensor.device)
    return made.scatter_(-1, tensor.unsqueeze(-1), 1)
