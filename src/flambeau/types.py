"""torch.types: names for the types of arguments, as programs annotate their functions with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, TypeAlias

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.public_names import explain_absent_names
from flambeau.core.size import Size
from flambeau.tape.autograd_node import GradientEdge
from flambeau.tensor.arguments.typing import layout
from flambeau.tensor.storages import TypedStorage, UntypedStorage
from flambeau.tensor.tensor import Tensor

__all__ = ["Device", "FileLike", "Number", "Storage"]

# For annotations in classes whose attributes have the builtins' names.
_bool, _bytes, _complex, _float, _int, _str = bool, bytes, complex, float, int, str
_device, _dtype, _layout = device, dtype, layout

Number: TypeAlias = int | float | bool
_Number = (int, float, bool)
Device: TypeAlias = device | str | int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
Storage: TypeAlias = UntypedStorage | TypedStorage

_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
_TensorOrOptionalTensors: TypeAlias = Tensor | Sequence[Tensor | None]
_TensorOrTensorsOrGradEdge: TypeAlias = Tensor | Sequence[Tensor] | GradientEdge | Sequence[GradientEdge]
_size: TypeAlias = Size | list[int] | tuple[int, ...]

# Sizes are numbers here, never symbols.
IntLikeType: TypeAlias = int
FloatLikeType: TypeAlias = float
BoolLikeType: TypeAlias = bool
py_sym_types: tuple[type, ...] = ()

explain_absent_names(globals(), "torch.types")
