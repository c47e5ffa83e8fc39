"""torch.nn.attention.flex_attention: attention with a function of scores and a block mask, computed eagerly.

A mask function `mask(b, h, q, kv)` receives the indices of batch, head, query and key, as tensors that broadcast with
each other, and returns a bool tensor. A score function receives the scores before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from flambeau.core.dtype import bool_, float32, float64, int32
from flambeau.core.errors import NotSupportedError, RaceError
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.functional.padding import pad
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.creation import arange, ones
from flambeau.tensor.tensor import Tensor

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention",
    "noop_mask", "or_masks",
]  # fmt: skip

_HERE = "torch.nn.attention.flex_attention"
_DEFAULT_SPARSE_BLOCK_SIZE = 128
_MOST_ELEMENTS = 1 << 16
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
explain_absent_names(globals(), _HERE)


class AuxRequest(NamedTuple):
    """A request for further results of `flex_attention`.

    Attributes:
        lse: True for the logarithm of the sum of the exponentials of the scores of each query.
        max_scores: True for the largest score of each query.
    """

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The additional results that an `AuxRequest` requested; None for those that it did not request."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


class BlockMask:
    """A mask of queries and keys by blocks: a list of unmasked blocks, and a function that masks elements of partial
    blocks.

    Attributes:
        seq_lengths: The numbers of queries and of keys.
        kv_num_blocks: The number of partly unmasked blocks of keys for each block of queries.
        kv_indices: These blocks, first in the last dimension.
        full_kv_num_blocks: The number of wholly unmasked blocks of keys for each block of queries; None if not
            separated.
        full_kv_indices: These blocks.
        BLOCK_SIZE: The numbers of queries and of keys in a block.
        mask_mod: The mask function.
    """

    def __init__(
        self, seq_lengths: tuple[int, int], kv_num_blocks: Tensor, kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None, full_kv_indices: Tensor | None, BLOCK_SIZE: tuple[int, int], mask_mod: Mask,
    ) -> None:  # fmt: skip
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        self.seq_lengths, self.BLOCK_SIZE, self.mask_mod = seq_lengths, BLOCK_SIZE, mask_mod
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices

    @classmethod
    def from_kv_blocks(
        cls, kv_num_blocks: Tensor, kv_indices: Tensor, full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None, BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: Mask | None = None, seq_lengths: tuple[int, int] | None = None, compute_q_blocks: bool = True,
    ) -> BlockMask:  # fmt: skip
        """Return the mask of these blocks; see the attributes."""
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        sizes = _block_sizes(BLOCK_SIZE)
        lengths = seq_lengths or (kv_indices.shape[-2] * sizes[0], kv_indices.shape[-1] * sizes[1])
        return cls(
            lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            sizes,
            mask_mod or noop_mask,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the batches, heads, queries and keys."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """Return the number of pairs of queries and keys."""
        return math.prod(self.shape)

    def to_dense(self) -> Tensor:
        """Return 1 for each block that is wholly or partly unmasked, 0 for other blocks."""
        dense = _dense(self.kv_num_blocks, self.kv_indices)
        if self.full_kv_num_blocks is not None:
            dense = dense | _dense(self.full_kv_num_blocks, self.full_kv_indices)
        return dense

    def sparsity(self) -> float:
        """Return the percentage of pairs that are in masked blocks."""
        count = self.kv_num_blocks.sum()
        if self.full_kv_num_blocks is not None:
            count = count + self.full_kv_num_blocks.sum()
        return 100 * (1 - int(count) * math.prod(self.BLOCK_SIZE) / self.numel())

    def to(self, device: Any) -> BlockMask:
        """Return the mask on another device, with the same mask function."""
        tensors = (self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices)
        moved = [None if t is None else t.to(device) for t in tensors]
        return BlockMask(self.seq_lengths, *moved, self.BLOCK_SIZE, self.mask_mod)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"


def _block_sizes(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _dense(counts: Any, indices: Any) -> Any:
    """Return a dense mask: row r has ones in the columns `indices[r, :counts[r]]` and zeros elsewhere."""
    seen = arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    return functions["zeros_like"](indices).scatter(-1, indices.long(), seen.to(indices.dtype))


def _list_blocks(blocks: Any) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of each row that are set, and the indices of all blocks, those that are set first."""
    blocks = blocks.to(int32)
    indices = functions["argsort"](blocks, dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(int32).contiguous(), indices.to(int32).contiguous()


def create_block_mask(
    mask_mod: Mask, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE, _compile: bool = False,
    separate_full_blocks: bool = True,
) -> BlockMask:  # fmt: skip
    """Return the block mask of a mask function.

    Args:
        mask_mod: The mask function.
        B: The number of batches; None for one mask for all.
        H: The number of heads; None for one mask for all.
        Q_LEN: The number of queries.
        KV_LEN: The number of keys.
        device: The device of the mask; the default device if None.
        BLOCK_SIZE: The queries and keys in a block.
        separate_full_blocks: List wholly unmasked blocks separately.
    """
    sizes = _block_sizes(BLOCK_SIZE)
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    rows, columns = (-(-n // size) for n, size in zip((Q_LEN, KV_LEN), sizes, strict=True))
    whole = pad(mask, (0, columns * sizes[1] - KV_LEN, 0, rows * sizes[0] - Q_LEN))
    counts = whole.view(*mask.shape[:2], rows, sizes[0], columns, sizes[1]).transpose(3, 4).sum((-2, -1))
    full = counts == math.prod(sizes)
    partial = (counts > 0) & ~full if separate_full_blocks else counts > 0
    return BlockMask(
        (Q_LEN, KV_LEN),
        *_list_blocks(partial),
        *(_list_blocks(full) if separate_full_blocks else (None, None)),
        sizes,
        mask_mod,
    )


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Any = None, *, return_aux: AuxRequest | None = None,
) -> Any:  # fmt: skip
    """Return the attention of queries to keys, with a function that changes scores and a mask.

    Args:
        query: (B, Hq, L, E).
        key: (B, Hkv, S, E).
        value: (B, Hkv, S, Ev).
        score_mod: `score_mod(score, b, h, q_idx, kv_idx)` returns the score to use.
        block_mask: The mask; its mask function decides for each element.
        scale: The factor of products of queries and keys; by default 1 / sqrt(E).
        enable_gqa: Let several heads of queries share a head of keys and values.
        return_lse: Return the logarithms of the sums of exponentials, too.
        kernel_options: No effect.
        return_aux: The additional results to return, instead of `return_lse`.

    Returns:
        (B, Hq, L, Ev), and the logarithms or the `AuxOutput` if requested.

    Raises:
        NotImplementedError: If a tensor does not have four dimensions.
        ValueError: If dtypes, devices, heads or batches do not match.
    """
    _check_inputs(query, key, value, block_mask, enable_gqa)
    shares = query.shape[1] // key.shape[1]
    batch = query.shape[0]
    key, value = (x.expand(batch, *x.shape[1:]).repeat_interleave(shares, 1) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = float64 if query.dtype is float64 else float32
    scores = (query @ key.transpose(-2, -1)).to(wide) * factor
    indices = _indices(scores)
    if score_mod is not None:
        scores = _of_elements(score_mod, scores.shape, scores, *indices)
    if block_mask is not None and block_mask.mask_mod is not noop_mask:
        mask = _of_elements(block_mask.mask_mod, scores.shape, *indices)
        scores = scores.masked_fill(~mask.to(bool_), -math.inf)
    unseen = (scores == -math.inf).all(-1, True)
    weights = functions["softmax"](scores.masked_fill(unseen, 0), -1).masked_fill(unseen, 0)
    out = (weights.to(query.dtype) @ value).to(query.dtype)
    if return_aux is not None:
        if return_lse:
            raise ValueError("Cannot specify both return_lse and return_aux. Use only return_aux.")
        return out, AuxOutput(
            scores.logsumexp(-1) if return_aux.lse else None,
            scores.amax(-1) if return_aux.max_scores else None,
        )
    return (out, scores.logsumexp(-1)) if return_lse else out


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask | None, gqa: bool) -> None:
    """Raise PyTorch's errors for inputs that do not match."""
    if not query.dtype is key.dtype is value.dtype:
        raise ValueError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead."
        )
    if not query.dim() == key.dim() == value.dim() == 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError("Expect query and key/value to have the same embedding dimension")
    heads, shared = query.shape[1], key.shape[1]
    if not gqa and heads != shared:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={shared}. Try "
            "setting enable_gqa=True for GQA."
        )
    if heads % shared:
        raise ValueError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and Hkv={shared}."
        )
    if query.shape[0] != key.shape[0] and (block_mask is None or key.shape[0] != 1):
        raise ValueError(
            f"Expect query and key/value to have the same batch size, but got Bq={query.shape[0]} and "
            f"Bkv={key.shape[0]}."
        )
    if block_mask is not None and block_mask.seq_lengths != (query.shape[-2], key.shape[-2]):
        raise ValueError(
            f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={query.shape[-2]} and "
            f"kv_len={key.shape[-2]}. As the block mask was created for another length, you must create a new one."
        )


def _indices(scores: Tensor) -> list[Any]:
    """Return the index of each dimension, in shapes that broadcast with the scores."""
    return [
        arange(n, device=scores.device).view([-1 if d == axis else 1 for d in range(4)])
        for axis, n in enumerate(scores.shape)
    ]


def _of_elements(mod: Callable[..., Any], shape: Any, *values: Any) -> Any:
    """Return the result of a function for each element.

    It is called once on all elements, and on some separately. If the results differ, the function reduces over its
    arguments, and is called on each element.
    """
    whole = [v.expand(shape) for v in values]
    at_once: Any = None
    try:
        at_once = mod(*values)
    except RaceError:
        raise
    except (RuntimeError, IndexError):  # a function of single elements only
        pass
    if isinstance(at_once, Tensor) and at_once.dim() in (0, 4):
        at_once = at_once.expand(shape)
        if all(_same(at_once[place], mod(*[v[place] for v in whole])) for place in _probes(shape)):
            return at_once
    if math.prod(shape) > _MOST_ELEMENTS:
        raise NotSupportedError(
            f"flex_attention: {mod} computes with single elements only, which Flambeau does one by one, for at most "
            f"{_MOST_ELEMENTS} elements. Write it for tensors that broadcast"
        )
    parts = [mod(*[v[place] for v in whole]) for place in product(*map(range, shape))]
    return functions["stack"](parts).view(shape)


def _probes(shape: Any) -> list[tuple[int, ...]]:
    """Return the positions of a few elements: the first, the last and one in the middle."""
    if not math.prod(shape):
        return []
    return [(0,) * len(shape), tuple([n // 2 for n in shape]), tuple([n - 1 for n in shape])]


def _same(x: Tensor, y: Any) -> bool:
    return bool(functions["allclose"](x.detach().double(), y.detach().double(), equal_nan=True))


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Return True: nothing is masked."""
    return ones((), dtype=bool, device=batch.device)


def or_masks(*mask_mods: Mask) -> Mask:
    """Return the mask function that is True where one of these mask functions is True.

    Raises:
        RuntimeError: One of them cannot be called.
    """
    _require_callables(mask_mods)
    return lambda b, h, q, kv: reduce(lambda x, y: x | y, [m(b, h, q, kv) for m in mask_mods])


def and_masks(*mask_mods: Mask) -> Mask:
    """Return the mask function that is True where all of these are.

    Raises:
        RuntimeError: One of them cannot be called.
    """
    _require_callables(mask_mods)
    return lambda b, h, q, kv: reduce(lambda x, y: x & y, [m(b, h, q, kv) for m in mask_mods])


def _require_callables(mask_mods: tuple[Any, ...]) -> None:
    if not all(callable(each) for each in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mask_mods}")


def create_mask(
    mod_fn: Mask, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """Return the mask of a mask function as a bool tensor.

    Args:
        mod_fn: The mask function.
        B: The number of batches; one if None.
        H: The number of heads; one if None.
        Q_LEN: The number of queries.
        KV_LEN: The number of keys.
        device: The device of the mask; the default device if None.

    Returns:
        Of shape (B, H, Q_LEN, KV_LEN).
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    shapes = ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,))
    b, h, q, kv = [arange(n, device=device).view(shape) for n, shape in zip(sizes, shapes, strict=True)]
    mask: Tensor = mod_fn(b, h, q, kv).expand(sizes).contiguous()
    return mask
