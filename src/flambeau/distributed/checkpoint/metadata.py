"""torch.distributed.checkpoint.metadata: the records that describe a checkpoint of several ranks.

They are plain values, with PyTorch's fields. Flambeau does not write or read such checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flambeau.core.dtype import dtype as Dtype
from flambeau.core.public_names import explain_absent_names
from flambeau.core.size import Size
from flambeau.distributed.checkpoint.stateful import StatefulT
from flambeau.tensor.arguments import typing as arguments
from flambeau.tensor.promotion import get_default_dtype
from flambeau.tensor.tensor import Tensor

__all__ = [
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
    "TensorStorageMetadata",
]  # fmt: skip


@dataclass
class ChunkStorageMetadata:
    """A block of a tensor: where it begins, and its shape."""

    offsets: Size
    sizes: Size


class _MEM_FORMAT_ENCODING(Enum):
    """The number of a memory format in a pickle."""

    TORCH_CONTIGUOUS_FORMAT = 0
    TORCH_CHANNELS_LAST = 1
    TORCH_PRESERVE_FORMAT = 2


_FORMATS = dict(
    zip(
        _MEM_FORMAT_ENCODING,
        (arguments.contiguous_format, arguments.channels_last, arguments.preserve_format),
        strict=True,
    )
)


@dataclass
class TensorProperties:
    """The properties of a tensor that is created for a checkpoint's elements."""

    dtype: Dtype = field(default_factory=get_default_dtype)
    layout: arguments.layout = field(default=arguments.strided)
    requires_grad: bool = False
    memory_format: arguments.memory_format = field(default=arguments.contiguous_format)
    pin_memory: bool = False

    def __getstate__(self) -> tuple[Any, ...]:
        numbers = [number for number, kind in _FORMATS.items() if kind is self.memory_format]
        if not numbers:
            raise RuntimeError(f"Invalid torch.memory_format: {self.memory_format}")
        return self.dtype, self.layout, self.requires_grad, numbers[0], self.pin_memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype, self.layout, self.requires_grad, number, self.pin_memory = state
        if number not in _FORMATS:
            raise RuntimeError(f"Invalid torch.memory_format encoding: {number}")
        self.memory_format = _FORMATS[number]

    @staticmethod
    def create_from_tensor(tensor: Tensor) -> TensorProperties:
        """Return the properties of a tensor, in the contiguous format."""
        own: Any = tensor
        return TensorProperties(own.dtype, own.layout, own.requires_grad, pin_memory=own.is_pinned())


@dataclass
class TensorStorageMetadata:
    """A tensor of a checkpoint: its properties, its shape and the blocks that are stored."""

    properties: TensorProperties
    size: Size
    chunks: list[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    """The metadata of an object that a checkpoint stores as a pickle, in place of a tensor."""


STORAGE_TYPES = TensorStorageMetadata | BytesStorageMetadata
STATE_DICT_TYPE = dict[str, StatefulT | Any]


@dataclass
class StorageMeta:
    """The identity of a checkpoint and of the calls that saved and loaded it."""

    checkpoint_id: str | os.PathLike[str] | None = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list[str] = field(default_factory=list)


@dataclass
class Metadata:
    """The contents of a checkpoint, by the keys of the state that was saved."""

    state_dict_metadata: dict[str, STORAGE_TYPES]
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: StorageMeta | None = None
    version: str | None = None


@dataclass(frozen=True)
class MetadataIndex:
    """The key of an object in a checkpoint.

    Attributes:
        fqn: The qualified name of the object.
        offset: Where the block begins, if the object is a tensor.
        index: A hint at the number of the block, which comparisons ignore.
    """

    fqn: str
    offset: Size | None = None
    index: int | None = field(hash=False, compare=False, default=None)

    def __init__(self, fqn: str, offset: Sequence[int] | None = None, index: int | None = None) -> None:
        object.__setattr__(self, "fqn", fqn)
        object.__setattr__(self, "index", index)
        if offset is not None:
            object.__setattr__(self, "offset", Size(offset))


explain_absent_names(globals(), "torch.distributed.checkpoint.metadata")
