"""`Meta`: everything about a tensor but its memory. Interned: equal metas are the same object.

An operator's rule sees metas only, and plans are cached by them (see Note [The plan cache]).

# Note [Memory formats]
Operators on images (N, C, spatial ...) lay their results out in the format that their input suggests, as PyTorch's do:
contiguous, or `channels_last`, with the channels innermost (`Meta.suggested`, or `Meta.laid` where several inputs
decide). A gradient's record takes the format as a param where the input that decides it is not among its own inputs.
Other records keep the order of dimensions of their operands (`core.layout.result_strides`, `dense_strides`). Metas
are interned, so the question is answered once for a layout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar, TypeAlias
from weakref import WeakValueDictionary

from flambeau.core.device import device
from flambeau.core.dtype import dtype, require_usable
from flambeau.core.layout import (
    channels_last_strides,
    contiguous_strides,
    is_channels_last,
    is_contiguous,
    is_dense,
    numel,
    span,
)

DType: TypeAlias = dtype  # inside `Meta` the plain names are its fields
Device: TypeAlias = device

_interned: WeakValueDictionary[tuple[object, ...], Meta] = WeakValueDictionary()
_KEPT = 256  # of the latest: programs make tensors of the same few layouts over and over
_latest: deque[Meta] = deque(maxlen=_KEPT)


class Meta:
    """Shape, strides (in elements), dtype and device of a tensor.

    Make one with `Meta.of` or `Meta.contiguous_of`, never directly. `span` is the number of
    bytes from the first element to the end of the last; `nbytes` counts the elements alone. `contiguous`
    lets dimensions of one element have any stride, `plain` says that all strides are as a new tensor's;
    `channels_last` that the layout suggests that format, see Note [Memory formats].
    """

    __slots__ = (
        "__weakref__", "byte_strides", "channels_last", "contiguous", "device", "dtype", "itemsize", "nbytes",
        "ndim", "numel", "plain", "shape", "span", "strides",
    )  # fmt: skip

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    ndim: int
    numel: int
    itemsize: int
    nbytes: int
    span: int
    contiguous: bool
    plain: bool
    channels_last: bool
    byte_strides: tuple[int, ...]
    short: ClassVar[bool] = False  # True of `ShortMeta`
    layout: str = "strided"  # "sparse_coo" and others of `SparseMeta`
    sparse: ClassVar[bool] = False  # True of `SparseMeta`, see Note [Sparse tensors] in core/sparse_meta.py

    @staticmethod
    def of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: Device) -> Meta:
        key = (shape, strides, dtype, device)
        found = _interned.get(key)
        if found is None:
            found = _interned.setdefault(key, _make(*key))
            _latest.append(found)
        return found

    @staticmethod
    def contiguous_of(shape: tuple[int, ...], dtype: DType, device: Device) -> Meta:
        return Meta.of(shape, contiguous_strides(shape), dtype, device)

    def with_(
        self,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        dtype: DType | None = None,
        device: Device | None = None,
    ) -> Meta:
        """The same meta with some fields replaced."""
        return Meta.of(
            self.shape if shape is None else shape,
            self.strides if strides is None else strides,
            self.dtype if dtype is None else dtype,
            self.device if device is None else device,
        )

    @staticmethod
    def laid(shape: tuple[int, ...], dtype: DType, device: Device, channels_last: bool) -> Meta:
        """A new result's meta: contiguous, or with the channels innermost."""
        strides = channels_last_strides(shape) if channels_last else contiguous_strides(shape)
        return Meta.of(shape, strides, dtype, device)

    def suggested(self, shape: tuple[int, ...], dtype: DType | None = None) -> Meta:
        """A new result of `shape` in the format that this layout suggests: see Note [Memory formats]."""
        return Meta.laid(shape, dtype or self.dtype, self.device, self.channels_last)

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.strides}, {self.dtype}, {self.device})"


class ShortMeta(Meta):
    """That of a tensor that reaches beyond its storage, which was made smaller. See Note [Storages made smaller]."""

    __slots__ = ()

    short: ClassVar[bool] = True

    def __init__(self, meta: Meta) -> None:
        for name in meta.__slots__[1:]:
            setattr(self, name, getattr(meta, name))


def alike(x: Meta, y: Meta) -> bool:
    """Whether two metas of one shape are dense in the same order, so that their elements pair up as memory has them."""
    return (x.contiguous and y.contiguous) or (x.strides == y.strides and is_dense(x.shape, x.strides))


def set_aside() -> list[Meta]:
    """Stop sharing the metas of CUDA devices, and return them: what a machine that closes or is left needs.

    Its tensors then share no meta with those of the next machine, so that no plan of the next one fits them.
    """
    set_aside = [meta for meta in list(_interned.values()) if meta.device.type == "cuda"]
    for meta in set_aside:
        _interned.pop((meta.shape, meta.strides, meta.dtype, meta.device), None)
    return set_aside


def take_up(metas: Iterable[Meta]) -> None:
    """Share again what `set_aside` returned: the machine that was left is entered again."""
    for meta in metas:
        _interned[meta.shape, meta.strides, meta.dtype, meta.device] = meta


_MOST = 2**63 - 1


def _overflow(meta: Meta) -> RuntimeError:
    """PyTorch's refusal of what a 64-bit number cannot count."""
    if meta.span <= _MOST:
        return RuntimeError("numel: integer multiplication overflow")
    strides = "" if meta.contiguous else f" and strides={list(meta.strides)}"
    return RuntimeError(f"Storage size calculation overflowed with sizes={list(meta.shape)}{strides}")


def _make(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: Device) -> Meta:
    if shape and min(shape) < 0:  # of a result whose operator did not look: no kernel may see it
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    require_usable(dtype)
    meta = object.__new__(Meta)
    meta.shape, meta.strides, meta.dtype, meta.device = shape, strides, dtype, device
    size = dtype.itemsize
    meta.ndim, meta.numel, meta.itemsize = len(shape), numel(shape), size
    meta.nbytes = meta.numel * size
    meta.plain = plain = strides == contiguous_strides(shape)
    meta.span = meta.nbytes if plain else span(shape, strides) * size
    meta.contiguous = plain or is_contiguous(shape, strides)
    meta.channels_last = is_channels_last(shape, strides)
    if meta.span > _MOST or meta.numel > _MOST:
        raise _overflow(meta)
    meta.byte_strides = tuple([s * size for s in strides])
    if strides and max(meta.byte_strides) > _MOST:
        # NumPy counts 63 bits. Nothing steps along such a dimension, so its stride may be any.
        meta.byte_strides = tuple(s if s <= _MOST else 0 for s in meta.byte_strides)
    return meta
