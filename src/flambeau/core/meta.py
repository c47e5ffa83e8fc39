"""`Meta`: everything about a tensor except its memory. Interned: equal metas are the same object.

Inference sees only metas, and plans are cached by them (see Note [The plan cache]).

# Note [Memory formats]
Operators on images (N, C, spatial ...) return results in the format that their input suggests, like PyTorch:
contiguous, or `channels_last`, with the channels innermost (`Meta.suggest`, or `Meta.laid` if several inputs
decide). A gradient operator has the format as a param if the input that decides it is not among its own inputs. Other
operators keep the order of dimensions of their operands (`core.layout.result_strides`, `dense_strides`). Metas are
interned, so the format is computed once for a layout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias
from weakref import ref

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
from flambeau.core.tracing.symbols import PlanTrace, is_symbol

DType: TypeAlias = dtype  # inside `Meta` the plain names are its fields
Device: TypeAlias = device

Key: TypeAlias = tuple[Any, ...]
"""(shape, kind) of a plain meta, (shape, strides, kind) of another."""


class MetaKind:
    """Everything about a meta except its numbers; equal kinds are the same object.

    Attributes:
        plain: True if all strides are those of a new tensor.
    """

    __slots__ = ("device", "dtype", "itemsize", "ndim", "plain")

    def __init__(self, dtype: DType, device: Device, ndim: int, plain: bool) -> None:
        self.dtype, self.device, self.ndim, self.plain = dtype, device, ndim, plain
        self.itemsize = dtype.itemsize


_interned: dict[Key, ref[Meta]] = {}  # may hold references to metas that were deleted
_FEWEST = 1024
_limit = _FEWEST  # entries at which those of deleted metas are removed
_KEPT = 256  # the latest metas kept, because programs create tensors of few layouts
_latest: deque[Meta] = deque(maxlen=_KEPT)
_kinds: dict[tuple[DType, Device, int, bool], MetaKind] = {}
_trace: PlanTrace | None = (
    None  # the running trace: see Note [Plans of a structure] in core/tracing/symbols.py
)


class Meta:
    """Shape, strides (in elements), dtype and device of a tensor.

    Use `Meta.of` or `Meta.contiguous_of` to create one, never the constructor. Rarely used attributes are computed on
    first use.

    Attributes:
        span: Bytes from the first element to the end of the last.
        nbytes: Bytes of the elements.
        contiguous: True for a contiguous layout; dimensions of one element may have any stride.
        plain: True if all strides are those of a new tensor.
        channels_last: True if the layout suggests that format, see Note [Memory formats].
        kind: Everything except the numbers.
    """

    __slots__ = (
        "__weakref__", "byte_strides", "channels_last", "contiguous", "device", "dtype", "itemsize", "kind", "nbytes",
        "ndim", "numel", "plain", "shape", "span", "strides",
    )  # fmt: skip

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    ndim: int
    numel: Any  # numbers are symbols while a plan is traced, which compiled modules must not convert
    itemsize: int
    nbytes: Any
    span: Any
    contiguous: bool
    plain: bool
    channels_last: bool
    byte_strides: tuple[int, ...]
    kind: MetaKind
    short: ClassVar[bool] = False  # True of `ShortMeta`
    layout: str = "strided"  # "sparse_coo" and others of `SparseMeta`
    sparse: ClassVar[bool] = False  # True of `SparseMeta`, see Note [Sparse tensors] in core/sparse_meta.py

    @staticmethod
    def of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: Device) -> Meta:
        if _trace is not None and _has_symbols(shape, strides):
            return _make_traced(_trace, shape, strides, dtype, device)
        kind = kind_of(dtype, device, len(shape), strides == contiguous_strides(shape))
        key = (shape, kind) if kind.plain else (shape, strides, kind)
        found = _interned.get(key)
        meta = None if found is None else found()
        return _intern(key, _make(shape, strides, kind)) if meta is None else meta

    @staticmethod
    def contiguous_of(shape: tuple[int, ...], dtype: DType, device: Device) -> Meta:
        if _trace is not None:
            return Meta.of(shape, contiguous_strides(shape), dtype, device)
        return plain_of(shape, kind_of(dtype, device, len(shape), True))

    def with_(
        self,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        dtype: DType | None = None,
        device: Device | None = None,
    ) -> Meta:
        """Return the meta with some fields replaced."""
        return Meta.of(
            self.shape if shape is None else shape,
            self.strides if strides is None else strides,
            self.dtype if dtype is None else dtype,
            self.device if device is None else device,
        )

    @staticmethod
    def laid(shape: tuple[int, ...], dtype: DType, device: Device, channels_last: bool) -> Meta:
        """Return a new result's meta: contiguous, or with the channels innermost."""
        strides = channels_last_strides(shape) if channels_last else contiguous_strides(shape)
        return Meta.of(shape, strides, dtype, device)

    def suggest(self, shape: tuple[int, ...], dtype: DType | None = None) -> Meta:
        """Return the meta of a new tensor in the format that this layout suggests: see Note [Memory formats]."""
        return Meta.laid(shape, dtype or self.dtype, self.device, self.channels_last)

    def __getattr__(self, name: str) -> Any:
        compute = _COMPUTED.get(name)
        if compute is None:
            raise AttributeError(f"'Meta' object has no attribute {name!r}")
        value = compute(self)
        object.__setattr__(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.strides}, {self.dtype}, {self.device})"


class ShortMeta(Meta):
    """The meta of a tensor that reaches beyond its storage, which was made smaller. See Note [Storages made
    smaller].
    """

    __slots__ = ()

    short: ClassVar[bool] = True

    def __init__(self, meta: Meta) -> None:
        for name in meta.__slots__[1:]:
            setattr(self, name, getattr(meta, name))


def alike(x: Meta, y: Meta) -> bool:
    """Return True if two metas of one shape are dense in the same order, so that their elements pair up as memory
    has them.
    """
    return (x.contiguous and y.contiguous) or (x.strides == y.strides and is_dense(x.shape, x.strides))


def set_aside() -> list[Meta]:
    """Remove and return the shared metas of CUDA devices, for a machine that closes or is suspended.

    Its tensors then share no meta with those of the next machine, so that no plan of the next one fits them.
    """
    metas = [meta for each in list(_interned.values()) if (meta := each()) is not None]
    set_aside = [meta for meta in metas if meta.device.type == "cuda"]
    for meta in set_aside:
        _interned.pop(_key(meta), None)
    return set_aside


def take_up(metas: Iterable[Meta]) -> None:
    """Share again what `set_aside` returned: the machine that was left is entered again."""
    for meta in metas:
        _intern(_key(meta), meta)


# -- interning ------------------------------------------------------------------------------------------------


def _key(meta: Meta) -> Key:
    return (meta.shape, meta.kind) if meta.plain else (meta.shape, meta.strides, meta.kind)


def kind_of(dtype: DType, device: Device, ndim: int, plain: bool) -> MetaKind:
    """Return the kind with these attributes. Equal attributes give the same object, so that kinds are quick keys."""
    key = (dtype, device, ndim, plain)
    kind = _kinds.get(key)
    return _kinds.setdefault(key, MetaKind(*key)) if kind is None else kind


def plain_of(shape: tuple[int, ...], kind: MetaKind) -> Meta:
    """Return the meta of this shape, with the strides of a new tensor, and of a plain kind."""
    found = _interned.get((shape, kind))
    meta = None if found is None else found()
    if meta is None:
        meta = _intern((shape, kind), _make(shape, contiguous_strides(shape), kind))
    return meta


def _intern(key: Key, meta: Meta) -> Meta:
    """Make `meta`, which is new, the one meta with this key, and return it."""
    _interned[key] = ref(meta)
    if len(_interned) >= _limit:
        _remove_deleted()
    _latest.append(meta)
    return meta


def _remove_deleted() -> None:
    """Remove the entries of deleted metas. Callbacks of the references would cost each meta half a microsecond."""
    global _limit
    for key, reference in list(_interned.items()):
        if reference() is None and _interned.get(key) is reference:
            _interned.pop(key, None)
    _limit = max(_FEWEST, 2 * len(_interned))


def intern(shape: tuple[int, ...], strides: tuple[int, ...], kind: MetaKind, numel: int) -> Meta:
    """Return the meta of this layout and kind, of which the number of elements is known."""
    key = (shape, kind) if kind.plain else (shape, strides, kind)
    found = _interned.get(key)
    meta = None if found is None else found()
    return _intern(key, _fill(shape, strides, kind, numel)) if meta is None else meta


# -- symbols --------------------------------------------------------------------------------------------------


@contextmanager
def tracing(trace: PlanTrace) -> Iterator[None]:
    """Let metas contain symbols inside the block. See Note [Plans of a structure] in core/tracing/symbols.py."""
    global _trace
    _trace = trace
    try:
        yield
    finally:
        _trace = None


def _has_symbols(*numbers: Sequence[Any]) -> bool:
    return any(is_symbol(n) for each in numbers for n in each)


def _make_traced(
    trace: PlanTrace, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: Device
) -> Meta:
    """Return the meta of a trace with these numbers; equal nodes give one object."""
    key = (trace.names(shape), trace.names(strides), dtype, device)
    meta: Meta | None = trace.metas.get(key)
    if meta is None:
        kind = kind_of(dtype, device, len(shape), strides == contiguous_strides(shape))
        meta = trace.metas[key] = _make(shape, strides, kind)
    return meta


_MOST = 2**63 - 1
_new_object = object.__new__
_MOST_DIMS = 64  # the limit of NumPy's arrays


def _too_many_dims(shape: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(
        f"only tensors with up to {_MOST_DIMS} dims are supported, but got {len(shape)}: NumPy's arrays, with which "
        "reference implementations compute, have no more. Merge dimensions with flatten() or reshape()"
    )


def _overflow(meta: Meta) -> RuntimeError:
    """Return PyTorch's error for a size that 64 bits cannot count."""
    if meta.span <= _MOST:
        return RuntimeError("numel: integer multiplication overflow")
    strides = "" if meta.contiguous else f" and strides={list(meta.strides)}"
    return RuntimeError(f"Storage size calculation overflowed with sizes={list(meta.shape)}{strides}")


def _make(shape: tuple[int, ...], strides: tuple[int, ...], kind: MetaKind) -> Meta:
    for n in shape:
        if n < 0:  # the operator did not check its result; no kernel may see it
            raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    require_usable(kind.dtype)
    return _fill(shape, strides, kind, numel(shape))


def _fill(shape: tuple[int, ...], strides: tuple[int, ...], kind: MetaKind, numel: int) -> Meta:
    meta: Meta = _new_object(Meta)
    meta.shape, meta.strides, meta.kind, meta.numel = shape, strides, kind, numel
    meta.dtype, meta.device, meta.ndim, meta.plain = kind.dtype, kind.device, kind.ndim, kind.plain
    meta.itemsize = size = kind.itemsize
    meta.nbytes = nbytes = numel * size
    most = nbytes  # a bound on the span
    if kind.plain:
        meta.span = nbytes
        meta.contiguous = True
    elif _trace is None:
        most = (numel + kind.ndim) * max(strides) * size
    if _trace is None and (most > _MOST or nbytes > _MOST or kind.ndim > _MOST_DIMS):
        _refuse_overflow(meta)  # traced code checks this itself
    return meta


def _refuse_overflow(meta: Meta) -> None:
    """Raise RuntimeError for too many dimensions, or a size that 64 bits cannot count."""
    if meta.ndim > _MOST_DIMS:
        raise _too_many_dims(meta.shape)
    if meta.span > _MOST or meta.numel > _MOST:
        raise _overflow(meta)


def _byte_strides(meta: Meta) -> tuple[int, ...]:
    strides = tuple([s * meta.itemsize for s in meta.strides])
    if strides and max(strides) > _MOST:
        # NumPy counts with 63 bits. A dimension of one element may have any stride, because it is never stepped
        # along.
        strides = tuple(s if s <= _MOST else 0 for s in strides)
    return strides


_COMPUTED: dict[str, Callable[[Meta], Any]] = {
    "byte_strides": _byte_strides,
    "channels_last": lambda meta: is_channels_last(meta.shape, meta.strides),
    "contiguous": lambda meta: is_contiguous(meta.shape, meta.strides),
    "span": lambda meta: span(meta.shape, meta.strides) * meta.itemsize,
}
