"""`layout` and `memory_format`, and the legacy tensor types: 'torch.cuda.FloatTensor'."""

from __future__ import annotations

from typing import Any

from flambeau.core import errors
from flambeau.core.device import CPU, device
from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.layout import (
    Shape,
    Strides,
    channels_last_strides,
    contiguous_strides,
    dense_strides,
    is_channels_last,
)
from flambeau.core.meta import Meta
from flambeau.tensor.arguments import public


class _Constant:
    """A named value of the `torch` namespace, equal only to itself."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class layout(_Constant):
    """The arrangement of elements in memory: by strides, or as tensors of indices and values."""


class memory_format(_Constant):
    """The order of a dense tensor's dimensions in memory."""


class qscheme(_Constant):
    """The scheme of a quantized tensor: libraries name its values. Flambeau has no quantized tensors."""


strided = layout("strided")
LAYOUTS = {
    name: layout(name)
    for name in ("_mkldnn", "jagged", "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr")
}
SCHEMES = {
    name: qscheme(name)
    for name in (
        "per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric", "per_tensor_affine",
        "per_tensor_symmetric",
    )
}  # fmt: skip
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")

public.functions.update(
    layout=layout,
    memory_format=memory_format,
    strided=strided,
    contiguous_format=contiguous_format,
    preserve_format=preserve_format,
    channels_last=channels_last,
    channels_last_3d=channels_last_3d,
    qscheme=qscheme,
    **LAYOUTS,
    **SCHEMES,
)

_LAST = {channels_last: 4, channels_last_3d: 5}


def strides_in(shape: Shape, form: memory_format) -> Strides:
    """Return the strides of a new tensor of `shape` in contiguous or channels-last format."""
    if form is contiguous_format:
        return contiguous_strides(shape)
    if not isinstance(form, memory_format):
        raise TypeError(f"argument 'memory_format' must be torch.memory_format, not {errors.type_name(form)}")
    if form not in _LAST:
        raise RuntimeError(f"unsupported memory format option {form!r}")
    if len(shape) != _LAST[form]:
        raise RuntimeError(f"required rank {_LAST[form]} tensor to use {form.name} format")
    return channels_last_strides(shape)


def suggested_format(meta: Meta) -> memory_format:
    """Return the memory format that the strides suggest, for `strides_in`."""
    if not meta.channels_last:
        return contiguous_format
    return channels_last if meta.ndim == 4 else channels_last_3d


def lies_in(meta: Meta, form: memory_format) -> bool:
    """Return True if the strides suggest this memory format, with or without gaps, so that no conversion is needed."""
    if is_channels_last(meta.shape, meta.strides):
        return _LAST.get(form) == meta.ndim
    return form is contiguous_format


def strides_like(meta: Meta, form: memory_format | None) -> Strides:
    """Return the strides of a new tensor like `meta`. None and `preserve_format` keep the order of dimensions."""
    if form is None or form is preserve_format:
        return meta.strides if meta.plain else dense_strides(meta.shape, meta.strides)
    return strides_in(meta.shape, form)


# -- 'torch.cuda.FloatTensor' ----------------------------------------------------------------------------

_by_type_name = {f"{d.torch_name}Tensor": d for d in DTYPES}


def type_name(meta: Meta) -> str:
    """Return the old name of a tensor's type."""
    room = "torch" if meta.device is CPU else f"torch.{meta.device.type}"
    if meta.sparse:
        room = f"{room}.sparse" if meta.layout == "sparse_coo" else f"{room}.{meta.layout}"
    return f"{room}.{meta.dtype.torch_name}Tensor"


def parse_type(name: Any) -> tuple[dtype, device]:
    """Return the dtype and device that a type name denotes. The device is "cpu", or "cuda" without an index."""
    room, _, last = name.rpartition(".")
    if room not in ("torch", "torch.cuda") or last not in _by_type_name:
        raise ValueError(f"invalid type: '{name}'")
    return _by_type_name[last], device("cpu" if room == "torch" else "cuda")
